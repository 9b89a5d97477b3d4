"""Replaces a request's media sources by the media themselves: fetches URLs and reads files, as far as allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from nbgen.engine_state import ModelInfo
from nbgen.errors import Forbidden, InvalidRequest
from nbgen.media_types import MAX_BYTES
from nbgen.messages import GenerateRequest, Media
from nbgen.protocols.media import Item, Source, check_size
from nbgen.server.media_files import MediaFiles
from nbgen.server.media_urls import MediaUrls
from nbgen.server.runs import MAX_MEDIA_BYTES


class MediaIntake:
    """Opens sources. A path is read only for `trusted` callers, who showed a secret."""

    def __init__(self, urls: MediaUrls, files: MediaFiles) -> None:
        self.urls = urls
        self.files = files

    async def fill(
        self,
        requests: Sequence[GenerateRequest],
        media: Sequence[list[Item]],
        *,
        trusted: bool,
        model: ModelInfo | None,
    ) -> list[GenerateRequest]:
        """The requests with their media. Raises InvalidRequest and Forbidden.

        `model` is the loaded one: media that it would leave out are not opened.
        """
        taken = None if model is None or not requests[0].media_optional else model.media
        size, opened = 0, dict[tuple[str, str], bytes]()  # a source that several prompts name is opened once
        for source in (item for items in media for item in items if isinstance(item, Source)):
            if (source.type, source.address) not in opened:
                wanted = taken is None or source.type in taken
                opened[source.type, source.address] = await self._open(source, trusted=trusted, wanted=wanted)
                size += len(opened[source.type, source.address])
                _check_room(size, source.field)

        def filled(item: Item) -> Media:
            if isinstance(item, Media):
                return item
            data = memoryview(opened[item.type, item.address])
            return Media(type=item.type, data=data, options=item.options)

        return [
            msgspec.structs.replace(request, media=[filled(item) for item in items])
            for request, items in zip(requests, media, strict=True)
        ]

    async def _open(self, source: Source, *, trusted: bool, wanted: bool) -> bytes:
        """The source's bytes; none unless `wanted`. Sources that are not allowed are refused in either case."""
        field, limit = source.field, MAX_BYTES[source.type]
        if source.place == "url":
            self.urls.check(source.address, field)
            data = await self.urls.fetch(source.address, limit, field) if wanted else b""
        else:
            self.files.check(field)
            if not trusted:
                raise Forbidden(f"`{field}`: reading a file needs the server's token, not just a cookie", field=field)
            data = await asyncio.to_thread(self.files.read, source.address, limit, field) if wanted else b""
        check_size(len(data), source.type, field)
        return data


def _check_room(size: int, field: str) -> None:
    """Raise InvalidRequest if one call's files have more bytes than those of all live runs may have."""
    if size > MAX_MEDIA_BYTES:
        words = f"`{field}`: the files that this call names have more than {MAX_MEDIA_BYTES} bytes together: name fewer"
        raise InvalidRequest(words, field=field)
