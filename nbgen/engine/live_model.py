"""A model that its owner trains in this process, as the engine sees it.

The engine runs a copy of the model's modules that shares its parameters: it sees each optimizer step, while modes,
hooks, attention implementation and gradients of the original remain the owner's. All else that the model's answers
depend on (`live_state`) is checked before each step, and the copy follows it. Knows neither sockets nor requests.
"""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from nbgen.engine import loader
from nbgen.engine.checkpoint import Report
from nbgen.engine.live_state import Numbers, Parts, Settings, configurations, tensors
from nbgen.engine.peft_model import base_of, is_peft, settle
from nbgen.engine.tokenizer import Tokenizer
from nbgen.engine.weight_lock import WeightLock
from nbgen.engine_config import EngineConfig
from nbgen.errors import InvalidRequest, ModelError

#: What `look` finds.
Change = Literal["parts", "numbers"]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class LiveModel:
    """A causal LM of transformers and its tokenizer, whose weights may change between any two steps of the engine."""

    _own: Numbers
    _numbers: Numbers

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Raises InvalidRequest for what cannot be served, ModelError for a model that lies on several devices."""
        model = getattr(model, "_orig_mod", model)  # set by torch.compile
        self._peft = model if is_peft(model) else None
        model = model if self._peft is None else base_of(self._peft)
        _check(model, tokenizer)
        self.weights = WeightLock()
        self._model = model
        self._tokenizer = tokenizer
        self._device: torch.device | None = None
        self._stale = True
        self._handles: list[Any] = []

    def watch(self) -> None:
        """Have optimizers that hold these weights take turns with the engine."""
        self._handles = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]

    def unwatch(self) -> None:
        """Leave optimizers alone again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold this around weight changes that no optimizer makes: nothing is generated meanwhile."""
        with self.weights.changing():
            try:
                yield
            finally:
                self._wait_for_device()
                self._stale = True

    def load(self, config: EngineConfig, report: Report) -> loader.LoadedModel:
        """A copy of the model as it is now, with shared weights. Raises ModelError."""
        report("sharing the model", 0, 0)
        model = self._model
        if self._peft is not None:
            base_of(self._peft)
        self._device = _device(model)
        settle(model)
        view, copies = _view(model)
        self._watch(copies)
        generation = model.generation_config.to_diff_dict() if model.generation_config else {}
        context = loader.context_length(model.config, config)
        # A copy, since a tokenizer that is used from two threads at once fails.
        tokenizer = copy.deepcopy(self._tokenizer)
        return loader.LoadedModel(
            model=view,
            tokenizer=Tokenizer(tokenizer, loader.eos_ids(model.config, generation), context),
            context_length=context,
            sampling_defaults=loader.sampling_defaults(generation, config),
            parameters=sum(p.numel() for p in model.parameters()),
            weight_bytes=sum(p.nbytes for p in model.parameters()),
        )

    def look(self) -> Change | None:
        """What has changed since the last look, or since loading: the model's parts, or the numbers in them.

        After a change of parts the engine's copy has to be made anew; changed numbers it has already.
        """
        if self._parts.changed() or self._own.changed() or self._numbers.converted():
            return "parts"
        stale, self._stale = self._stale, False
        if self._settings.changed():
            settle(self._model)
            if not self._settings.follow():
                return "parts"
            self._own, stale = Numbers(_own(self._model)), True
        return "numbers" if self._numbers.changed() or stale else None

    def _watch(self, copies: dict[int, Any]) -> None:
        """Watch the model for changes from now on; `copies` are the view's copies of its objects, by their ids."""
        modules = list(self._model.modules())
        pairs = [(each, copies.get(id(each), each)) for each in [*modules, *configurations(modules)]]
        self._parts, self._settings, self._stale = Parts(modules), Settings(pairs), False
        self._own, self._numbers = Numbers(_own(self._model)), Numbers(_shared(self._model))

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._holds(optimizer):
            self.weights.begin_step(sys._getframe(1))

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._holds(optimizer):
            self._wait_for_device()
            self._stale = True
            self.weights.end_step(sys._getframe(1))

    def _holds(self, optimizer: torch.optim.Optimizer) -> bool:
        ours = {id(parameter) for parameter in self._model.parameters()}
        return any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"])

    def _wait_for_device(self) -> None:
        """A GPU changes weights some time after the launch, and the engine may launch on another stream."""
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _check(model: Any, tokenizer: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise InvalidRequest(
            f"the model is a {type(model).__name__}; serve takes a causal language model of transformers "
            "(a PreTrainedModel), or a name to load"
        )
    if not model.can_generate():
        raise InvalidRequest(f"{type(model).__name__} has no language model head: serve a …ForCausalLM")
    if model.config.is_encoder_decoder:
        raise InvalidRequest(f"{type(model).__name__} is an encoder-decoder model; nbgen runs decoder-only models")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InvalidRequest(f"the tokenizer is a {type(tokenizer).__name__}; serve takes one of transformers'")
    _device(model)


def _device(model: PreTrainedModel) -> torch.device:
    """The device that holds all of the model. Raises ModelError."""
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        names = ", ".join(sorted(str(device) for device in devices)) or "no device"
        raise ModelError(f"the model lies on {names}; to be served it must lie on one device")
    return devices.pop()


def _own(model: torch.nn.Module) -> list[torch.Tensor]:
    """Tensors that a forward may change, such as rotary frequencies: the view has its own copies of them."""
    kept = [module._buffers[name] for module in model.modules() for name in module._non_persistent_buffers_set]
    return [each for each in kept if each is not None] + tensors(model.modules())


def _shared(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and persistent buffers, which the view shares."""
    own = {id(each) for each in _own(model)}
    return [*model.parameters(), *(each for each in model.buffers() if id(each) not in own)]


def _view(model: PreTrainedModel) -> tuple[PreTrainedModel, dict[int, Any]]:
    """New modules over the same weights, in evaluation mode, and copies by their originals' ids. Raises ModelError."""
    copies: dict[int, Any] = {id(each): each for each in _shared(model)}
    copies |= {id(each): each.detach() for each in tensors(model.modules()) if not each.is_leaf}
    for module in model.modules():
        for hooks in (getattr(module, name) for name in HOOKS):  # the same functions, in a list of the view's own
            copies[id(hooks)] = hooks.copy()
    try:
        view: PreTrainedModel = copy.deepcopy(model, copies)
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"the modules of {type(model).__name__} cannot be copied beside their weights") from error
    return view.train(False), copies
