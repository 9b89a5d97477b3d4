"""Triton's side routes: logging, trace settings, and shared memory, which this server does not share."""

from __future__ import annotations

from nbgen.errors import NotFound, Unsupported
from nbgen.protocols.json_body import parse_object
from nbgen.server.kserve_handlers import DescribingHandler


class LoggingHandler(DescribingHandler):
    """Log settings. They are stored and reported, but have no effect: the server's own options decide."""

    async def get(self) -> None:
        self.tell(self.app.log_settings.fields)

    async def post(self) -> None:
        self.app.log_settings.update(parse_object(self.body))
        self.tell(self.app.log_settings.fields)


class TraceHandler(DescribingHandler):
    """Trace settings of all models, or of one."""

    async def get(self, name: str = "") -> None:
        self._check(name)
        self.tell(self.app.trace_settings.of(name))

    async def post(self, name: str = "") -> None:
        self._check(name)
        self.app.trace_settings.update(parse_object(self.body), name)
        self.tell(self.app.trace_settings.of(name))

    def _check(self, name: str) -> None:
        if name:
            self.models.find(name)


class SharedMemoryStatusHandler(DescribingHandler):
    """Reports that no region is registered."""

    async def get(self, kind: str, region: str | None = None) -> None:
        if region:
            raise NotFound(f"Unable to find {kind} shared memory region: '{region[:200]}'")
        self.tell([])


class SharedMemoryHandler(DescribingHandler):
    """Refuses regions: memory of other processes is never read or written. Unregistering all does nothing."""

    async def post(self, kind: str, region: str | None, action: str) -> None:
        if region or action == "register":
            raise Unsupported(f"Client shared memory is disabled on this server ({kind}); send tensors as binary data")
        self.finish()


SHARED_MEMORY = r"v2/(system|cuda)sharedmemory(?:/region/([^/]+))?"

HANDLERS = [
    (r"v2/logging", LoggingHandler),
    (r"v2/trace/setting", TraceHandler),
    (r"v2/models/([^/]+)/trace/setting", TraceHandler),
    (rf"{SHARED_MEMORY}/status", SharedMemoryStatusHandler),
    (rf"{SHARED_MEMORY}/(register|unregister)", SharedMemoryHandler),
]
