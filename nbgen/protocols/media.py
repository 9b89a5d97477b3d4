"""Images, sounds and videos in JSON: base64, a data URL, a URL, a path, or tensors.

Embedded files become `Media` here. A URL or a path becomes a `Source`, which the server opens or refuses. Formats are
SGLang's; the engine finds out whether a file can be decoded.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from nbgen.bytes_elements import pack_bytes
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_BYTES, MAX_FRAMES, MAX_MEDIA, MediaType
from nbgen.messages import Media
from nbgen.protocols.media_tensors import parse_tensor

Options = dict[str, bool | int | float | str]

MAX_OPTIONS = 32
MAX_ADDRESS = 2048
#: Most %XX escapes of a data URL without base64: each becomes a Python object of many times its bytes.
MAX_ESCAPES = 2**16
#: Endings that make a text without a scheme a path: base64 has no dot.
ENDINGS: dict[MediaType, tuple[str, ...]] = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"),
    "audio": (".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac"),
    "video": (".mp4", ".webm", ".mov", ".mkv", ".avi", ".gif"),
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
#: A video as consecutive images, in vLLM's format.
_FRAMES_URL = re.compile(r"data:video/(?:jpeg|png|webp);base64,", re.IGNORECASE)
_SPACE = str.maketrans("", "", " \t\r\n")


class Source(NamedTuple):
    """A file to be opened later: an http(s) URL, or a path on the server's machine."""

    type: MediaType
    place: Literal["url", "path"]
    address: str
    options: Options
    #: The client's name of the field.
    field: str


Item = Media | Source


