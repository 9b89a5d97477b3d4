"""Arrays of any type of number become images and sounds as they are meant, or are refused."""

import base64
import io
import json
import wave
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nbgen.errors import InvalidRequest
from nbgen.notebook.media import audio_part, image_part, media_parts, video_part
from tests.notebook.test_media import CLIP, RED, pixels, sent

GREY = np.linspace(0, 1, 64).reshape(8, 8)


def test_grey_images_of_wide_numbers_are_not_cut_off() -> None:
    wide = (GREY * 65_535).astype(np.uint16)
    for given in (wide, Image.fromarray(wide), Image.fromarray(GREY.astype(np.float32))):
        assert np.abs(pixels(image_part(given))[..., 0] - GREY * 255).max() <= 1
        (part,) = media_parts(videos=[given, given])
        frame = Image.open(io.BytesIO(base64.b64decode(part["video_url"]["url"].split(",")[1])))
        assert np.abs(np.asarray(frame)[..., 0] - GREY * 255).max() <= 9


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (RED.astype(float), "fractions are from 0 to 1, and these go from 0 to 255: divide bytes by 255"),
        (RED / 127.5 - 1, "go from -1 to 1"),
        (np.array([[0, np.inf]]), "fractions are from 0 to 1"),
        (RED.astype(int) * 257, "integers are bytes, from 0 to 255, and these go from 0 to 65535: give uint16"),
        (RED.astype(np.int16) - 1, "go from -1 to 254"),
        (Image.fromarray(RED[..., 0].astype(np.float32)), "divide bytes by 255"),
    ],
)
def test_an_image_out_of_range_is_refused_in_words(image: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        image_part(image)
    with pytest.raises(InvalidRequest, match=words):
        video_part([image, image])


def test_what_computing_has_left_a_little_off_is_no_reason_to_refuse() -> None:
    assert pixels(image_part(np.array([[1.001, -0.001, np.nan]])))[0, :, 0].tolist() == [255, 0, 0]


def read(part: dict[str, Any]) -> np.ndarray:
    """The samples of a sound's first channel, as fractions."""
    with wave.open(io.BytesIO(sent(part)[1])) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")[:: file.getnchannels()] / 32_768


TONE = np.sin(np.linspace(0, 20, 800)) / 2


@pytest.mark.parametrize(
    "samples",
    [
        (TONE * 2**31).astype(np.int32),
        (TONE * 2**15).astype(np.int32),
        (TONE * 2**15).astype(np.int64),
        (TONE * 2**15 + 2**15).astype(np.uint16),
        torch.tensor(TONE, requires_grad=True),
    ],
)
def test_samples_of_any_type_are_as_loud_as_they_are_meant(samples: Any) -> None:
    assert np.abs(read(audio_part((samples, 8000))) - TONE).max() < 1e-3


def test_samples_of_a_byte_are_loud_too() -> None:
    for samples in ((TONE * 127).astype(np.int8), (TONE * 127 + 128).astype(np.uint8)):
        assert np.abs(read(audio_part((samples, 8000))) - TONE).max() < 0.02


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (TONE * 2**15, "fractions are from -1 to 1, and these go from .*: divide numbers of 16 bits by 32768"),
        ((TONE * 2**31).astype(np.int64), "integers have 16 bits, .* as int32"),
        (np.array([0.5, np.inf]), "fractions are from -1 to 1"),
    ],
)
def test_a_sound_far_out_of_range_is_refused_in_words(samples: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        audio_part((samples, 8000))
    assert read(audio_part((TONE * 2.5, 8000))).max() > 0.99, "what is a little too loud is cut off"


@pytest.mark.parametrize("number", [np.int64(8000), np.float32(8000), 8000.0])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    assert audio_part((TONE, number)) == audio_part((TONE, 8000))
    (part,) = media_parts(videos=(CLIP, number))
    assert json.loads(json.dumps(part)) == part == video_part((CLIP, 8000))


@pytest.mark.parametrize("rate", [0, 8000.5, -1, float("nan"), 10**6])
def test_a_rate_that_no_sound_has_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidRequest, match="Hz, a whole number"):
        audio_part((TONE, rate))


def test_tensors_are_arrays() -> None:
    clip = torch.tensor(CLIP / 255, requires_grad=True)
    assert media_parts(videos=clip) == media_parts(videos=CLIP / 255)
    assert media_parts(videos=list(clip)) == media_parts(videos=list(CLIP / 255))
    with pytest.raises(InvalidRequest, match="frames, fps"):
        video_part((CLIP, float("inf")))
