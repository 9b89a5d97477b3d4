"""The Jupyter extension: its options and routes, and how the engine starts and stops with the server.

`jupyter nbgen` runs it alone; inside Jupyter it is loaded with every server. Imports no torch.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyter_server.auth import AllowAllAuthorizer, IdentityProvider
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from tornado.ioloop import PeriodicCallback
from traitlets import Bool, Dict, Int, TraitError, Unicode, default, validate

import nbgen
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.protocols.kserve_settings import LogSettings, TraceSettings
from nbgen.protocols.sglang_info import ServerOptions
from nbgen.sampling_params import SamplingParams
from nbgen.server import engine_child
from nbgen.server.engine_client import EngineClient
from nbgen.server.engine_options import Count, EngineOptions, Seconds
from nbgen.server.handlers import PREFIX, SglangNotFoundHandler, routes
from nbgen.server.idle_unload import IdleUnload
from nbgen.server.language_model import LanguageModel
from nbgen.server.launch_options import ALIASES, FLAGS, JsonDict, apart, refuse_foreign
from nbgen.server.life_options import LifeOptions
from nbgen.server.media_options import MediaOptions
from nbgen.server.metrics import Metrics
from nbgen.server.models import Models
from nbgen.server.private_repository import PrivateRepository
from nbgen.server.responses import Responses
from nbgen.server.runs import Runs
from nbgen.server.runtime_file import RuntimeFile
from nbgen.server.standalone import StandaloneServerApp
from nbgen.server.tensor_engine import TensorEngine

#: For running requests when the server stops. Jupyter, or a program that started the server, has more to end.
DRAIN_SECONDS, DRAIN_SECONDS_ALONE = 4.0, 30.0
#: Seconds after that until everything left is killed.
END_SECONDS = 4.0
SWEEP_MS = 15_000


class NbgenApp(EngineOptions, LifeOptions, MediaOptions, ExtensionApp):
    """Run a language model: an engine process, and the routes that ask it."""

    _grpc: Any = None
    _private: PrivateRepository | None = None
    _loading: asyncio.Future[Any] | None = None
    _off = False
    name = "nbgen"
    version = nbgen.__version__
    subcommands: Any = {}  # noqa: RUF012
    description = "Serve a language model to notebooks and programs, without kernels or files."
    extension_url = "/nbgen/"
    load_other_extensions = False
    serverapp_class = StandaloneServerApp
    classes: Any = [*ExtensionApp.classes, StandaloneServerApp, IdentityProvider]  # noqa: RUF012
    aliases: Any = ExtensionApp.aliases | ALIASES
    flags: Any = ExtensionApp.flags | FLAGS

    reader_seconds = Seconds(30.0, help="Seconds a reader may take nothing before it is cut off.").tag(config=True)
    stream_interval = Count(1, min=1, help="Tokens between two chunks of /generate's streams.").tag(config=True)
    incremental_streaming_output = Bool(
        False, help="Let the chunks of /generate's streams hold what is new, not all there is."
    ).tag(config=True)
    preferred_sampling_params = JsonDict(
        help="Sampling parameters of /generate for requests that do not set them: NAME=VALUE as often as there are "
        "some, or a JSON object."
    ).tag(config=True)
    allow_auto_truncate = Bool(
        False, help="Instead of refusing what the context does not hold, cut limits, prompts and old turns."
    ).tag(config=True)
    adapters = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="LoRA adapters to load with the model, by the names that requests use: --adapters NAME=FOLDER, as often "
        "as there are adapters. Folders are in peft's format.",
    ).tag(config=True)
    model_repository = Unicode(
        "",
        help="A folder of plain torch modules to serve beside the model. Their model.py is run: name only your own. "
        "Empty: a private folder for nbgen.register, which ends with the server.",
    ).tag(config=True)
    grpc_port = Int(
        None,
        allow_none=True,
        min=0,
        help="Port of KServe v2 over gRPC (0: any free one), with HTTP's certificate if that has one; None: off. Needs "
        "nbgen[grpc]. For trusted networks: it knows no limit of connections.",
    ).tag(config=True)
    triton_server_name = Unicode(
        "triton", help="What Triton's clients are told as the server's name; its examples insist on 'triton'."
    ).tag(config=True)

    @default("autoload")
    def _autoload_alone(self) -> bool:
        return self.stands_alone

    @validate("preferred_sampling_params")
    def _known_parameters(self, proposal: Any) -> dict[str, Any]:
        wanted: dict[str, Any] = proposal["value"]
        try:
            SamplingParams.parse(wanted)
        except InvalidRequest as error:
            raise TraitError(f"preferred_sampling_params: {error.message}") from None
        return wanted

    @validate("model_repository")
    def _folder_of_modules(self, proposal: Any) -> str:
        folder: str = proposal["value"]
        if folder and not os.path.isdir(os.path.expanduser(folder)):
            raise TraitError(f"model_repository: there is no folder {folder!r}")
        return folder

    @default("static_paths")
    def _panel(self) -> list[str]:
        return [str(Path(nbgen.__file__).parent / "notebook" / "static")]

    @default("open_browser")
    def _no_browser(self) -> bool:
        return False

    @property
    def stands_alone(self) -> bool:
        """Whether the server is nbgen's own."""
        return isinstance(self.serverapp, StandaloneServerApp)

    @property
    def _server(self) -> ServerApp:
        found: ServerApp | None = self.serverapp
        assert found is not None
        return found

    @property
    def ready(self) -> bool:
        """Whether the language model takes requests or is out of service. Modules report their own readiness."""
        model = self.models.language_model
        return not self.engine.closed and (model.unloaded or model.state == "READY")

    @classmethod
    def launch_instance(cls, argv: list[str] | None = None, **kwargs: Any) -> None:
        arguments = sys.argv[1:] if argv is None else argv
        refuse_foreign(arguments, cls.class_trait_names(config=True))
        super().launch_instance(apart(arguments), **kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def make_serverapp(cls, **kwargs: Any) -> ServerApp:
        """The server, which parses the command line. Jupyter gives it the extension's aliases, but not its flags."""
        server = super().make_serverapp(**kwargs)
        server.flags.update(cls.flags)
        return server

    # --- wiring

    def _link_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        self.serverapp = serverapp
        with self._off_if_wrong():
            super()._link_jupyter_server_extension(serverapp)

    def initialize(self) -> None:  # type: ignore[override]
        with self._off_if_wrong():
            if not self._off:
                super().initialize()  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _off_if_wrong(self) -> Iterator[None]:
        """On a wrong option, end a server that stands alone; inside Jupyter, turn off nbgen and nothing else."""
        try:
            yield
        except (TraitError, ValueError, SystemExit) as error:  # ValueError: an option is given twice
            if self.stands_alone:
                raise error if isinstance(error, SystemExit) else TraitError(str(error)) from None
            self._off = True
            self.log.error("nbgen is off: %s", "an option of it is wrong" if isinstance(error, SystemExit) else error)

    def initialize_settings(self) -> None:
        config = self.engine_config()
        self.key = secrets.token_urlsafe(32)
        self.server_id = secrets.token_hex(8)
        self.started = time.time()
        self.engine = EngineClient(
            config, self.log, standby=self.standby, attach=self.engine_socket, adapters=self.adapters
        )
        self._idle_unload = IdleUnload(self.engine, self.idle_unload_seconds, self.log)
        self.metrics = Metrics(self.engine)
        incremental, preferred = self.incremental_streaming_output, self.preferred_sampling_params
        self.server_options = ServerOptions(self.stream_interval, incremental, preferred, self.allow_auto_truncate)
        self.runs = Runs(self.engine, self._touch, self.metrics.follow)
        self.responses = Responses()
        self.tensor_engine = TensorEngine(config, self.log)
        self.media = self.media_intake()
        try:
            self.repository = self._own_repository()
            self.models = Models(LanguageModel(self.engine, self.runs), self.tensor_engine, self.repository)
        except OSError as error:
            raise TraitError(f"model_repository: no folder of modules can be used: {error.strerror}") from None
        if self.autoload:
            self.engine.will_start()
            self.models.will_load()
        else:
            engine_child.end_early()
        self.log_settings, self.trace_settings = LogSettings(), TraceSettings()
        self._sweep = PeriodicCallback(self.runs.sweep, SWEEP_MS)
        self._file: RuntimeFile | None = None

    def initialize_handlers(self) -> None:
        self.handlers.extend(routes(standalone=self.stands_alone))
        if isinstance(self.serverapp, StandaloneServerApp):
            self.serverapp.answer_unknown_paths(SglangNotFoundHandler)

    def _own_repository(self) -> Path:
        """The configured folder of modules, or a private one that nobody else can write."""
        if self.model_repository:
            return Path(self.model_repository).expanduser().resolve()
        self._private = PrivateRepository()
        return Path(self._private.name)

    def current_activity(self) -> dict[str, int] | None:
        """Runs that are alive, for Jupyter's idle shutdown."""
        return {"runs": len(self.runs)} if not self._off and len(self.runs) else None

    def _touch(self) -> None:
        self.settings["last_activity_times"]["nbgen"] = datetime.now(UTC)

    # --- life

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        if self._off:
            return
        self._announce()
        self._sweep.start()
        self._idle_unload.start()
        if self.stands_alone:
            gc.collect()
            gc.freeze()  # objects made so far live on: scanning them again would stall every stream
        atexit.register(self._at_exit)
        if self.stop_on_eof:
            threading.Thread(target=self._stop_at_end_of_input, daemon=True).start()
        if self.grpc_port is not None:
            await self._start_grpc(self.grpc_port)
        if self.autoload:
            self._loading = asyncio.gather(self._load(), self.models.load_modules(self.log))

    async def stop_extension(self) -> None:
        """End the engine and remove all files. Never raises, since Jupyter would then not stop at all."""
        if self._off:
            return
        seconds = DRAIN_SECONDS_ALONE if self.stands_alone and not self.stop_on_eof else DRAIN_SECONDS
        try:
            self._sweep.stop()
            self._idle_unload.stop()
            if self._loading is not None:
                self._loading.cancel()
            self.media.urls.close()
            self._withdraw()
            if self._private is not None:
                self._private.cleanup()
            async with asyncio.timeout(seconds + END_SECONDS):
                await asyncio.gather(self.engine.close(seconds), self.tensor_engine.close(seconds))
                if self._grpc is not None:
                    await self._grpc.stop()
        except Exception:  # Jupyter refuses to stop when this hook raises.
            self.log.exception("nbgen did not stop in good order; its engine is killed")
            self.engine.kill()
            self.tensor_engine.kill()

    def hurry(self) -> None:
        """Stop without waiting for running requests."""
        self.engine.hurry()
        self.tensor_engine.kill()

    async def _start_grpc(self, port: int) -> None:
        """Start the gRPC port. If that fails, HTTP works on, and the log says why gRPC is off."""
        server, identity = self._server, self._server.identity_provider
        if server.sock and not identity.auth_enabled:
            self.log.error("gRPC is off: without a token everybody could ask its port, where HTTP has a Unix socket")
            return
        try:
            from nbgen.server.grpc_server import GrpcServer
        except ImportError as error:
            self.log.error("gRPC is off: %s. Install it with: pip install 'nbgen[grpc]'", error)
            return
        secrets = [self.key, getattr(identity, "token", "")] if identity.auth_enabled else []
        if type(server.authorizer) is not AllowAllAuthorizer:  # a custom one decides on HTTP requests
            secrets = [self.key]
            self.log.info("gRPC admits nbgen's key alone: the server's token is its authorizer's to judge, over HTTP")
        grpc_server = GrpcServer(self, secrets, self.log)
        try:
            await grpc_server.start(server.ip, port, server.ssl_options)
        except (OSError, RuntimeError, ValueError) as error:
            self.log.error("gRPC is off: %s", error)
            return
        self._grpc = grpc_server

    async def _load(self) -> None:
        try:
            await self.engine.load()
        except NbgenError as error:
            self.log.error("The model was not loaded: %s", error.message)
        except Exception as fault:  # otherwise the engine would be "starting" for ever
            self.engine.abandon(fault)

    def _announce(self) -> None:
        """Tell kernels where this server is: by a file with the key, and by an environment variable without it."""
        self._file = RuntimeFile.of(self._server, self.key, self.server_id)
        if not self._file.announce(PREFIX):
            named = os.environ["NBGEN_URL"].partition("?")[0]  # the query may hold a token
            self.log.info("Kernels ask the nbgen server that NBGEN_URL names: %s", named)
        try:
            self._file.write(Path(self._server.runtime_dir))
        except OSError as error:
            self.log.warning("Kernels will not find nbgen by themselves: %s", error)

    def _withdraw(self) -> None:
        if self._file is not None:
            self._file.remove(Path(self._server.runtime_dir))

    def _at_exit(self) -> None:
        if self._file is not None and self._file.pid == os.getpid():  # not in a fork of the server
            self._withdraw()
            self.engine.kill()
            self.tensor_engine.kill()

    def _stop_at_end_of_input(self) -> None:
        # os.read holds no lock of sys.stdin, which an exiting interpreter would wait for.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        if self.private_folder:
            atexit.register(shutil.rmtree, self.private_folder, ignore_errors=True)
        self._server.io_loop.add_callback(self._server.stop)


main = NbgenApp.launch_instance
