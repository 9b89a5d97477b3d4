"""SGLang's `image_data`, `video_data` and `audio_data`: assigns media to the prompts of a call.

Follows SGLang 0.5.23 in the shapes of batches. `media` parses single items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_MEDIA, MediaType
from nbgen.protocols.media import Item, check_media, parse_item

#: In the order in which a request lists its media.
FIELDS: dict[str, MediaType] = {"image_data": "image", "video_data": "video", "audio_data": "audio"}


def is_given(value: Any) -> bool:
    """Whether a field's value is an item, a list of items, or a list of such lists."""
    return _is_item(value) or (isinstance(value, list) and all(_is_row(row) for row in value))


def parse(fields: Mapping[str, Any], prompts: int, *, single: bool) -> list[list[Item]]:
    """The media of each prompt; if `single`, of the only prompt, whose list may be in a list of its own, as with `n`.

    Raises InvalidRequest.
    """
    found: list[list[Item]] = [[] for _ in range(prompts)]
    for field, type in FIELDS.items():
        value = fields.get(field)
        if value is None:
            continue
        rows = [value] if single and not _is_one_list(value) else _rows(value, prompts, field)
        parsed = [_parse_row(row, type, field) for row in rows]
        for at, items in enumerate(found if parsed else ()):
            items.extend(parsed[at if len(parsed) > 1 else 0])
    for items in found:
        check_media(items, "image_data")
    return found


def _rows(value: Any, prompts: int, field: str) -> list[Any]:
    """A single item for all prompts, or one entry for each prompt."""
    if not isinstance(value, list):
        return [value]
    if not any(value):  # an empty list, or nulls
        return []
    if len(value) != prompts:
        raise InvalidRequest(
            f"`{field}` is a list of {len(value)} for {prompts} prompts; give one item for all, or one (or a list of "
            "them) for each",
            field=field,
        )
    return value


def _parse_row(row: Any, type: MediaType, field: str) -> list[Item]:
    items = [item for item in (row if isinstance(row, list) else [row]) if item is not None]
    if len(items) > MAX_MEDIA:  # before any is decoded in vain
        raise InvalidRequest(f"`{field}` has {len(items)} items for one prompt; at most {MAX_MEDIA}", field=field)
    return [parse_item(item, type, field) for item in items]


def _is_one_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], list)


def _is_item(value: Any) -> bool:
    return value is None or isinstance(value, str | dict)


def _is_row(value: Any) -> bool:
    return _is_item(value) or (isinstance(value, list) and all(map(_is_item, value)))
