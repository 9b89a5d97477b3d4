"""Decodes some frames of a video file, evenly spaced, within limits. Needs `nbgen[video]`.

Only MP4, QuickTime, Matroska and WebM are opened, nothing outside the file, and only with the decoders named here.
A hostile file may hang or crash the process that decodes it: `media_decoder` does this in another process.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from nbgen.engine import image
from nbgen.engine.media_file import decoding
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_FRAMES

if TYPE_CHECKING:
    import av
    import numpy as np
    from av.container import InputContainer
    from av.video.stream import VideoStream

FIELD = "video_data"
MAX_SECONDS = 600
#: The most pixels of all frames that are taken, together.
MAX_PIXELS = 50_000_000
CODECS = ("h264", "hevc", "vp8", "vp9", "av1")
#: FFmpeg's names of the decoders that may be used; a codec may have several.
DECODERS = (*CODECS, "libdav1d", "libvpx", "libvpx-vp9")
#: For each format: the offset and bytes that identify a file, and FFmpeg's name of the format.
BEGINNINGS = ((4, b"ftyp", "mov"), (4, b"moov", "mov"), (4, b"mdat", "mov"), (0, b"\x1aE\xdf\xa3", "matroska"))
THREADS = 4
#: Times are rounded, in some formats to milliseconds: a declared frame rate this near to the measured one is right.
SAME_RATE = 0.01


class Sampling(msgspec.Struct, frozen=True):
    """How many frames are taken: `frames`, or `fps` in a second, from `least` to `most`; always a multiple of `step`.

    If they have more than `pixels` together, they are made smaller.
    """

    fps: float = 2.0
    frames: int | None = None
    least: int = 4
    most: int = MAX_FRAMES
    step: int = 1
    pixels: int = MAX_PIXELS

    def indices(self, total: int, fps: float) -> list[int]:
        """Which of `total` frames, `fps` in a second, are taken: the first of each equal share, as in transformers."""
        wanted = self.frames or max(total / fps * self.fps, self.least)
        count = int(min(wanted, self.most, MAX_FRAMES, total))
        count = max(count // self.step * self.step, min(self.step, total))
        return [index * total // count for index in range(count)]


class Frames(NamedTuple):
    """`pixels` `[time, height, width, 3]` of the frames at `indices` among `total`, which come `fps` in a second."""

    pixels: np.ndarray
    indices: list[int]
    total: int
    fps: float


def available() -> bool:
    """Whether the library that decodes is installed."""
    return find_spec("av") is not None


def decode(data: memoryview, sampling: Sampling, place: str) -> Frames:
    """Frames in RGB, upright. `place` names the file to whoever sent it. Raises InvalidRequest."""
    with decoding(data, "video", place, "MP4, QuickTime, Matroska or WebM"):
        with _opened(data) as container:
            stream = _stream(container, place)
            times = sorted(p.pts for p in container.demux(stream) if p.pts is not None and not p.is_discard)
            fps = _rate(times, stream, place)
        indices = sampling.indices(len(times), fps)
        with _opened(data) as container:
            stream = _stream(container, place)
            size = _size((stream.width, stream.height), sampling.pixels // len(indices))
            pixels = _pixels(container.decode(stream), [times[index] for index in indices], size)
        return Frames(pixels, indices, len(times), fps)


def _opened(data: memoryview) -> InputContainer:
    import av

    form = next(form for start, begins, form in BEGINNINGS if data[start : start + len(begins)] == begins)
    options = {"codec_whitelist": ",".join(DECODERS), "protocol_whitelist": "none"}
    return av.open(io.BytesIO(data), mode="r", format=form, container_options=options, io_open=_refuse)


def _refuse(*_: Any) -> None:
    """A video file may refer to other files. None of these may be opened."""
    raise PermissionError


def _stream(container: InputContainer, place: str) -> VideoStream:
    """The file's first video stream with a known codec."""
    if not container.streams.video:
        raise InvalidRequest(f"{place} has no pictures: it is a sound", field=FIELD)
    known = [each for each in container.streams.video if _codec(each) in CODECS]
    if not known:
        raise InvalidRequest(
            f"{place} is encoded as {_codec(container.streams.video[0])}; these are decoded: {', '.join(CODECS)}",
            field=FIELD,
        )
    stream = known[0]
    image.check_size((stream.width, stream.height), place, FIELD)
    stream.codec_context.options = {"max_pixels": str(image.MAX_PIXELS)}
    stream.codec_context.thread_type, stream.codec_context.thread_count = "AUTO", THREADS
    return stream


def _codec(stream: VideoStream) -> str:
    context = stream.codec_context
    return "unknown" if context is None else context.codec.canonical_name


def _rate(times: list[int], stream: VideoStream, place: str) -> float:
    """The frame rate of frames at these times, in frames a second."""
    seconds = float((times[-1] - times[0]) * (stream.time_base or 0))
    if seconds > MAX_SECONDS:
        raise InvalidRequest(f"{place} lasts {seconds:.0f} s; at most {MAX_SECONDS} s", field=FIELD)
    measured, said = (len(times) - 1) / seconds if seconds > 0 else 1.0, float(stream.average_rate or 0)
    return said if abs(said - measured) < SAME_RATE * measured else measured


def _pixels(frames: Iterator[av.VideoFrame], times: list[int], size: tuple[int, int]) -> np.ndarray:
    """The frames at these times; if there is none at a time, the next one."""
    import numpy as np

    found: list[np.ndarray] = []
    for frame in frames:
        if frame.pts is None or frame.pts < times[len(found)]:
            continue
        pixels = _upright(frame, size)
        found += [pixels] * sum(time <= frame.pts for time in times[len(found) :])
        if len(found) == len(times):
            break
    return np.stack(found + found[-1:] * (len(times) - len(found)))


def _size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """The size, reduced to at most about so many pixels."""
    shrink = min(1.0, math.sqrt(pixels / math.prod(size)))
    return max(1, int(size[0] * shrink)), max(1, int(size[1] * shrink))


def _upright(frame: av.VideoFrame, size: tuple[int, int]) -> np.ndarray:
    """The frame in RGB, turned upright: the rotation of the camera is stored beside the pixels."""
    import numpy as np

    smoothly = None if size == (frame.width, frame.height) else "AREA"
    pixels = frame.reformat(*size, format="rgb24", interpolation=smoothly).to_ndarray()
    return np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90)))
