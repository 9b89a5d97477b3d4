"""Images, sounds and videos as parts of a message.

Takes what people have in notebooks: files, bytes, PIL images, arrays, figures, IPython's display objects. Knows nothing
of servers.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
import sys
import wave
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_BYTES, MediaType
from nbgen.notebook.arrays import as_array, as_bytes, as_samples

Part = dict[str, Any]
Content = str | list[Part]
Binary = bytes | bytearray | memoryview

_ADDRESS = re.compile(r"(https?://|data:(image|audio|video)/)", re.IGNORECASE)
#: The first bytes of the file types that browsers and the server know.
_BEGINNINGS = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"\xff\xfa": "audio/mpeg",
    b"\xff\xf3": "audio/mpeg",
    b"\xff\xf2": "audio/mpeg",
    b"\x1aE\xdf\xa3": "video/webm",
}
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
#: Longer ones are shown by their beginning: they may be a whole image in base64.
LONG_NAME = 255
#: The types of parts other than text, and the words that stand for them where they cannot be shown.
KINDS = {"image_url": "image", "audio_url": "audio", "input_audio": "audio", "video_url": "video"}


def image_part(image: Any) -> Part:
    """An image as OpenAI's API takes it. Raises InvalidRequest for anything else."""
    return {"type": "image_url", "image_url": {"url": _url(image, "image")}}


def audio_part(sound: Any) -> Part:
    """A sound as SGLang's API takes it. Raises InvalidRequest for anything else."""
    return {"type": "audio_url", "audio_url": {"url": _url(sound, "audio")}}


def video_part(video: Any) -> Part:
    """A video as SGLang's API takes it, frames as JPEG files in one URL. Raises InvalidRequest for anything else."""
    frames, fps = _frames(video)
    if not frames:
        return {"type": "video_url", "video_url": {"url": _url(video, "video")}}
    files = [_jpeg(frame) for frame in frames]
    if (size := sum(map(len, files))) > MAX_BYTES["video"]:
        raise InvalidRequest(
            f"the video's {len(files)} frames have {size} bytes; at most {MAX_BYTES['video']}: send fewer"
        )
    url = "data:video/jpeg;base64," + ",".join(base64.b64encode(file).decode() for file in files)
    return {"type": "video_url", "video_url": {"url": url, **({} if fps is None else {"fps": fps})}}


def media_parts(images: Any = None, audio: Any = None, videos: Any = None) -> list[Part]:
    """The parts of images, videos and sounds: lists of them, or one alone."""
    return [
        *map(image_part, _listed(images)),
        *map(video_part, (videos,) if any(_frames(videos)) else _listed(videos)),
        *map(audio_part, _listed(audio)),
    ]


def with_media(messages: list[dict[str, Any]], parts: list[Part]) -> list[dict[str, Any]]:
    """The messages with images, videos and sounds before the text of the last one, which has to be a user's."""
    if not parts:
        return messages
    if messages[-1]["role"] != "user":
        raise InvalidRequest("images, videos and audio go with a question: the last message has to be a user's")
    content = messages[-1]["content"]
    text = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*messages[:-1], {"role": "user", "content": [*parts, *text]}]


def is_content(content: Any) -> bool:
    """Whether a message may have this content: text, or a list of parts."""
    if isinstance(content, str):
        return True
    return isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") for part in content)


def as_text(content: Content) -> str:
    """The content as text, with words such as `[image]` in place of media."""
    if isinstance(content, str):
        return content
    return "\n".join(
        part.get("text", "") if part["type"] == "text" else f"[{KINDS.get(part['type'], 'file')}]" for part in content
    )


def text_of(content: Content) -> str:
    """The content's text, without media."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def data_url(data: bytes, type: str) -> str:
    """A data URL that holds a file's bytes."""
    return f"data:{type};base64,{base64.b64encode(data).decode()}"


def _listed(given: Any) -> Iterable[Any]:
    """The media as a list; a single one, also an array, which is itself iterable, is a list of one."""
    if given is None:
        return ()
    single = not isinstance(given, Sequence) or isinstance(given, str | Binary) or _is_samples(given)
    return (given,) if single else given


def _url(given: Any, kind: MediaType) -> str:
    address = given if isinstance(given, str) else getattr(given, "url", None)  # IPython's display objects have one
    if isinstance(address, str) and _ADDRESS.match(address):
        return address
    data = _bytes(given, kind)
    _check_size(len(data), kind)
    return data_url(data, _type(data))


def _check_size(size: int, kind: MediaType) -> None:
    if not 1 <= size <= MAX_BYTES[kind]:
        raise InvalidRequest(f"the {kind} has {size} bytes; 1 to {MAX_BYTES[kind]} can be sent")


def _type(data: bytes) -> str:
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "application/octet-stream")
    if data[4:8] == b"ftyp":
        return "video/quicktime" if data[8:10] == b"qt" else "video/mp4"
    return next((type for start, type in _BEGINNINGS.items() if data.startswith(start)), "application/octet-stream")


