"""LoRA in one forward pass for rows of different adapters and of none (Hu et al. 2021).

All adapters' matrices are stacked: a layer computes `x A^T` for every column of the adapters in use, a mask keeps of
each row its own adapter's columns, and the product with `B` is added to the layer's own output. That is two products
for any number of adapters and any mixture of ranks. A row without an adapter gets what it would get without LoRA.

A layer is wrapped in place, whatever its kind (`linear`, `shared_linear`), and only if some adapter changes it. Knows
nothing of files or names.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from nbgen.engine import linear
from nbgen.engine.adapter_folder import Adapter, Pair
from nbgen.engine.scheduler import ScheduledSequence, packed
from nbgen.engine.upload import upload

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Rows:
    """Which columns of the stack apply to which rows of the current step; `mask` is None if no row has an adapter.

    `mask` is `[rows, columns]` of the packed tokens, or `[1, columns]` where all rows are one sequence's; `head` is the
    same for the LM head, which may see only some of the rows. `columns` is the part of the stack in use.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.mask: torch.Tensor | None = None
        self.head: torch.Tensor | None = None
        self.columns = slice(0, 0)
        self.active: frozenset[Adapter] = frozenset()


class Stack(NamedTuple):
    """One layer's adapter matrices, the same `packed` for oneDNN where possible, and the adapters that change it."""

    a: torch.Tensor
    b: torch.Tensor
    packed: tuple[torch.Tensor | None, torch.Tensor | None]
    carried: frozenset[Adapter]


