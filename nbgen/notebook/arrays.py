"""Arrays of any library as numpy's, and as the numbers of images and sounds.

The type of the numbers tells their range; numbers that do not fit it are refused rather than clipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbgen.errors import InvalidRequest

Array = np.ndarray[Any, Any]

#: How far fractions may exceed their range: an image's by rounding errors, a sound's after mixing or amplifying.
OFF_PIXEL, OFF_SAMPLE = 0.01, 16.0


def as_array(value: Any) -> Array:
    """An array of numpy's. torch's tensors may require gradients; bfloat16, which numpy lacks, becomes float32."""
    if hasattr(value, "detach"):  # torch's, known without importing it
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


def as_bytes(pixels: Array) -> Array:
    """The numbers of an image as bytes: floats are fractions from 0 to 1, unsigned integers use their type's range,
    other integers are from 0 to 255. Raises InvalidRequest for numbers out of range.
    """
    if pixels.dtype.kind == "f":
        pixels = np.nan_to_num(pixels.astype(float))
        words = "an image's fractions are from 0 to 1", "divide bytes by 255, or clip what is a little off"
        _check(pixels, -OFF_PIXEL, 1 + OFF_PIXEL, *words)
    if pixels.dtype.kind in "fb":
        return (pixels.astype(float).clip(0, 1) * 255).round().astype(np.uint8)
    if pixels.dtype.kind == "u":
        pixels = pixels // (np.iinfo(pixels.dtype).max // 255)
    _check(pixels, 0, 255, "an image's integers are bytes, from 0 to 255", "give uint16, or fractions of 1, for more")
    return pixels.astype(np.uint8)


def as_samples(sound: Array) -> Array:
    """The numbers of a sound as 16-bit ones: floats are fractions from -1 to 1; integers are of 16 bits, or use their
    type's range. Raises InvalidRequest for numbers far out of range.
    """
    if sound.dtype.kind == "f":
        sound = np.nan_to_num(sound)
        words = "a sound's fractions are from -1 to 1", "divide numbers of 16 bits by 32768, or give them as int16"
        _check(sound, -OFF_SAMPLE, OFF_SAMPLE, *words)
        return sound.clip(-1, 1) * 32_767
    bits = 8 * sound.itemsize
    if sound.dtype.kind == "u" and bits < 64:  # silence is in the middle
        return _of_16_bits(sound.astype(np.int64) - 2 ** (bits - 1), bits)
    if bits == 8 or (bits == 32 and (np.abs(sound.astype(np.int64)) > 2**15).any()):
        return _of_16_bits(sound.astype(np.int64), bits)
    _check(sound, -(2**15), 2**15, "a sound's integers have 16 bits", "give those of 32 bits as int32")
    return sound


def _of_16_bits(sound: Array, bits: int) -> Array:
    return sound << 16 - bits if bits < 16 else sound >> bits - 16


def _check(numbers: Array, low: float, high: float, meant: str, advice: str) -> None:
    """Raise InvalidRequest if any of the numbers is out of range."""
    least, most = (numbers.min(), numbers.max()) if numbers.size else (low, high)
    if least < low or most > high:
        raise InvalidRequest(f"{meant}, and these go from {least:g} to {most:g}: {advice}")