def _bytes(given: Any, kind: MediaType) -> bytes:
    if isinstance(given, Binary):
        return bytes(given)
    if isinstance(given, str | Path):
        return _file(given, kind)
    if isinstance(displayed := getattr(given, "data", None), bytes):  # IPython.display's Image and Audio
        return displayed
    if kind == "video" and isinstance(path := getattr(given, "filename", None), str):  # IPython.display's Video
        return _file(path, kind)
    made = _image(given) if kind == "image" else _sound(given) if kind == "audio" else None
    if made is None:
        takes = {
            "image": "a path, bytes, a PIL image, an array, a figure or a data URL",
            "audio": "a path, bytes, a pair of samples and their rate, or a data URL",
            "video": "a path, bytes, an array [time, height, width, 3], a list of images, a pair of these and their "
            "number in a second, or a data URL",
        }
        raise InvalidRequest(f"{type(given).__name__} is no {kind}: give {takes[kind]}")
    return made


def _file(name: str | Path, kind: MediaType) -> bytes:
    path, shown, advice = Path(os.path.expanduser(name)), repr(str(name)), ""
    if len(shown) > LONG_NAME:
        shown, advice = f"{shown:.40}…'", f"; base64 goes into a data URL, after data:{kind}/…;base64,"
    try:
        if not path.is_file():
            raise InvalidRequest(f"there is no file {shown} to take the {kind} from{advice}")
        _check_size(path.stat().st_size, kind)  # before all of it is in memory
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{shown} cannot be read: {error.strerror}{advice}") from None


def _image(given: Any) -> bytes | None:
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(given, pillow.Image):
        return _png(given)
    if hasattr(given, "savefig"):  # a figure of matplotlib
        given.savefig(file := io.BytesIO(), format="png", bbox_inches="tight")
        return file.getvalue()
    if hasattr(given, "figure") and hasattr(given.figure, "savefig"):  # its axes
        return _image(given.figure)
    return _png(_pixels(as_array(given))) if hasattr(given, "__array__") else None


def _pixels(array: np.ndarray) -> Any:
    """An image from an array `[height, width]` or `[height, width, 1, 3 or 4]` of bytes or fractions from 0 to 1."""
    from PIL import Image

    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if not fits or not array.size or array.dtype.kind not in "uifb":
        raise InvalidRequest(
            f"an array {list(array.shape)} of {array.dtype} is no image: give [height, width] or [height, width, 3]"
        )
    pixels = as_bytes(array)
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)


def _frames(given: Any) -> tuple[Sequence[Any], float | None]:
    """A video's frames, from `[time, height, width, 1, 3 or 4]` or images, and frames per second if given in a pair."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Real):
        frames, fps = _frames(given[0])[0], float(given[1])
        if not frames or not 0 < fps < math.inf:
            raise InvalidRequest("a video is (frames, fps): an array [time, height, width, 3] or images, and a number")
        return frames, int(fps) if isinstance(given[1], Integral) else fps
    if isinstance(given, Sequence) and given and all(map(_is_image, given)):
        return given, None
    if hasattr(given, "__array__") and np.ndim(given) == 4:
        return list(as_array(given)), None
    return (), None


def _is_image(given: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(given, pillow.Image):
        return True
    return hasattr(given, "__array__") and np.ndim(given) in (2, 3)


def _jpeg(frame: Any) -> bytes:
    image = _usual(frame) if hasattr(frame, "convert") else _pixels(as_array(frame))
    image.convert("RGB").save(file := io.BytesIO(), format="JPEG", quality=95)
    return file.getvalue()


def _png(image: Any) -> bytes:
    _usual(image).save(file := io.BytesIO(), format="PNG")
    return file.getvalue()


def _usual(image: Any) -> Any:
    """An image of bytes. One of wider numbers is converted like an array, for Pillow would clip the numbers."""
    if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        return image
    return _pixels(np.asarray(image)) if image.mode[0] in "IF" else image.convert("RGB")


def _is_samples(given: Any) -> bool:
    """Whether this is a pair of samples and their rate."""
    return (
        isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "__array__") and isinstance(given[1], Real)
    )


def _sound(given: Any) -> bytes | None:
    """A WAV file of `(samples, rate)`: `[time]` or `[channels, time]`, floats from -1 to 1 or 16-bit integers."""
    if not _is_samples(given):
        return None
    samples, rate = np.atleast_2d(as_array(given[0])), given[1]
    fits = samples.ndim == 2 and samples.dtype.kind in "uif" and len(samples) <= 16
    if not fits or not 0 < rate <= 384_000 or rate % 1:
        raise InvalidRequest("a sound is (samples, rate): samples [time] or [channels, time], and Hz, a whole number")
    return wav(as_samples(samples).T, int(rate))


def wav(samples: np.ndarray, rate: int) -> bytes:
    """A 16-bit WAV file of samples `[time]` or `[time, channels]` from -32768 to 32767, at `rate` Hz."""
    with wave.open(file := io.BytesIO(), "wb") as written:
        written.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(samples.clip(-32_768, 32_767).astype("<i2").tobytes())
    return file.getvalue()
