"""What is written about sounds is what transformers' own `generate` writes; sounds are decoded within limits."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from transformers import AutoModelForMultimodalLM

from nbgen.engine import audio, processor_folder
from nbgen.engine.assembly import Assembly
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, ContentPart, GenerateRequest, Media
from nbgen.sampling_params import SamplingParams
from tests.conftest import at_least
from tests.engine.conftest import build, generate, ids
from tests.engine.multimodal import MULTIMODAL, save

SOUNDS = [
    name for name, family in MULTIMODAL.items() if family.type == "audio" and at_least("transformers", family.since)
]
RATE = 16_000
NEW_TOKENS = 8
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
PLAIN = GenerateRequest(rid="plain", text="Nothing to hear here, only words.", params=PARAMS)


def sound(pitch: float, seconds: float = 0.5) -> np.ndarray:
    return np.sin(np.arange(int(seconds * RATE)) / RATE * pitch * 2 * np.pi).astype(np.float32) * 0.5


def media(samples: np.ndarray, rate: int = RATE, form: str = "WAV") -> Media:
    soundfile.write(buffer := io.BytesIO(), samples, rate, format=form, subtype="FLOAT" if form == "WAV" else None)
    return Media(type="audio", data=memoryview(buffer.getvalue()))


class Served:
    """A family's engine, and transformers' own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.family = MULTIMODAL[name]
        save(folder, name)
        self.processor = processor_folder.load(folder)
        self.model = AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.assembly: Assembly = build(folder, prefill_chunk=16)

    def expected(self, text: str, sounds: list[np.ndarray]) -> list[int]:
        arguments = {"audio": sounds, "sampling_rate": RATE} if sounds else {}
        return self.generate(self.processor(text=[text], return_tensors="pt", **arguments))

    def generate(self, inputs: Any) -> list[int]:
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return self.model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :].tolist()

    def answers(self, *requests: GenerateRequest) -> list[list[int]]:
        outputs = generate(self.assembly, list(requests))
        return [ids(outputs[request.rid]) for request in requests]


@pytest.fixture(scope="module", params=SOUNDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("audio") / request.param)


def test_sounds_are_described_as_transformers_does(served: Served) -> None:
    place = served.family.placeholder
    cases = [
        (f"What is {place}? Say.", [sound(440)]),
        (f"What is {place}? Say.", [sound(3000, 0.7)]),
        (f"{place} and {place} differ how?", [sound(440), sound(2000, 0.3)]),
    ]
    cases = cases if served.family.several else cases[:-1]
    expected = [served.expected(text, sounds) for text, sounds in cases]
    assert len({tuple(answer) for answer in expected}) == len(cases), (
        "the sounds make no difference: nothing was tested"
    )
    requests = [
        GenerateRequest(rid=f"r{i}", text=text, media=[media(each) for each in sounds], params=PARAMS)
        for i, (text, sounds) in enumerate(cases)
    ]
    assert "audio" in served.assembly.model.media
    assert served.answers(PLAIN, *requests) == [served.expected(PLAIN.text, []), *expected], "in one batch"
    assert [served.answers(request)[0] for request in requests] == expected, "one after the other, on prefix hits"


def test_a_chat_with_a_sound_goes_through_the_models_template(served: Served) -> None:
    parts = [ContentPart(type="audio"), ContentPart(type="text", text="What is it?")]
    message = ChatMessage(role="user", content=parts)
    request = GenerateRequest(rid="chat", messages=[message], media=[media(sound(440))], params=PARAMS)
    text = f"<|user|>{served.family.placeholder}What is it?<|end|><|assistant|>"
    assert served.answers(request) == [served.expected(text, [sound(440)])]


def test_a_sound_that_is_no_numbers_leaves_nothing_to_those_that_begin_alike(served: Served) -> None:
    text, broken = f"Now hear {served.family.placeholder}, and say.", sound(440)
    broken[100] = np.nan
    refused, next_one = (
        GenerateRequest(rid="alike", text=text, media=[media(each)], params=PARAMS) for each in (broken, sound(440))
    )
    reason = generate(served.assembly, [refused])["alike"][-1].finish_reason
    assert reason.status == 400
    assert "no finite numbers of these media" in reason.message
    assert served.answers(next_one) == [served.expected(text, [sound(440)])]


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_sound_becomes_mono_at_the_models_rate(form: str) -> None:
    stereo = np.stack([sound(440), np.zeros_like(sound(440))], axis=1)
    wide = np.repeat(stereo, 3, axis=0)  # the same sound at 48 kHz
    decoded = audio.decode(media(wide, 3 * RATE, form).data, RATE, "audio 1")
    assert decoded.dtype == np.float32
    assert abs(len(decoded) - len(stereo)) < 1200, "an MP3 has a frame or two of silence around it"
    assert np.abs(np.fft.rfft(decoded)).argmax() / len(decoded) * RATE == pytest.approx(440, abs=5)
    if form == "WAV":
        same = audio.decode(media(stereo).data, RATE, "audio 1")
        np.testing.assert_allclose(same, sound(440) / 2, atol=1e-6)


def test_what_is_no_sound_is_refused() -> None:
    whole = media(sound(440)).data
    with pytest.raises(InvalidRequest, match=r"audio 1 .* cannot be decoded"):
        audio.decode(whole[:20], RATE, "audio 1")
    with pytest.raises(InvalidRequest, match="lasts 601 s; at most 600 s"):
        audio.decode(media(np.zeros(601 * 1000), 1000, "FLAC").data, RATE, "audio 1")
    for empty, rate in ((np.zeros(0), RATE), (np.zeros(1), 12 * RATE)):
        with pytest.raises(InvalidRequest, match="no samples"):
            audio.decode(media(empty, rate).data, RATE, "audio 1")
