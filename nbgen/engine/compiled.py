"""Fuses a decoder's many small operations by torch.compile: fewer kernels, and no Python between them.

Attention and products of packed weights remain operators that the compiler does not look into; the output layer stays
outside. Three graphs serve every step: one token, one token of each of many sequences, many tokens. What fits none of
them (adapters, embeddings in place of ids) runs uncompiled. Knows nothing of batches.
"""

import logging
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from transformers import AttentionInterface

from nbgen.engine import native
from nbgen.engine.attention import paged_attention
from nbgen.engine.attention_window import UNSAID
from nbgen.engine.int4_linear import Int4Linear
from nbgen.engine.int8_linear import Int8Linear
from nbgen.engine.linear import PrepackedLinear
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_linear import NativeProduct
from nbgen.engine.shared_linear import Part
from nbgen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPLEMENTATION = "nbgen_compiled"
#: The layers do not change while the decoder is `active`, so no guard need look at them at every step.
OPTIONS = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}

log = logging.getLogger(__name__)

_modules: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_names = count()
_library = torch.library.Library("nbgen", "DEF")
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, int module, float? scaling, int? window, float? softcap, "
    "Tensor? sinks) -> Tensor"
)
_library.define("linear(Tensor input, int module, int width) -> Tensor")
_library.define("experts(Tensor hidden, Tensor chosen, Tensor shares, int module) -> Tensor")


class CompiledDecoder:
    """Replaces the forward of a model's decoder; runs compiled while `active`, as it is at first."""

    def __init__(self, model: "PreTrainedModel") -> None:
        """Raises ModelError if there is no compiler."""
        options: dict[str, Any] = {**OPTIONS, "cpp.cxx": (None, _compiler())}
        self.active = True
        self._decoder = model.get_decoder()
        self._stock = self._decoder.forward
        self._compiled = torch.compile(_own(self._stock), dynamic=True, fullgraph=True, options=options)
        self._linears = _hide_linears(model)
        for layer in model.modules():
            if hasattr(layer, "layer_idx"):
                _number(layer)
        self._config = model.config.get_text_config()
        self._implementation = self._config._attn_implementation
        self._config._attn_implementation = IMPLEMENTATION
        self._decoder.forward = self._forward

    def remove(self) -> None:
        """Restore the model as it was."""
        self._config._attn_implementation = self._implementation
        for module in [self._decoder, *self._linears]:
            del module.forward

    def settle(self) -> None:
        """Compile nothing from here on: steps that fit no existing graph run uncompiled."""
        self._compiled = torch.compiler.set_stance("eager_on_recompile")(self._compiled)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self._compiled if self.active else self._stock)(*args, **kwargs)


def _compiler() -> str:
    """The C++ compiler for torch.compile, which takes a command of one word. Raises ModelError if there is none."""
    found = next((command[0] for command in native.compilers() if len(command) == 1), None)
    if found is None:
        tried = ", ".join(native.COMPILERS)
        raise ModelError(
            f"compile needs a C++ compiler, and there is none of {tried}: install one, or leave compile off"
        )
    return found


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own: torch.compile keeps, counts and drops graphs by code object."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"decoder_{next(_names)}")
    return call


def _hide_linears(model: "PreTrainedModel") -> list[nn.Module]:
    """Call every layer whose weights have a special layout as an operator; returns these layers."""
    kinds = NativeProduct | NativeExperts | PrepackedLinear | Int8Linear | Int4Linear
    found: list[nn.Module] = [module for module in model.modules() if isinstance(module, kinds)]
    found += {id(m.shared): m.shared.linear for m in model.modules() if isinstance(m, Part)}.values()
    for linear in found:
        linear.forward = _operator(linear)
    return found


def _operator(linear: Any) -> Callable[..., torch.Tensor]:
    number = _number(linear)
    if isinstance(linear, NativeExperts):
        return lambda hidden, chosen, shares: torch.ops.nbgen.experts(hidden, chosen, shares, number)
    width = linear.out_features
    return lambda input: torch.ops.nbgen.linear(input, number, width)


def _number(module: nn.Module) -> int:
    """The number by which an operator finds the module: the least that is free.

    So a model that comes back has the same numbers, which are part of its graphs, and torch's cache knows these.
    """
    if "_nbgen_number" not in module.__dict__:
        module.__dict__["_nbgen_number"] = number = next(each for each in count() if each not in _modules)
        _modules[number] = module
    return module.__dict__["_nbgen_number"]


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = UNSAID,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """`paged_attention` as one operator."""
    if position_bias is not None or attention_mask is not None:
        raise NotImplementedError("attention with a position bias or the model's own mask")
    number = module._nbgen_number
    return torch.ops.nbgen.attend(query, key, value, number, scaling, sliding_window, softcap, s_aux), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    module: int,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    layer = _modules[module]
    output = paged_attention(
        layer, query, key, value, scaling=scaling, sliding_window=window, softcap=softcap, s_aux=sinks
    )
    return output[0].contiguous()


def _linear(input: torch.Tensor, module: int, width: int) -> torch.Tensor:
    return type(_modules[module]).forward(_modules[module], input)


def _experts(hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, module: int) -> torch.Tensor:
    return type(_modules[module]).forward(_modules[module], hidden, chosen, shares)


AttentionInterface.register(IMPLEMENTATION, _attention)
for _name, _compute in (("attend", _attend), ("linear", _linear), ("experts", _experts)):
    _library.impl(_name, _compute, "CompositeExplicitAutograd")


@torch.library.register_fake("nbgen::attend", lib=_library)  # type: ignore[untyped-decorator]
def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])


@torch.library.register_fake("nbgen::linear", lib=_library)  # type: ignore[untyped-decorator]
def _multiplied(input: torch.Tensor, module: int, width: int) -> torch.Tensor:
    return input.new_empty(*input.shape[:-1], width)


@torch.library.register_fake("nbgen::experts", lib=_library)  # type: ignore[untyped-decorator]
def _mixed(hidden: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(hidden)
