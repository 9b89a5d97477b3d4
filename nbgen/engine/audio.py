"""Decodes a sound file to samples at a model's rate, within limits. Needs `nbgen[audio]`.

Decoding may hang for ever or crash the process: `media_decoder` does it in another process.
"""

import io
from importlib.util import find_spec

import numpy as np

from nbgen.engine import sound_file
from nbgen.engine.media_file import decoding
from nbgen.errors import InvalidRequest

MAX_SECONDS = 600
#: Frames read at once, so that a header with a false length costs no memory.
READ_FRAMES = 2**18


def available() -> bool:
    """Whether the libraries that decode and resample are installed."""
    return find_spec("soundfile") is not None and find_spec("soxr") is not None


def decode(data: memoryview, rate: int, place: str) -> np.ndarray:
    """Mono float32 samples at `rate` Hz: the mean of the channels, resampled. Raises InvalidRequest."""
    with decoding(data, "audio", place, sound_file.FORMATS):
        sound_file.check(data)
        samples, own = _read(data, place)
    if own != rate:
        import soxr

        samples = soxr.resample(samples, own, rate)
    if not len(samples):
        raise InvalidRequest(f"{place} has no samples at {rate} Hz", field="audio_data")
    return samples


def _read(data: memoryview, place: str) -> tuple[np.ndarray, int]:
    """Mono samples, and the file's rate."""
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        sound_file.check_opened(file.subtype)
        _check_length(file.frames, file.samplerate, place)
        parts, count = [], 0
        while len(part := file.read(READ_FRAMES, dtype="float32", always_2d=True)):
            count += len(part)
            _check_length(count, file.samplerate, place)
            parts.append(part.mean(axis=1))
        return np.concatenate(parts) if parts else np.empty(0, np.float32), file.samplerate


def _check_length(frames: int, rate: int, place: str) -> None:
    if frames > MAX_SECONDS * rate:
        raise InvalidRequest(f"{place} lasts {frames / rate:.0f} s; at most {MAX_SECONDS} s", field="audio_data")
