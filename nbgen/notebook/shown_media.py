"""Images, sounds and videos for the display of messages: pictures and players small enough for a notebook's file.

Knows parts of messages; nothing of servers or of where they are displayed.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import io
import re
import wave
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nbgen.notebook.media import KINDS, Part, data_url, wav

THUMBNAIL_PIXELS = 160
#: Frames of a video that is sent as images, side by side.
STRIP_FRAMES = 4
#: Most bytes of sounds and videos in one display: the notebook's file holds them once for each display.
SOUND_BYTES = 2**22
#: Lowest sample rate, in Hz, to which a long WAV file is reduced.
LOWEST_RATE = 8000
_FRAMES = re.compile(r"data:video/(?:jpeg|png|webp);base64,")
_VIDEO = re.compile(r"data:video/(?:mp4|webm);base64,[A-Za-z0-9+/]+=*")
_SOUND = re.compile(r"data:audio/(wav|mpeg|flac|ogg);base64,[A-Za-z0-9+/]+=*")
#: Sounds in OpenAI's parts name their format.
_FORMATS = {"wav": "wav", "mp3": "mpeg"}


def media_markdown(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """The media of each message in Markdown: small pictures, players, and a word for anything else."""
    return [" ".join(_markdown(part, shown) for part, shown in media) for media in _shown(turns)]


def media_html(turns: Sequence[Mapping[str, Any]]) -> str:
    """The images of messages, small, and players of their sounds and videos, in HTML."""
    found = [_html(part, shown) for media in _shown(turns) for part, shown in media if shown]
    return f"<p>{''.join(found)}</p>" if found else ""


def thumbnail(part: Part) -> str | None:
    """A data URL of a small picture; None for a part that is no image, or only an image's address."""
    url = _url_of(part, "image_url")
    return _drawn(_thumbnail, url) if url is not None and url.startswith("data:image/") else None


def video_strip(part: Part) -> str | None:
    """A data URL of some of a video's frames, small and side by side; None for a part that is no video in frames."""
    url = _url_of(part, "video_url")
    return _drawn(_strip, url) if url is not None and _FRAMES.match(url) else None


def small_video(part: Part, most: int) -> str | None:
    """The data URL of a video file that has at most `most` bytes and that browsers may play; else None."""
    url = _url_of(part, "video_url")
    return url if url is not None and len(url) * 3 // 4 <= most and _VIDEO.fullmatch(url) else None


def small_sound(part: Part, most: int) -> str | None:
    """A data URL of a sound in at most `most` bytes; None for a part that is no sound, only an address, or too long."""
    url = _sound_url(part)
    if url is None or not _SOUND.fullmatch(url):
        return None
    return url if len(url) * 3 // 4 <= most else _small_wav(url, most)


def _shown(turns: Sequence[Mapping[str, Any]]) -> list[list[tuple[Part, str | None]]]:
    """The media of each message, each with a data URL to display. The newest sounds and videos get bytes first."""
    left, found = SOUND_BYTES, []
    for turn in reversed(turns):
        media = []
        for part in reversed([] if isinstance(turn["content"], str) else turn["content"]):
            if part["type"] == "text":
                continue
            played = small_sound(part, left) or small_video(part, left)
            left -= len(played or "") * 3 // 4
            media.append((part, played or thumbnail(part) or video_strip(part)))
        found.append(media[::-1])
    return found[::-1]


def _markdown(part: Part, shown: str | None) -> str:
    kind = KINDS.get(part["type"], "file")
    if shown is None:
        return f"[{kind}]"
    return f"![{kind}]({shown})" if shown.startswith("data:image/") else _player(shown)


def _html(part: Part, shown: str | None) -> str:
    if shown is None or not shown.startswith("data:image/"):
        return _player(shown or "")
    return f'<img src="{shown}" alt="{KINDS.get(part["type"], "file")} of the question">'


def _player(url: str) -> str:
    """An HTML player. A page without players shows the word instead."""
    if url.startswith("data:video/"):
        width = f'width="{2 * THUMBNAIL_PIXELS}"'
        return (
            f'<video controls {width} preload="metadata" src="{url}" aria-label="video of the question">[video]</video>'
        )
    return f'<audio controls preload="metadata" src="{url}" aria-label="sound of the question">[audio]</audio>'


def _drawn(draw: Callable[[str], str | None], url: str) -> str | None:
    """The picture that `draw` makes of a data URL, cached."""
    kept = _kept(draw, hashlib.blake2b(url.encode(errors="surrogatepass")).digest())
    if not kept:
        kept.append(draw(url))
    return kept[0]


@functools.lru_cache(maxsize=64)
def _kept(draw: Callable[[str], str | None], digest: bytes) -> list[str | None]:
    """The cache entry of a picture. Its key is a digest, as the URL itself is as large as the file."""
    return []


def _thumbnail(url: str) -> str | None:
    image = _small(url.partition(",")[2])
    return None if image is None else _data_url(image.convert("RGBA"))


def _strip(url: str) -> str | None:
    from PIL import Image

    frames = url.partition(",")[2].split(",")
    chosen = np.linspace(0, len(frames) - 1, min(STRIP_FRAMES, len(frames))).round().astype(int)
    images = [_small(frames[index]) for index in chosen]
    if any(image is None for image in images):
        return None
    return _data_url(Image.fromarray(np.hstack([np.asarray(image.convert("RGB")) for image in images])))


def _small(text: str) -> Any:
    """The image in a base64 text, made small; None if it is no image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True))) as image:
            image.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
            return image.copy()
    except Exception:  # Pillow raises many kinds for a broken file
        return None


def _data_url(image: Any) -> str:
    image.save(file := io.BytesIO(), format="PNG")
    return data_url(file.getvalue(), "image/png")


def _url_of(part: Part, type: str) -> str | None:
    """The URL of a part, if the part is of this type."""
    given = part.get(type)
    url = given.get("url") if isinstance(given, Mapping) else given
    return url if isinstance(url, str) and part["type"] == type else None


def _sound_url(part: Part) -> str | None:
    given = part.get(part["type"])
    if part["type"] == "input_audio" and isinstance(given, Mapping):
        return f"data:audio/{_FORMATS.get(given.get('format', ''), '')};base64,{given.get('data', '')}"
    return _url_of(part, "audio_url")


def _small_wav(url: str, most: int) -> str | None:
    """A WAV file of 16 bits, its channels mixed, at the highest rate that keeps it within so many bytes."""
    try:
        with wave.open(io.BytesIO(base64.b64decode(url.partition(",")[2], validate=True))) as file:
            if file.getsampwidth() != 2:
                return None
            channels, rate = file.getnchannels(), file.getframerate()
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, channels).mean(axis=1)
    except (binascii.Error, EOFError, ValueError, wave.Error):
        return None
    step = -(-2 * len(samples) // max(most - 1024, 1))  # number of samples that are averaged into one
    if not step or rate / step < LOWEST_RATE:  # 0: it has no samples to leave out
        return None
    whole = samples[: len(samples) // step * step].reshape(-1, step).mean(axis=1)
    return data_url(wav(whole, rate // step), "audio/wav")
