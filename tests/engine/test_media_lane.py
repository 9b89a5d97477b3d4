"""Who sends images holds nobody up, and may change their mind."""

import threading
from collections.abc import Iterator

import pytest

from nbgen.engine.media_lane import MediaLane
from nbgen.engine_state import EngineReady
from nbgen.messages import AbortRequest, GenerateRequest
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


def test_an_image_that_is_aborted_at_once_is_answered(peer: Peer) -> None:
    params = SamplingParams(max_new_tokens=400, ignore_eos=True)
    peer.send(GenerateRequest(rid="c", text="<image>", media=media(picture(1, 1500, 1500)), params=params))
    peer.send(AbortRequest(rid="c"))
    (*_, last) = peer.outputs("c")
    assert last.finish_reason.type == "abort"


def test_what_ends_a_request_waits_behind_it() -> None:
    decoded, done, seen = threading.Event(), threading.Event(), []

    def admit(request: GenerateRequest) -> None:
        decoded.wait(PATIENCE)
        seen.append(request)

    def abort(item: AbortRequest) -> None:
        seen.append(item)
        done.set()

    lane = MediaLane(admit, abort)
    request, end = GenerateRequest(rid="a", text=""), AbortRequest(rid="a")
    lane.put(request)
    assert (lane.holds("a"), lane.holds("b")) == (True, False)
    lane.put(end)
    assert seen == []
    decoded.set()
    assert done.wait(PATIENCE)
    assert seen == [request, end]
    assert not lane.holds("a")
    lane.close()
