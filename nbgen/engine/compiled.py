"""A layer's many small operations, fused by torch.compile: fewer kernels, and no Python between them.

Layers that are alike but for their weights share what is compiled, so that a deep model takes no longer than a shallow
one. Attention and products of packed weights stay what they are, operators that the compiler does not look into, and
so does what stands before and behind the layers. Three graphs serve every step: one token, one token of each of many
sequences, many tokens. What fits none of them (adapters, embeddings in place of ids) runs as before. Knows nothing of
batches.
"""

import logging
import os
import shutil
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from nbgen.engine.attention import UNSAID, paged_attention
from nbgen.engine.int4_linear import Int4Linear
from nbgen.engine.int8_linear import Int8Linear
from nbgen.engine.linear import PrepackedLinear
from nbgen.engine.shared_linear import Part
from nbgen.errors import ModelError

IMPLEMENTATION = "nbgen_compiled"
#: What the layers are does not change while the decoder is `active`, and need not be looked up at every step.
OPTIONS = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}

log = logging.getLogger(__name__)

#: Of the layer that runs now, by the numbers that its operators have.
_modules: list[nn.Module] = []
_numbers = count()
_library = torch.library.Library("nbgen", "DEF")
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, int module, float? scaling, int? window, float? softcap, "
    "Tensor? sinks) -> Tensor"
)
_library.define("linear(Tensor input, int module, int width) -> Tensor")


class CompiledDecoder:
    """Stands in for the forwards of a decoder's layers; compiled while `active`, which it is made as."""

    def __init__(self, model: nn.Module) -> None:
        """Raises ModelError where there is no compiler."""
        check_compiler()
        self.active = True
        self._layers = _layers(model.get_decoder())
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._linears = [linear for layer in self._layers for linear in _instead(layer, self._forward(layer))]
        self._config = model.config.get_text_config()
        self._implementation = self._config._attn_implementation
        self._config._attn_implementation = IMPLEMENTATION

    def remove(self) -> None:
        """Leave the model as it was."""
        self._config._attn_implementation = self._implementation
        for module in [*self._layers, *self._linears]:
            del module.forward

    def settle(self) -> None:
        """Compile nothing from here on: what fits no graph that there is runs as before."""
        for kind, compiled in self._compiled.items():
            self._compiled[kind] = torch.compiler.set_stance("eager_on_recompile")(compiled)

    def _forward(self, layer: nn.Module) -> Callable[..., Any]:
        """The layer's own forward, or what was compiled of the first of its kind."""
        kind, stock = _kind(layer), type(layer).forward
        if kind not in self._compiled:
            self._compiled[kind] = torch.compile(_own(stock), dynamic=True, fullgraph=True, options=OPTIONS)
        return lambda *args, **kwargs: (self._compiled[kind] if self.active else stock)(layer, *args, **kwargs)


def check_compiler() -> None:
    """Raises ModelError where torch.compile would find no C++ compiler."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        raise ModelError(f"compile needs a C++ compiler, and there is no {name}: install one, or leave compile off")


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with code of its own: graphs are kept, counted and let go with the code that they are of."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"decoder_{next(_numbers)}")
    return call


def _layers(decoder: nn.Module) -> list[nn.Module]:
    """The modules that stand one behind the other, each with attention of its own; the decoder itself if none do."""
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) and all(map(_attends, module)):
            return list(module)
    return [decoder]


def _attends(layer: nn.Module) -> bool:
    return any(hasattr(module, "layer_idx") for module in layer.modules())


def _kind(layer: nn.Module) -> Any:
    """Equal for layers that differ in nothing but weights, and in which of the model's layers they are."""
    return tuple((name, type(module), _settings(module)) for name, module in layer.named_modules())


def _settings(module: nn.Module) -> Any:
    """All that a module's code may decide by."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "layer_idx"}
    plain = [(name, repr(value)) for name, value in own.items() if isinstance(value, bool | int | float | str | tuple)]
    shapes = [(name, weight.shape, weight.dtype) for name, weight in module.named_parameters(recurse=False)]
    index, config = getattr(module, "layer_idx", None), getattr(module, "config", None)
    by_layer = [] if index is None or config is None else _of_layer(config, index)
    return tuple(sorted(plain)), tuple(shapes), tuple(by_layer)


def _of_layer(config: Any, index: int) -> list[tuple[str, str]]:
    """What a configuration lists for each layer, of this one."""
    count = config.num_hidden_layers
    lists = [(name, value) for name, value in vars(config).items() if isinstance(value, list) and len(value) == count]
    return [(name, repr(value[index])) for name, value in lists]


def _instead(layer: nn.Module, forward: Callable[..., Any]) -> list[nn.Module]:
    """Have the layer run `forward`, and those of its parts that the compiler must not look into as operators.

    Those with weights of a layout of their own, which are what comes back, are told apart within the layer.
    """
    linears = [m for m in layer.modules() if isinstance(m, PrepackedLinear | Int8Linear | Int4Linear)]
    linears += {id(m.shared): m.shared.linear for m in layer.modules() if isinstance(m, Part)}.values()
    attentions = [m for m in layer.modules() if hasattr(m, "layer_idx")]
    modules = [*linears, *attentions]
    for number, module in enumerate(modules):
        module.__dict__["_nbgen_number"] = number
    for linear in linears:
        linear.forward = _operator(linear)  # type: ignore[method-assign]

    def call(*args: Any, **kwargs: Any) -> Any:
        global _modules
        _modules = modules
        return forward(*args, **kwargs)

    layer.forward = call  # type: ignore[method-assign]
    return linears


def _operator(linear: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    number, width = linear._nbgen_number, linear.out_features
    return lambda input: torch.ops.nbgen.linear(input, number, width)


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


AttentionInterface.register(IMPLEMENTATION, _attention)
for _name, _compute in (("attend", _attend), ("linear", _linear)):
    _library.impl(_name, _compute, "CompositeExplicitAutograd")


@torch.library.register_fake("nbgen::attend", lib=_library)
def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])


@torch.library.register_fake("nbgen::linear", lib=_library)
def _multiplied(input: torch.Tensor, module: int, width: int) -> torch.Tensor:
    return input.new_empty(*input.shape[:-1], width)
