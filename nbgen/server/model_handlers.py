"""nbgen's own routes: the server's identity, the loaded model, and the process for plain modules."""

from __future__ import annotations

import asyncio

import msgspec

from nbgen import __version__
from nbgen.errors import NbgenError
from nbgen.protocols import native
from nbgen.server.base_handler import KEEP_ALIVE_SECONDS, NbgenHandler
from nbgen.sse import KEEP_ALIVE

FEATURES = ("generate", "runs", "subscribe")


class HelloHandler(NbgenHandler):
    """The server's identity. A page that has only a login cookie gets its XSRF cookie here."""

    _track_activity = False

    async def get(self) -> None:
        if not self.token_authenticated:
            self.xsrf_token  # noqa: B018  reading it sets the cookie
        app, engine = self.app, self.engine
        identities = await asyncio.get_running_loop().run_in_executor(None, engine.identities)  # it may look at files
        model = {"name": engine.config.model, "state": engine.state, "changes": engine.changes, **identities}
        hello = {
            "version": __version__,
            "server_id": app.server_id,
            "base_url": self.base_url,
            "model_repository": str(app.repository),
            "model": model,
            "features": FEATURES,
        }
        self.finish(msgspec.json.encode(hello))

    head = get


class ModelHandler(NbgenHandler):
    """The loaded model, and the engine's state."""

    _track_activity = False

    async def get(self) -> None:
        self.finish(self.model())

    head = get

    def model(self) -> bytes:
        """The engine's state as JSON."""
        engine = self.engine
        model = msgspec.structs.asdict(engine.model) if engine.model else {}
        model.pop("tokenizer", None)  # it holds the long chat template, and has a route of its own
        fields = {
            "state": engine.state,
            "name": engine.config.model,
            "loadable": engine.loadable,
            "unasked_seconds": engine.unasked_seconds,
            "error": engine.error.message if engine.error else None,
            "progress": native.progress_fields(engine.progress) if engine.progress else None,
            "model": model or None,
            "status": msgspec.structs.asdict(engine.status) if engine.status else None,
            "engine_pid": engine.pid,
        }
        return msgspec.json.encode(fields)


class LoadHandler(ModelHandler):
    """Loads a model, replacing any other, and streams the progress."""

    async def post(self) -> None:
        wanted = native.parse_load(self.body)
        loading = asyncio.create_task(self.engine.load(wanted.model, wanted.quantization))
        self.reader.watch(self.engine.watchers)
        loading.add_done_callback(self._loaded)
        shown = None
        while not loading.done() and not self.reader.gone:
            progress = self.engine.progress
            if progress is not None and progress is not shown:
                shown = progress
                fields = msgspec.json.encode(native.progress_fields(progress))
                await self.write_event(native.model_event("progress", fields))
            if not await self.reader.wait(KEEP_ALIVE_SECONDS):
                await self.write_event(KEEP_ALIVE)
        if not self.reader.gone:
            await self.write_event(await self._outcome(loading))
            self.end_events()

    def _loaded(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled():
            loading.exception()  # mark it as retrieved, even if nobody waits for it any more
        self.reader.wake()

    async def _outcome(self, loading: asyncio.Task[None]) -> bytes:
        try:
            await loading
        except NbgenError as error:
            if not self._headers_written:
                raise
            return native.model_event("error", native.error_body(error))
        return native.model_event("ready", self.model())


class UnloadHandler(ModelHandler):
    """Ends the engine's process; its memory is free when this answers."""

    async def post(self) -> None:
        await self.engine.stop()
        self.finish(self.model())


class ModulesHandler(NbgenHandler):
    """Starts the process for plain modules, while a module is exported for it elsewhere."""

    async def post(self) -> None:
        await self.app.tensor_engine.begin()
        self.finish(b"{}")


HANDLERS = [
    (r"api/v1/hello", HelloHandler),
    (r"api/v1/model", ModelHandler),
    (r"api/v1/model/load", LoadHandler),
    (r"api/v1/model/unload", UnloadHandler),
    (r"api/v1/modules/start", ModulesHandler),
]
