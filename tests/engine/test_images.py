"""What is written about images is what transformers' own float32 `generate` writes, alone and beside anything else."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForMultimodalLM

from nbgen.engine import processor_folder
from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateRequest, Media
from nbgen.sampling_params import SamplingParams
from tests.engine.conftest import build, generate, ids
from tests.engine.multimodal import MULTIMODAL, save

NEW_TOKENS = 8
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
PLAIN = GenerateRequest(rid="plain", text="Nothing to see here, only words and more words.", params=PARAMS)


def picture(seed: int, width: int = 90, height: int = 60) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def media(*images: Image.Image) -> list[Media]:
    def png(image: Image.Image) -> memoryview:
        image.save(buffer := io.BytesIO(), "PNG")
        return memoryview(buffer.getvalue())

    return [Media(type="image", data=png(image)) for image in images]


class Reference:
    """transformers' own greedy continuations in float32, one prompt at a time."""

    def __init__(self, folder: Path) -> None:
        self.processor = processor_folder.load(folder)
        self.model = AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def inputs(self, text: str, images: list[Image.Image]) -> Any:
        return self.processor(text=[text], images=images or None, return_tensors="pt")

    def answer(self, text: str, images: list[Image.Image]) -> list[int]:
        return self.generate(self.inputs(text, images))

    def generate(self, inputs: Any) -> list[int]:
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return self.model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :].tolist()


class Served:
    """A family's engine, and its reference."""

    def __init__(self, name: str, folder: Path) -> None:
        self.family = MULTIMODAL[name]
        self.folder = save(folder, name)
        self.reference = Reference(self.folder)
        self.assembly: Assembly = build(self.folder, prefill_chunk=16)

    def text(self, *words: str) -> str:
        """The words with a placeholder between each two."""
        return self.family.placeholder.join(words)

    def answers(self, *requests: GenerateRequest) -> list[list[int]]:
        outputs = generate(self.assembly, list(requests))
        return [ids(outputs[request.rid]) for request in requests]


@pytest.fixture(scope="module", params=[name for name, family in MULTIMODAL.items() if family.type == "image"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("images") / request.param)


def test_images_are_described_as_transformers_does(served: Served) -> None:
    one, two, other = picture(1), picture(2, 70, 80), picture(3)
    cases = [
        (served.text("What is ", "? Say."), [one]),
        (served.text("", " and ", " differ how?"), [one, two]),
        (served.text("What is ", "? Say."), [other]),
    ]
    expected = [served.reference.answer(text, images) for text, images in cases]
    assert len({tuple(answer) for answer in expected}) == 3, "the images make no difference: nothing was tested"
    requests = [
        GenerateRequest(rid=f"r{i}", text=text, media=media(*images), params=PARAMS)
        for i, (text, images) in enumerate(cases)
    ]
    plain = served.reference.answer(PLAIN.text, [])
    assert (served.assembly.model.tier, served.assembly.model.media) == (served.family.tier, ["image"])
    assert served.answers(requests[0]) == expected[:1], "alone"
    assert served.answers(PLAIN, *requests) == [plain, *expected], "with text and others in one batch"
    assert [served.answers(request)[0] for request in requests] == expected, "on prefix hits"
