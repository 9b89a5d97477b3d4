"""Who sends images holds nobody up, and may change their mind."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from nbgen.engine.media_lane import MediaLane
from nbgen.engine_state import EngineReady
from nbgen.messages import AbortRequest, GenerateOutput, GenerateRequest, StepOutputs
from nbgen.sampling_params import SamplingParams
from tests.conftest import PATIENCE
from tests.engine.multimodal import save
from tests.engine.test_images import media, picture
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


class Lane(MediaLane):
    """Admits a request when it is told to; those that were handed on are `seen`, in their order."""

    def __init__(self) -> None:
        self.seen: list[GenerateRequest] = []
        self.begun, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)
        super().__init__(self._decode)

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
