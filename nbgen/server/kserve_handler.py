"""The base of Triton's routes: any content type, errors as `{"error": text}`, work off the event loop, cancelling.

Knows no route. Follows Triton 2.73 in statuses: a body that is too large gets a 400, and is read to its end, since the
clients of this protocol read no answer before they have sent everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tornado import web

from nbgen.errors import InvalidRequest, NbgenError
from nbgen.protocols import kserve_answer
from nbgen.protocols.kserve import LIMIT_WORDS, MAX_INPUT_BYTES
from nbgen.server.base_handler import DISCARDED_BYTES, SMALL_BODY, NbgenHandler
from nbgen.server.models import Models
from nbgen.server.off_loop import INLINE_BYTES, off_loop


class TooLarge(InvalidRequest):
    """The body is larger than the route takes, in the words of this protocol."""


class KserveHandler(NbgenHandler):
    """A route of Triton's."""

    error_body = staticmethod(kserve_answer.error_body)
    limit_words = f"exceeds the maximum allowed input size of {MAX_INPUT_BYTES} bytes. {LIMIT_WORDS}"

    @property
    def models(self) -> Models:
        return self.app.models

    def compute_etag(self) -> None:
        """Compute none: it would hash every body."""

    def _check_body(self) -> None:
        self._check_length()

    def _refuse(self, error: NbgenError | web.HTTPError) -> None:
        if not isinstance(error, TooLarge) or self._body_length() > DISCARDED_BYTES:
            return super()._refuse(error)
        connection: Any = self.request.connection
        connection.set_max_body_size(DISCARDED_BYTES)
        self._refuse_after_body(error)

    def too_large(self, size: str) -> NbgenError:
        return TooLarge(f"request JSON size of {size} bytes {self.limit_words}")

    async def send(self, body: Iterator[bytes], size: int, content_type: str) -> None:
        """Answer with a body of about `size` bytes; a large one is rendered piece by piece while it is sent."""
        if size <= INLINE_BYTES:
            self.finish(b"".join(body), set_content_type=content_type)
            return
        self.set_header("Content-Type", content_type)
        while not self.reader.gone:
            part = await off_loop(size, next, body, None)
            if part is None:
                break
            await self.write_patiently(part)
        if not self.reader.gone:
            self.finish(set_content_type=content_type)


class SmallHandler(KserveHandler):
    """A route whose body is a few options."""

    body_limit = SMALL_BODY
    limit_words = f"exceeds the maximum allowed input size of {SMALL_BODY} bytes"