class LoraLinear(nn.Module):
    """A linear layer, and what the adapters in use add to it."""

    def __init__(self, base: nn.Module, rows: Rows, *, is_head: bool) -> None:
        super().__init__()
        self.base = base
        self.in_features, self.out_features = widths(base)  # type: ignore[misc]
        self._rows = rows
        self._is_head = is_head
        self._carried: frozenset[Adapter] = frozenset()

    def __getattr__(self, name: str) -> Any:
        """A model may look at its layer's weight or bias."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def stacked(self, path: str, adapters: Sequence[Adapter], dtype: torch.dtype, device: torch.device) -> Stack:
        """The matrices of these adapters, to `hold`; zeros for an adapter that does not change this layer."""
        pairs = [adapter.pairs.get(path) or self._nothing(adapter.rank) for adapter in adapters]
        padded = [_padded(pair, adapter.rank) for pair, adapter in zip(pairs, adapters, strict=True)]
        a = torch.cat([pair.a for pair in padded]).to(device, dtype)
        b = torch.cat([pair.b.T for pair in padded]).to(device, dtype)
        carried = frozenset(adapter for adapter in adapters if path in adapter.pairs)
        return Stack(a, b, (linear.reordered(a), linear.reordered(b.T)), carried)

    def hold(self, stack: Stack) -> None:
        """Use this stack from now on."""
        self._a, self._b, self._packed, self._carried = stack

    @property
    def matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The stack: `A` `[columns, in_features]` and the transpose of `B` `[columns, out_features]`."""
        return self._a, self._b

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output = self.base(input)
        rows = self._rows
        mask = rows.head if self._is_head else rows.mask
        if mask is None or self._carried.isdisjoint(rows.active):
            return output
        return self._adapted(input.flatten(0, -2), output.flatten(0, -2), mask).view_as(output)

    def _adapted(self, input: torch.Tensor, output: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`output` `[rows, features]` plus what the adapters of `mask` add to it."""
        columns, (a, b) = self._rows.columns, self._packed
        if a is None or b is None or columns != slice(0, len(self._a)):
            return torch.addmm(output, nn.functional.linear(input, self._a[columns]).mul_(mask), self._b[columns])
        return linear.product(linear.product(input, a).mul_(mask), b, added=output)

    def _nothing(self, rank: int) -> Pair:
        return Pair(torch.zeros(rank, self.in_features), torch.zeros(self.out_features, rank))


class LoraLayers:
    """The adapters of one model: which are stacked, and which rows of a step they concern."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model = model
        self._rows = Rows()
        self._wrapped: dict[str, LoraLinear] = {}
        #: Each adapter's columns of the stack: a new dictionary whenever other adapters are carried.
        self.columns: dict[Adapter, slice] = {}
        #: Linear layers that cannot be adapted: the rows of their inputs cannot be matched to tokens.
        self.unsuited: set[str] = set()

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Watch forwards to learn which layers get one row for each token: only those can be adapted.

        Layers outside the decoder (towers) are exempt: they run for one sequence at a time.
        """
        decoder = {id(module) for module in self._model.get_decoder().modules()}
        shapes, head = linear_shapes(self._model), self._head_path()
        paths = [path for path in shapes if path != head and id(self._model.get_submodule(path)) in decoder]
        seen, tokens = dict.fromkeys(paths, 0), 0
        strange: set[str] = set()

        def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal tokens
            tokens = kwargs["input_ids"].numel()

        def look(path: str, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            seen[path] += 1
            if inputs[0].numel() != tokens * inputs[0].shape[-1]:
                strange.add(path)

        with ExitStack() as hooks:
            hooks.enter_context(self._model.register_forward_pre_hook(count, with_kwargs=True))
            for path in paths:
                hooks.enter_context(self._model.get_submodule(path).register_forward_pre_hook(partial(look, path)))
            yield
        self.unsuited = strange | {path for path, times in seen.items() if not times}

    @property
    def wraps(self) -> bool:
        """Whether layers are wrapped."""
        return bool(self._wrapped)

    def carry(self, adapters: Sequence[Adapter]) -> None:
        """Carry exactly these adapters in the model, while it does not run. If this raises, nothing has changed."""
        starts = accumulate((adapter.rank for adapter in adapters), initial=0)
        wanted = {path for adapter in adapters for path in adapter.pairs}
        layers = {path: self._wrapped.get(path) or self._layer(path) for path in wanted}
        parameter = next(self._model.parameters())
        stacks = {
            path: layer.stacked(path, adapters, self._model.dtype, parameter.device) for path, layer in layers.items()
        }
        for path in self._wrapped.keys() - wanted:
            self._put(path, self._wrapped[path].base)
        for path, layer in layers.items():
            layer.hold(stacks[path])
            self._put(path, layer)
        self._wrapped = layers
        self.columns = {a: slice(start, start + a.rank) for a, start in zip(adapters, starts, strict=False)}

    @contextmanager
    def of(self, items: Sequence[ScheduledSequence], selected: Sequence[int] | None = None) -> Iterator[None]:
        """Adapt one forward of these sequences' packed rows; `selected` are the rows whose logits are computed."""
        if not concerns(items):
            yield
            return
        try:
            self._choose(items, selected)
            yield
        finally:
            self._rows.clear()

    def _choose(self, items: Sequence[ScheduledSequence], selected: Sequence[int] | None) -> None:
        rows = self._rows
        rows.active = frozenset(item.sequence.adapter for item in items if item.sequence.adapter)
        used = [self.columns[adapter] for adapter in rows.active]
        first, last = min(columns.start for columns in used), max(columns.stop for columns in used)
        rows.columns = slice(first, last)
        mask = torch.zeros(sum(item.num_tokens for item in items), last - first)
        for start, (sequence, count) in packed(items):
            if sequence.adapter:
                own = self.columns[sequence.adapter]
                mask[start : start + count, own.start - first : own.stop - first] = 1
        device = next(self._model.parameters()).device
        rows.mask = upload(mask, device, self._model.dtype)
        rows.head = rows.mask if selected is None else rows.mask[upload(selected, device, torch.long)]

    def _head_path(self) -> str | None:
        """The path of the LM head, which may see only the rows whose logits are wanted."""
        head = self._model.get_output_embeddings()
        return next((path for path, module in self._model.named_modules() if module is head), None)

    def _layer(self, path: str) -> LoraLinear:
        base = self._model.get_submodule(path)
        return LoraLinear(base, self._rows, is_head=base is self._model.get_output_embeddings())

    def _put(self, path: str, module: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        setattr(self._model.get_submodule(parent), name, module)


def concerns(items: Sequence[ScheduledSequence]) -> bool:
    """Whether any of these sequences has an adapter."""
    return any(item.sequence.adapter for item in items)


def linear_shapes(model: "PreTrainedModel") -> dict[str, tuple[int, int]]:
    """Width of input and output of all linear layers, by their paths."""
    found = {path: widths(module) for path, module in model.named_modules()}
    return {path: sizes for path, sizes in found.items() if sizes and not path.endswith(".base")}


def widths(module: nn.Module) -> tuple[int, int] | None:
    """The widths of a linear layer's input and output; None for any other module."""
    if isinstance(module, Conv1D):
        return module.nx, module.nf
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (inputs, outputs) if isinstance(inputs, int) and isinstance(outputs, int) else None


def _padded(pair: Pair, rank: int) -> Pair:
    """The pair padded to `rank` with zeros, which changes nothing in its product."""
    missing = rank - len(pair.a)
    return Pair(nn.functional.pad(pair.a, (0, 0, 0, missing)), nn.functional.pad(pair.b, (0, missing)))
