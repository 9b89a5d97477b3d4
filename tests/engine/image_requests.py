"""Small pictures, and families that see: their engines, and transformers' own answers beside them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForMultimodalLM

from nbgen.engine import processor_folder
from nbgen.engine.assembly import Assembly
from nbgen.engine.media_encoder import placeholders
from nbgen.messages import GenerateRequest, Media, Tensor
from nbgen.sampling_params import SamplingParams
from tests.conftest import at_least
from tests.engine import torchvision_families
from tests.engine.conftest import build, generate, ids
from tests.engine.multimodal import MULTIMODAL, save

NEED_TORCHVISION = torchvision_families.IMAGES.keys() | torchvision_families.VIDEOS.keys()
IMAGES = [
    name
    for name, family in MULTIMODAL.items()
    if family.type == "image" and at_least("transformers", family.since) and name not in NEED_TORCHVISION
]
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
        self._known: dict[tuple[object, ...], list[int]] = {}

    def inputs(self, text: str, images: list[Image.Image]) -> Any:
        return self.processor(text=[text], images=images or None, return_tensors="pt")

    def answer(self, text: str, images: list[Image.Image]) -> list[int]:
        asked = (text, *((image.size, image.tobytes()) for image in images))
        if asked not in self._known:
            self._known[asked] = self.generate(self.inputs(text, images))
        return self._known[asked]

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

    @property
    def place(self) -> int:
        """The id that stands where an image's features go."""
        return next(token for token, kind in placeholders(self.reference.model.config).items() if kind == "image")

    def text(self, *words: str) -> str:
        """The words with a placeholder between each two."""
        return self.family.placeholder.join(words)

    def answers(self, *requests: GenerateRequest) -> list[list[int]]:
        outputs = generate(self.assembly, list(requests))
        return [ids(outputs[request.rid]) for request in requests]


def tensors(values: dict[str, torch.Tensor]) -> list[Tensor]:
    """As a client sends them."""
    types = {torch.float32: "FP32", torch.int64: "INT64", torch.int32: "INT32", torch.bool: "BOOL"}
    return [
        Tensor(
            name=name, datatype=types[value.dtype], shape=tuple(value.shape), data=memoryview(value.numpy().tobytes())
        )
        for name, value in values.items()
    ]
