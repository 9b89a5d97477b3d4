"""The server's options for when the engine's processes start and end, and for who may ask for its health."""

from __future__ import annotations

from traitlets import Bool, Unicode
from traitlets.config import Configurable

from nbgen.server.engine_options import Seconds


class LifeOptions(Configurable):
    """What the server's owner decides about the engine's lifecycle."""

    autoload = Bool(
        help="Load the model, and the modules of model_repository, when the server starts. On for `jupyter nbgen`, off "
        "inside Jupyter, where the first request loads it."
    ).tag(config=True)
    idle_unload_seconds = Seconds(
        None,
        allow_none=True,
        help="Seconds without a request after which the model is unloaded: its processes end, and all of their memory "
        "is free. The next request loads it again. None: never.",
    ).tag(config=True)
    standby = Bool(
        True,
        help="Keep a second, empty engine process (some 250 MB) while a model is loaded, so that loading another one, "
        "or a restart, takes a second instead of several.",
    ).tag(config=True)
    engine_socket = Unicode(
        "",
        help="A Unix socket where a kernel offers the model that is being trained there (nbgen.serve); no engine "
        "process is started then.",
    ).tag(config=True)
    open_health = Bool(
        False,
        help="Answer /health, /ready, /ping, /v2/health/live and /v2/health/ready without a token: to SGLang's router, "
        "load balancers and others that show none when they ask how a server is.",
    ).tag(config=True)
    stop_on_eof = Bool(False, help="Stop when standard input ends: for a server that another program started.").tag(
        config=True
    )
    private_folder = Unicode(
        "",
        help="With stop_on_eof: a folder of this server's alone, which is removed with all that is in it once standard "
        "input has ended.",
    ).tag(config=True)
