"""Decodes image, sound and video files in a process of its own, with limited memory and time."""

from __future__ import annotations

import math
import threading
from typing import TypeVar

import numpy as np
from PIL import Image

from nbgen.engine import image, video
from nbgen.engine.media_worker import FIELDS, Decoded, DecodedVideo, File, ImageFile, Refused, SoundFile, VideoFile
from nbgen.engine.worker_process import WorkerProcess
from nbgen.errors import InternalError, InvalidRequest

D = TypeVar("D", Decoded, DecodedVideo)

SECONDS = 10.0
MEMORY_BYTES = 2 * 2**30
#: glibc's options to keep one image's memory for the next, or each page costs a fault again (7 of 12 ms a megapixel).
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(2**26), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


class MediaDecoder:
    """Started at the first file, and kept for the next ones."""

    def __init__(self, *, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._process = WorkerProcess("nbgen.engine.media_worker", str(memory_bytes), environment=KEEPING)
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._lock = threading.Lock()

    def image(self, data: memoryview, place: str) -> Image.Image:
        """The image in RGB, upright. `place` names it to whoever sent it. Raises InvalidRequest and Unavailable."""
        found = self._decode(ImageFile(data, place), Decoded)
        size = (found.width, found.height)
        if min(size) < 1 or found.width * found.height > image.MAX_PIXELS or len(found.data) != 3 * size[0] * size[1]:
            raise InternalError(f"the decoder gave {len(found.data)} bytes for {size[0]} x {size[1]} pixels")
        return Image.frombytes("RGB", size, found.data)

    def sound(self, data: memoryview, rate: int, place: str) -> np.ndarray:
        """Mono float32 samples at `rate` Hz. Raises InvalidRequest and Unavailable."""
        return np.frombuffer(self._decode(SoundFile(data, place, rate), Decoded).data, np.float32).copy()

    def video(self, data: memoryview, sampling: video.Sampling, place: str) -> video.Frames:
        """Frames of the video in RGB, upright. Raises InvalidRequest and Unavailable."""
        found = self._decode(VideoFile(data, place, sampling), DecodedVideo)
        shape = (len(found.indices), found.height, found.width, 3)
        if min(shape) < 1 or len(found.data) != math.prod(shape) or len(found.data) > 3 * video.MAX_PIXELS:
            raise InternalError(f"the decoder gave {len(found.data)} bytes for frames {shape}")
        pixels = np.frombuffer(found.data, np.uint8).reshape(shape)
        return video.Frames(pixels, found.indices, found.total, found.fps)

    def close(self) -> None:
        """End the process, and what it decodes."""
        if not self._lock.acquire(blocking=False):
            self._process.interrupt()
            return
        try:
            self._process.kill()
        finally:
            self._lock.release()

    def _decode(self, file: File, kind: type[D]) -> D:
        field = FIELDS[type(file)]
        label = f"{file.place} ({len(file.data)} bytes)"
        with self._lock:
            if not self._process.begun:
                self._process.begin()
            try:
                answer = self._process.ask(file, kind | Refused, self._seconds)  # type: ignore[arg-type]  # a union
            except TimeoutError:
                words = f"{label} takes longer than {self._seconds:g} s to decode: send it smaller"
                raise InvalidRequest(words, field=field) from None
            except EOFError:
                words = f"{label} cannot be decoded within {self._memory_bytes >> 20} MiB: it is damaged, or too large"
                raise InvalidRequest(words, field=field) from None
        if isinstance(answer, Refused):
            raise InvalidRequest(answer.message, field=answer.field)
        return answer
