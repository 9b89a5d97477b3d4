"""Models whose images or videos need torchvision, where that is installed: in a process and in engines that have it."""

import base64
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.machinery import PathFinder
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from transformers.utils.import_utils import is_torchvision_available

from nbgen.engine.lean_imports import TORCHVISION
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest
from tests.conftest import WITH_TORCHVISION
from tests.engine import test_images as of_images
from tests.engine import test_videos as of_videos
from tests.engine import torchvision_families
from tests.engine.image_requests import NEED_TORCHVISION, NEW_TOKENS, PARAMS, Served, media, picture
from tests.engine.multimodal import MULTIMODAL
from tests.server.conftest import Server
from tests.server.test_images import data_url, png

if PathFinder.find_spec(TORCHVISION) is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

pytestmark = pytest.mark.torchvision

#: transformers takes MiniMax M3's frames in some sizes alone.
SEE_VIDEOS = sorted(torchvision_families.OF_VIDEOS.keys() - {"minimax_m3_vl"})
#: In whose prompts a video's frames are images: no other embedding can be sent.
FRAMES_ARE_IMAGES = {"glm4v", "glm46v", "internvl", "smolvlm"}
#: transformers' own model fails at a video beside an image.
ALONE = {"glm4v", "glm46v", "smolvlm"}
IMAGES = [
    of_images.test_images_are_described_as_transformers_does,
    of_images.test_a_prefix_is_reused_for_the_same_image_only,
    of_images.test_samples_logprobs_and_preemption,
    of_images.test_a_chat_with_images_goes_through_the_models_template,
    of_images.test_ids_are_taken_with_one_placeholder_or_all,
    of_images.test_what_the_processor_made_is_taken,
    of_images.test_each_image_has_one_place,
]
EMBEDDED = of_videos.test_what_the_processor_made_or_is_embedded_is_taken
VIDEOS = [
    of_videos.test_frames_are_described_as_transformers_does,
    of_videos.test_what_is_no_video_is_refused,
    of_videos.test_a_file_is_described_as_its_frames_are,
]
TRIED = [
    *((name, test) for name in sorted(NEED_TORCHVISION) for test in IMAGES),
    *((name, test) for name in SEE_VIDEOS for test in VIDEOS),
    *((name, of_videos.test_beside_an_image_and_at_a_rate) for name in SEE_VIDEOS if name not in ALONE),
    *((name, EMBEDDED) for name in SEE_VIDEOS if name not in FRAMES_ARE_IMAGES),
]
CHAT = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True, "skip_special_tokens": False}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """One that has torchvision, which this one does without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WITH_TORCHVISION, "1")
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("families")))
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            assert pool.submit(is_torchvision_available).result()
            assert not is_torchvision_available()
            yield pool


@cache
def served(name: str) -> Served:
    return Served(name, Path(tempfile.mkdtemp()) / name)


def run(test: Callable[[Served], None], name: str) -> None:
    test(served(name))


@pytest.mark.parametrize(("name", "test"), TRIED, ids=lambda each: getattr(each, "__name__", each))
def test_as_transformers_does(name: str, test: Callable[[Served], None], process: ProcessPoolExecutor) -> None:
    process.submit(run, test, name).result()


def impossible_options() -> None:
    for options in ({"do_pad": False}, {"tile_size": 1}):
        item = msgspec.structs.replace(media(picture(1))[0], options=options)
        request = GenerateRequest(rid="x", text="<image>", media=[item], params=PARAMS)
        with pytest.raises(InvalidRequest, match="processor refuses this prompt, its media or their options"):
            served("lfm2_vl").answers(request)


def test_options_that_torch_refuses_are_refused(process: ProcessPoolExecutor) -> None:
    process.submit(impossible_options).result()


def ids_of_videos(name: str) -> None:
    model = served(name)
    made = of_videos.inputs(model, 1, 2, 3, 4)
    clip, prompt = of_videos.clip(1, 2, 3, 4), made["input_ids"][0].tolist()
    single = model.reference.processor.tokenizer.encode(of_videos.text_of(model))
    for ids in (single, prompt):
        request = GenerateRequest(rid="ids", input_ids=ids, media=[clip], params=PARAMS)
        assert model.answers(request) == [model.reference.generate(made)], ids


@pytest.mark.parametrize("name", SEE_VIDEOS)
def test_ids_are_taken_with_a_videos_placeholder_or_all(name: str, process: ProcessPoolExecutor) -> None:
    process.submit(ids_of_videos, name).result()


def folder_and_text(name: str, text: str, **media: Any) -> tuple[Path, str]:
    """The model's folder, and what transformers writes there about these media."""
    model = served(name)
    made = model.reference.processor(text=[text], return_tensors="pt", **media)
    said = model.reference.generate({key: value for key, value in made.items() if key != "video_metadata"})
    return model.folder, model.reference.processor.decode(said, skip_special_tokens=False)


def test_a_server_answers_about_images_and_videos(process: ProcessPoolExecutor, tmp_path: Path) -> None:
    def asked(name: str, place: str, part: dict[str, Any], **media: Any) -> None:
        chat = f"<|user|>{place}Say.<|end|><|assistant|>"
        folder, expected = process.submit(folder_and_text, name, chat, **media).result()
        content = [part, {"type": "text", "text": "Say."}]
        body = {"messages": [{"role": "user", "content": content}], **CHAT}
        answer = server.serving(folder).http.post("v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == expected, answer

    frames = [picture(seed) for seed in (1, 2, 3, 4)]
    url = f"data:video/jpeg;base64,{','.join(base64.b64encode(png(frame)).decode() for frame in frames)}"
    server = Server(tmp_path, "--dtype=float32", standby=True)
    try:
        image = {"type": "image_url", "image_url": {"url": data_url(frames[0])}}
        asked("lfm2_vl", MULTIMODAL["lfm2_vl"].placeholder, image, images=[frames[0]])
        video = {"type": "video_url", "video_url": {"url": url}}
        asked("llava_onevision", MULTIMODAL["llava_onevision"].video, video, videos=[np.stack(frames)])
        engines = [each.cmdline() for each in psutil.Process(server.process.pid).children()]
        assert [TORCHVISION] in [command[-1:] for command in engines], engines
    finally:
        server.stop()
    assert "Traceback" not in server.log.read_text()
