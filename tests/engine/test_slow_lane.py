"""Who sends images or long texts holds nobody up, and may change their mind."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nbgen.commands import ContinueGeneration, PauseGeneration
from nbgen.engine.loop import Loop
from nbgen.engine.slow_lane import SlowLane
from nbgen.engine_state import EngineReady
from nbgen.messages import AbortRequest, ChatMessage, GenerateOutput, GenerateRequest, StepOutputs
from nbgen.sampling_params import SamplingParams
from nbgen.tokenizer_messages import TokenizeRequest
from tests.conftest import PATIENCE, save_model
from tests.engine.conftest import build
from tests.engine.image_requests import media, picture
from tests.engine.multimodal import save
from tests.engine.test_loop import Served
from tests.engine.test_process import Peer


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = Peer(str(save(tmp_path_factory.mktemp("lane"), "llava")))
    (*_, ready) = peer.receive_until(EngineReady)
    assert ready.model.media == ["image"]
    yield peer
    peer.close()


def test_an_image_is_described_in_the_engine_process(peer: Peer) -> None:
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)
    peer.send(GenerateRequest(rid="a", text="What is <image>?", media=media(picture(1)), params=params))
    (*_, last) = peer.outputs("a")
    assert (last.completion_tokens, last.prompt_tokens) == (5, 13)
    peer.send(GenerateRequest(rid="b", text="<image><image>", media=media(picture(1)), params=params))
    (refusal,) = peer.outputs("b")
    assert refusal.finish_reason.status == 400


def test_images_that_are_aborted_at_once_are_answered_and_come_to_nothing(peer: Peer) -> None:
    params = SamplingParams(max_new_tokens=400, ignore_eos=True, n=2)
    image = media(picture(1, 1500, 1500))
    asked = [GenerateRequest(rid=rid, text="<image>", media=image, params=params) for rid in ("c", "d")]
    peer.send(*asked, *(AbortRequest(rid=each.rid) for each in asked))
    last: dict[tuple[str, int], GenerateOutput] = {}
    while len(last) < 4:
        outputs = peer.receive_until(StepOutputs)[-1].outputs
        last |= {(output.rid, output.index): output for output in outputs if output.finish_reason}
    assert {output.finish_reason.type for output in last.values()} == {"abort"}
    assert [last["d", index].prompt_tokens for index in range(2)] == [0, 0], "it was admitted"
    peer.send(GenerateRequest(rid="c", text="Hello", params=SamplingParams(max_new_tokens=5, ignore_eos=True)))
    (*_, answer) = peer.outputs("c")
    assert (answer.finish_reason.type, answer.completion_tokens) == ("length", 5)
    test_an_image_is_described_in_the_engine_process(peer)


def test_a_chat_that_waits_for_what_reads_media_holds_up_nobody(tmp_path: Path) -> None:
    assembly = build(save(tmp_path, "llava"))
    served = Served(partial(Loop, assembly=assembly))
    one, chat = SamplingParams(max_new_tokens=1, ignore_eos=True), [ChatMessage(role="user", content="Hi")]
    with assembly.admission._processor.lock:
        served.send(
            GenerateRequest(rid="chat", messages=chat, params=one),
            GenerateRequest(rid="gone", messages=chat, params=one),
            AbortRequest(rid="gone"),
            GenerateRequest(rid="text", text="Hi", params=one),
        )
        heard = served.until(lambda m: isinstance(m, StepOutputs) and m.outputs[-1].rid == "text")
    ends = [o.rid for m in heard if isinstance(m, StepOutputs) for o in m.outputs if o.finish_reason]
    assert ends == ["gone", "text"]
    assert served.outputs("chat")["chat"][-1].completion_tokens == 1
    served.close()
    assembly.close()


def test_long_texts_hold_up_nobody_and_end_at_once_where_nobody_wants_them(
    tmp_path: Path,
) -> None:
    """Each takes a tenth of a second, and is then refused for its length."""
    peer = Peer(str(save_model(tmp_path / "long", max_position_embeddings=2**16)))
    peer.receive_until(EngineReady)
    text, hi = "a word " * 2**17, [ChatMessage(role="user", content="Hi")]
    one = SamplingParams(max_new_tokens=1, ignore_eos=True)
    longs = [
        GenerateRequest(rid="a", text=text, params=one),
        GenerateRequest(rid="b", messages=[ChatMessage(role="user", content=text)], params=one),
        TokenizeRequest(rid="c", texts=[text]),
        GenerateRequest(rid="d", text=text, params=SamplingParams(n=2)),
        GenerateRequest(rid="e", text=text, params=one),
    ]
    short = GenerateRequest(rid="short", messages=hi, params=one)
    ends: list[tuple[str, str]] = []

    def wait_for(rid: str) -> None:
        while not any(end[0] == rid for end in ends):
            outputs = peer.receive_until(StepOutputs)[-1].outputs
            ends.extend((output.rid, output.finish_reason.type) for output in outputs if output.finish_reason)

    peer.send(*longs, AbortRequest(rid="d"), short)
    wait_for("short")
    assert ends == [("d", "abort")] * 2 + [("short", "length")]
    peer.send(PauseGeneration(mode="abort"), ContinueGeneration(), GenerateRequest(rid="last", text=text, params=one))
    wait_for("last")
    peer.close()
    assert ("e", "abort") in ends
    assert ends[-1] == ("last", "error")
    assert len(ends) == 7


class Lane(SlowLane):
    """Admits a request when it is told to; those that were handed on are `seen`, in their order."""

    def __init__(self) -> None:
        self.seen: list[GenerateRequest] = []
        self.begun, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)
        super().__init__("test", self._decode)

    def _decode(self, request: GenerateRequest) -> Callable[[], None]:
        self.begun.release()
        assert self.goes_on.acquire(timeout=PATIENCE)
        return partial(self.seen.append, request)

    def began(self) -> bool:
        """Whether another's turn has come."""
        return self.begun.acquire(timeout=PATIENCE)


def test_who_is_withdrawn_comes_to_nothing_and_another_may_have_its_id() -> None:
    lane, ids = Lane(), ["a", "b", "a", "b", "c"]
    asked = [GenerateRequest(rid=rid, text="") for rid in ids]
    for request in asked[:2]:
        lane.put(request)
    assert lane.began()
    assert [lane.withdraw(rid) for rid in "abc"] == [*asked[:2], None], "one is decoded, one not yet, one unknown"
    for request in asked[2:]:
        lane.put(request)
    for _ in asked[2:]:
        lane.goes_on.release()
        assert lane.began()
    lane.goes_on.release()
    lane.close()
    lane._thread.join(PATIENCE)
    assert lane.seen == asked[2:]
    assert not lane.begun.acquire(blocking=False), "nobody waited for what was withdrawn before its turn"
    assert lane.withdraw("a") is None
