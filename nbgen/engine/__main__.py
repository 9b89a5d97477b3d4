"""The engine process, `python -m nbgen.engine FD [HOW [PACKAGE]]`: a language model, or modules, by its first message.

HOW is `early` (it imports while it waits for that message), `gently` (it does so at a low priority), or a message of
its own: the `EngineConfig` as JSON of a model for which the same process has begun anew, with PACKAGE if that one needs
it. Ends when the server closes its end of the socket FD. What goes wrong in loading is said to the server first.
"""

import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from nbgen import model_files
from nbgen.engine import checkpoint
from nbgen.engine.channel import Channel
from nbgen.engine.lean_imports import (
    TORCHVISION,
    LeftOut,
    import_engine,
    import_leanly,
    import_or_leave_out,
    is_plain,
    leave_out,
)
from nbgen.engine.process import live_and_die_with_parent
from nbgen.engine.pulse import Pulse, tell_of_life
from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineFailed, LoadModel, LoadProgress
from nbgen.errors import ModelError
from nbgen.frames import ToEngine
from nbgen.tensor_messages import ServeTensors

EARLY, GENTLY = "early", "gently"
#: A tenth of what others get: enough that the imports end also where no processor is ever idle.
LOW_PRIORITY = 10
#: transformers imports torchao wherever it is installed, which tells of GPUs' kernels that are not there.
TALKATIVE = ("torchao", "torch.utils._pytree")


def main() -> None:
    gc.disable()  # imports make half a million objects, and all of them stay
    live_and_die_with_parent()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    channel = Channel(int(sys.argv[1]), on_lost=lambda: os._exit(0))
    messages = channel.messages()
    how, *needed = sys.argv[2:] or [""]
    first = _first(messages, how)
    if isinstance(first, LoadModel):
        if TORCHVISION not in needed:
            leave_out(TORCHVISION)
        try:
            _serve(channel, first, messages, needed)
        except LeftOut as package:
            channel.drain()
            _begin_anew(first.config, str(package))
    elif isinstance(first, ServeTensors):
        tell_of_life(channel.send)
        from nbgen.engine import module_loader
        from nbgen.engine.tensor_models import TensorModels

        if first.exported:
            module_loader.import_reader()
        _collect_from_here()
        TensorModels(channel, first.config).run(messages)
    channel.close()
    os._exit(0)  # threads and libraries have nothing left to say


def _collect_from_here() -> None:
    """Before there is a model, which may have to be collected: what is imported stays."""
    gc.freeze()
    gc.enable()


def _first(messages: Iterator[ToEngine], how: str) -> ToEngine | None:
    """The message that says what to be; None where the server is gone before."""
    if how not in ("", EARLY, GENTLY):
        return LoadModel(config=msgspec.json.decode(how, type=EngineConfig))
    if how:
        threading.Thread(target=_import, args=(how == GENTLY,), name="imports", daemon=True).start()
    first = next(messages, None)
    if how and isinstance(first, LoadModel) and not is_plain(first.config):
        _begin_anew(first.config)
    return first


def _import(gently: bool) -> None:
    """Import what a model needs. On Linux a priority is its thread's alone, and so are its imports."""
    if gently and sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
    import_leanly("nbgen.engine.assembly")
    import nbgen.engine.embedding_loop
    import nbgen.engine.loop
    import nbgen.engine.service  # noqa: F401


def _begin_anew(config: EngineConfig, *needed: str) -> NoReturn:
    """As the same process, with nothing imported: what was imported leanly does not do for this model."""
    same = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[2:])]
    os.execv(sys.executable, [*same, msgspec.json.encode(config).decode(), *needed])


def _serve(channel: Channel, first: LoadModel, messages: Iterator[ToEngine], needed: list[str]) -> None:
    try:
        model_files.check(first.config.model)
    except ModelError as error:  # before what takes seconds
        return channel.send(EngineFailed(message=error.message))
    # Beside the imports, the disk reads the weights.
    threading.Thread(target=checkpoint.page_in, args=(first.config.model,), name="page-in", daemon=True).start()
    with Pulse(channel.send, whole=True) as pulse:
        pulse.say(LoadProgress(stage="starting torch"))
        for package in needed:
            import_or_leave_out(package)
        import_engine(first.config)
    from nbgen.engine.assembly import Assembly, assemble  # only now: it takes seconds, and the server has heard why
    from nbgen.engine.embedding_loop import EmbeddingLoop
    from nbgen.engine.embedding_model import EmbeddingModel, is_embedding
    from nbgen.engine.loop import Loop
    from nbgen.engine.service import serve

    _collect_from_here()

    def make(report: checkpoint.Report) -> Assembly | EmbeddingModel:
        return (EmbeddingModel if is_embedding(first.config, report) else assemble)(first.config, report)

    def loop(channel: Channel, made: Assembly | EmbeddingModel) -> Loop | EmbeddingLoop:
        if isinstance(made, EmbeddingModel):
            limits = first.config.max_waiting, first.config.run_seconds, first.config.queue_seconds
            return EmbeddingLoop(channel, made, *limits)
        return Loop(channel, made)

    serve(channel, first.config.model, make, messages, loop)


if __name__ == "__main__":
    main()
