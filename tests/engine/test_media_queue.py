"""Sequences wait in order for their media to be encoded; what cannot be is told in full."""

from types import SimpleNamespace

from nbgen.engine.media_queue import AHEAD, MediaQueue
from nbgen.errors import InvalidRequest
from nbgen.messages import FinishReason


def sequence(rid: str) -> SimpleNamespace:
    return SimpleNamespace(rid=rid, finish_reason=None, media=SimpleNamespace(encoded=None))


def encode(sequence: SimpleNamespace) -> None:
    if sequence.rid == "odd":
        raise InvalidRequest("the placeholders and the tensors do not fit", field="image_data", code="odd")
    if sequence.rid == "broken":
        raise RuntimeError("of a tower's own")
    sequence.media.encoded = "rows"


def queue_of(*rids: str) -> MediaQueue:
    queue = MediaQueue()
    for rid in rids:
        queue.append(sequence(rid))
    return queue


def test_one_prompt_is_encoded_between_two_steps() -> None:
    queue, waiting = queue_of("a", "b", "c", "d"), []
    while found := list(queue.encoded(encode, waiting)):
        ((ready, fault),) = found
        assert fault is None
        waiting.append(ready)
    assert [each.rid for each in waiting] == ["a", "b"]
    assert len(waiting) == AHEAD
    assert len(queue) == 2


def test_a_refusal_names_the_field_and_a_fault_does_not_tell_its_words() -> None:
    refused, failed = (fault for rid in ("odd", "broken") for _, fault in queue_of(rid).encoded(encode, []))
    words = "the placeholders and the tensors do not fit"
    assert refused == FinishReason(type="error", message=words, status=400, field="image_data", code="odd")
    assert failed == FinishReason(type="error", message="the media could not be encoded; the log says why", status=503)