def parse_item(value: Any, type: MediaType, field: str) -> Item:
    """One medium as a client wrote it. Raises InvalidRequest."""
    if isinstance(value, str):
        return _parse_text(value, type, {}, field)
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{field}` must be text or an object for each {type}", field=field)
    kind = value.get("format")
    if kind is None and type == "video" and "frames" in value:
        return _frames(value["frames"], _options(value, field), field)
    if kind is None:
        if not isinstance(value.get("url"), str):
            raise InvalidRequest(f"`{field}`: an object needs `url`, or `format` and its tensors", field=field)
        return _parse_text(value["url"], type, _options(value, field), field)
    if kind not in ("processor_output", "precomputed_embedding"):
        raise InvalidRequest(
            f"`{field}`: format must be processor_output or precomputed_embedding, got {kind!r:.80}", field=field
        )
    given = {name: each for name, each in value.items() if name not in ("format", "modality") and each is not None}
    tensors = [parse_tensor(name, each, field) for name, each in given.items()]
    if kind == "precomputed_embedding" and not any(
        tensor.name == "feature" and len(tensor.shape) == 2 for tensor in tensors
    ):
        raise InvalidRequest(f"`{field}`: a precomputed_embedding needs `feature`, [tokens, width]", field=field)
    if not tensors:
        raise InvalidRequest(f"`{field}`: a {kind} needs tensors, as pixel_values", field=field)
    return Media(type=type, format=kind, tensors=tensors)


def check_media(items: Sequence[Item], field: str) -> None:
    """Raise InvalidRequest for more media than one prompt may have."""
    if len(items) > MAX_MEDIA:
        raise InvalidRequest(f"{len(items)} images and sounds for one prompt; at most {MAX_MEDIA}", field=field)
    whole = {item.type for item in items if isinstance(item, Media) and item.tensors}
    for type, count in Counter(item.type for item in items).items():
        if type in whole and count > 1:
            raise InvalidRequest(
                f"processor_output and precomputed_embedding stand for all of a prompt's media of their type: "
                f"send exactly one item, not {count}",
                field=field,
            )


def decode_base64(text: str, type: MediaType, field: str) -> Media:
    """The medium in `text`, which is base64 or a data URL. Raises InvalidRequest."""
    item = _parse_text(text, type, {}, field)
    if isinstance(item, Source):
        raise InvalidRequest(f"`{field}`: send the {type} itself, as base64 or as a data URL", field=field)
    return item


def check_size(size: int, type: MediaType, field: str) -> None:
    """Raise InvalidRequest for a file of too many bytes."""
    if size > MAX_BYTES[type]:
        raise InvalidRequest(f"`{field}`: the {type} has {size} bytes; at most {MAX_BYTES[type]}", field=field)


def _parse_text(text: str, type: MediaType, options: Options, field: str) -> Item:
    scheme = match[1].lower() if (match := _SCHEME.match(text)) else ""
    if scheme == "data" and type == "video" and (head := _FRAMES_URL.match(text)):
        _check_frames(text.count(",", head.end()) + 1, field)  # before each becomes an object
        return _frames(text[head.end() :].split(","), options, field)
    if scheme == "data":
        return Media(type=type, data=_data_url(text, type, field), options=options)
    if scheme in ("http", "https", "file") or (not scheme and text.lower().endswith(ENDINGS[type])):
        if len(text) > MAX_ADDRESS:
            raise InvalidRequest(f"`{field}`: an address of {len(text)} characters; at most {MAX_ADDRESS}", field=field)
        place: Literal["url", "path"] = "url" if scheme in ("http", "https") else "path"
        return Source(type, place, text, options, field)
    if scheme:
        raise InvalidRequest(f"`{field}`: {scheme[:40]} is no scheme of an address that is read here", field=field)
    return Media(type=type, data=_decoded(text, type, field), options=options)


def _data_url(text: str, type: MediaType, field: str) -> memoryview:
    head = _DATA_URL.match(text[:256])
    if head is None:
        raise InvalidRequest(f"`{field}`: a data URL is data:{type}/…;base64,…", field=field)
    mime = head[1].strip().lower()
    if mime not in ("", "application/octet-stream") and not mime.startswith(f"{type}/"):
        raise InvalidRequest(f"`{field}`: a data URL of the type {mime[:80]} is no {type}", field=field)
    body = text[head.end() :]
    if head[2].lower().endswith(";base64"):
        return _decoded(body, type, field)
    check_size(len(body) // 3, type, field)
    if (escapes := body.count("%")) > MAX_ESCAPES:
        raise InvalidRequest(
            f"`{field}`: a data URL with {escapes} escapes (%XX); at most {MAX_ESCAPES}: send base64", field=field
        )
    data = unquote_to_bytes(body)
    check_size(len(data), type, field)
    return _filled(data, type, field)


def _frames(value: Any, options: Options, field: str) -> Media:
    """A video whose frames are images, each base64 or a data URL."""
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise InvalidRequest(f"`{field}`: frames must be a list of images, base64 or data URLs", field=field)
    _check_frames(len(value), field)
    check_size(sum(map(len, value)) * 3 // 4 - 3 * len(value), "video", field)
    found = [_parse_text(each, "image", {}, field) for each in value]
    if any(isinstance(each, Source) for each in found):
        raise InvalidRequest(f"`{field}`: frames are sent themselves, as base64 or data URLs", field=field)
    data = pack_bytes(bytes(each.data) for each in found if isinstance(each, Media))
    return Media(type="video", format="frames", data=data, options=options)


def _check_frames(count: int, field: str) -> None:
    if count > MAX_FRAMES:
        raise InvalidRequest(f"`{field}`: a video of {count} frames; at most {MAX_FRAMES}", field=field)


def _decoded(text: str, type: MediaType, field: str) -> memoryview:
    check_size(len(text) * 3 // 4 - 2 - text.count("\n"), type, field)
    try:
        data = base64.b64decode(text.translate(_SPACE).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise InvalidRequest(
            f"`{field}`: neither base64 (standard alphabet, padded) nor a data URL, an address, or a path that ends in "
            f"{', '.join(ENDINGS[type])}",
            field=field,
        ) from None
    check_size(len(data), type, field)
    return _filled(data, type, field)


def _filled(data: bytes, type: MediaType, field: str) -> memoryview:
    if not data:
        raise InvalidRequest(f"`{field}`: the {type} is empty", field=field)
    return memoryview(data)


def _options(value: dict[str, Any], field: str) -> Options:
    """An object's other members, as options for the model's processor."""
    options = {
        name: each for name, each in value.items() if name not in ("url", "format", "frames") and each is not None
    }
    if len(options) > MAX_OPTIONS:
        raise InvalidRequest(f"`{field}`: {len(options)} options; at most {MAX_OPTIONS}", field=field)
    for name, each in options.items():
        if not isinstance(each, bool | int | float | str) or not name.isidentifier() or len(str(each)) > 256:
            raise InvalidRequest(f"`{field}`: option {name[:80]!r} is not a plain value", field=field)
    return options
