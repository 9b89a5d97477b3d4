"""The process that decodes files of clients, `python -m nbgen.engine.media_worker MEMORY`: images, sounds and videos.

Decoders are large, old and written in C: on a hostile file one may take for ever, use up its memory or crash, and only
this process ends. It also ends when its input does. Knows no requests, and no torch.
"""

from __future__ import annotations

import contextlib
import sys

import msgspec

from nbgen.engine import image, video
from nbgen.engine.process import live_and_die_with_parent
from nbgen.engine.worker_channel import Pipes, limit_memory
from nbgen.engine.worker_process import Started
from nbgen.errors import InvalidRequest


class ImageFile(msgspec.Struct, tag=True):
    """To be decoded; `place` names it to whoever sent it."""

    data: memoryview
    place: str


class SoundFile(msgspec.Struct, tag=True):
    """To be decoded, and resampled to `rate` Hz."""

    data: memoryview
    place: str
    rate: int


class VideoFile(msgspec.Struct, tag=True):
    """To be decoded, as far as `sampling` takes frames."""

    data: memoryview
    place: str
    sampling: video.Sampling


class Decoded(msgspec.Struct, tag=True):
    """Pixels, RGB of one byte each in rows of the `width`; or float32 samples."""

    data: memoryview
    width: int = 0
    height: int = 0


class DecodedVideo(msgspec.Struct, tag=True):
    """Pixels of one frame after the other; the other members are those of `video.Frames`."""

    data: memoryview
    width: int
    height: int
    indices: list[int]
    total: int
    fps: float


class Refused(msgspec.Struct, tag=True):
    """Why it is not decoded."""

    message: str
    field: str | None


File = ImageFile | SoundFile | VideoFile
FIELDS: dict[type[File], str] = {ImageFile: "image_data", SoundFile: "audio_data", VideoFile: "video_data"}


def main() -> None:
    live_and_die_with_parent()
    pipes = Pipes.of_worker()
    memory_bytes = int(sys.argv[1])
    limit_memory(memory_bytes)
    with contextlib.suppress(EOFError, OSError):
        pipes.send(Started())
        while True:
            pipes.send(_answer(pipes.receive(File), memory_bytes))  # type: ignore[arg-type]  # a union


def _answer(file: File, memory_bytes: int) -> Decoded | DecodedVideo | Refused:
    try:
        return _decoded(file)
    except InvalidRequest as error:
        return Refused(error.message, error.field)
    except MemoryError:
        words = f"{file.place} takes more than {memory_bytes >> 20} MiB to decode: send it smaller"
        return Refused(words, FIELDS[type(file)])


def _decoded(file: File) -> Decoded | DecodedVideo:
    if isinstance(file, ImageFile):
        picture = image.decode(file.data, file.place)
        return Decoded(memoryview(picture.tobytes()), *picture.size)
    if isinstance(file, VideoFile):
        found = video.decode(file.data, file.sampling, file.place)
        _, height, width, _ = found.pixels.shape
        return DecodedVideo(found.pixels.data.cast("B"), width, height, found.indices, found.total, found.fps)
    from nbgen.engine import audio  # numpy and what it needs, for sounds alone

    return Decoded(audio.decode(file.data, file.rate, file.place).data.cast("B"))


if __name__ == "__main__":
    main()
