"""Any torch module as a model: loads modules by message, hands requests to their batchers, sends the outputs.

One thread receives, each module has one that computes, and each load has one of its own: so a module that takes long to
load, or for ever, holds up no other. Knows no wire; `module_loader` knows files, `batcher` time, `tensor_module` torch.
"""

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

import msgspec
import torch

from nbgen.engine import container, device, module_loader
from nbgen.engine.batcher import Batcher
from nbgen.engine.channel import Channel
from nbgen.engine.tensor_module import TensorModule
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from nbgen.frames import ToEngine
from nbgen.messages import AbortRequest, TensorPiece
from nbgen.pieces import Pieces, cut_tensor
from nbgen.tensor_messages import InferOutput, InferRequest, LoadModule, ModuleState, UnloadModule

log = logging.getLogger(__name__)


class TensorModels:
    """All modules of this process, by name."""

    def __init__(self, channel: Channel, config: EngineConfig) -> None:
        self._channel = channel
        self._device = device.named(config.device)
        self._queue_seconds, self._run_seconds = config.queue_seconds, config.run_seconds
        self._batchers: dict[str, Batcher] = {}
        #: By name, batchers that were replaced and still have requests to answer.
        self._retired: dict[str, list[Batcher]] = defaultdict(list)
        #: The ids of loads that are under way and were not aborted.
        self._wanted: set[str] = set()
        self._pieces = Pieces()
        torch.set_num_threads(container.threads(config.threads, torch.get_num_threads()))

    def run(self, messages: Iterable[ToEngine]) -> None:
        """Serve until the server closes its end."""
        for message in messages:
            match message:
                case TensorPiece():
                    self._pieces.add(message)
                case InferRequest():
                    self._infer(self._completed(message))
                case AbortRequest():
                    self._abort(message.rid)
                case LoadModule():
                    self._wanted.add(message.rid)
                    threading.Thread(target=self._load, args=(message,), name="load", daemon=True).start()
                case UnloadModule():
                    self._unload(message.name)

    def _load(self, message: LoadModule) -> None:
        name = message.spec.name
        error: str | None = None
        try:
            loaded = module_loader.load(message.folder, name, self._device)
            module = TensorModule(loaded, message.spec, self._device)
            self._put(name, message.rid, module)
        except ModelError as refused:
            error = refused.message
        except BaseException as raised:  # a user's module may raise anything, and call sys.exit()
            log.exception("the module of %s cannot be loaded", name)
            error = f"{name} cannot be loaded ({type(raised).__name__}); the server's log says why"
        self._wanted.discard(message.rid)
        self._channel.send(ModuleState(rid=message.rid, device=str(self._device), error=error))

    def _put(self, name: str, rid: str, module: TensorModule) -> None:
        """Serve the module from now on, in place of any of that name, unless its load was aborted."""
        if rid not in self._wanted:
            log.warning("%s is loaded, too late for who asked for it", name)
            return
        before = self._batchers.get(name)
        self._batchers[name] = Batcher(
            module, self._send, _end, queue_seconds=self._queue_seconds, run_seconds=self._run_seconds
        )
        if before is not None:  # waiting requests were sent to that one
            before.retire()
            self._retired[name] = [each for each in (*self._retired[name], before) if not each.over]

    def _unload(self, name: str) -> None:
        for batcher in (self._batchers.pop(name, None), *self._retired.pop(name, ())):
            if batcher is not None:
                batcher.close()

    def _infer(self, request: InferRequest) -> None:
        batcher = self._batchers.get(request.model)
        if batcher is None:
            self._send(InferOutput(rid=request.rid, error=f"{request.model} is not loaded", status=503))
        else:
            batcher.add(request)

    def _abort(self, rid: str) -> None:
        self._pieces.drop(rid)
        self._wanted.discard(rid)
        for batcher in (*self._batchers.values(), *chain(*self._retired.values())):
            batcher.drop(rid)

    def _completed(self, request: InferRequest) -> InferRequest:
        """The request with its large tensors, whose bytes came before it in pieces."""
        inputs = self._pieces.complete_tensors(request.rid, request.inputs)
        return msgspec.structs.replace(request, inputs=inputs)

    def _send(self, output: InferOutput) -> None:
        """Send an output; its large tensors go ahead in pieces."""
        small = []
        for tensor in output.outputs:
            pieces, end = cut_tensor(output.rid, tensor)
            for piece in pieces:
                self._channel.send(piece)
            small.append(end)
        self._channel.send(msgspec.structs.replace(output, outputs=small))


def _end() -> None:
    """End the process, whose device no longer computes. The server starts another one for the next request."""
    log.error("The GPU computes nothing any more in this process: its modules are loaded anew")
    os._exit(1)
