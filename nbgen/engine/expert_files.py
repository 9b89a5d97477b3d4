"""Experts' weights of a checkpoint that has each in a tensor of its own, where they lie in its files. CPU only.

transformers copies them into one tensor for all, which takes time, and memory for all of a mixture at once. While it
loads a model, tensors without numbers stand for those; what is not ours in the end gets what transformers makes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

from nbgen.engine import native_experts
from nbgen.engine.linear import swap
from nbgen.engine.native_experts import NativeExperts

#: Of each expert the tensors that lie below each other in its weight `[out, in]`.
Parts = list[list[torch.Tensor]]
#: What transformers does with experts' tensors, in order: it stacks them, those of gate and up beside each other.
CHAINS = ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)])
#: Experts that are tried, with so many rows; and how far from transformers' own a result may be, as a share of it.
TRIED, ROWS = 2, 4
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class ExpertFiles:
    """Where the weights of one model's experts lie."""

    def __init__(self) -> None:
        #: By the address of what stands for them, which is kept so that nothing else gets it.
        self._found: dict[int, tuple[torch.Tensor, Parts]] = {}

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """What transformers loads meanwhile has tensors without numbers in place of experts', until they `settle`."""
        transform: Any = WeightConverter
        stock = transform.convert

        def convert(converter: Any, *args: Any, **kwargs: Any) -> Any:
            own = converter.operations
            if [(type(each), getattr(each, "dim", None)) for each in own] in CHAINS:
                converter.operations = [_Merge(self), _Join(self)][: len(own)]
            try:
                return stock(converter, *args, **kwargs)
            finally:
                converter.operations = own

        transform.convert = convert
        try:
            yield
        finally:
            transform.convert = stock

    @torch.inference_mode()
    def settle(self, model: nn.Module, *, in_float32: bool) -> None:
        """Experts of our own over weights as they lie, if they make what transformers' make; else its tensors.

        Weights of 16 bits may compute `in_float32`.
        """
        if not self._found:
            return
        swaps = swap(model, lambda module: self._ours(module, in_float32))
        for parent, name, stock in swaps[: 0 if not swaps or self._agrees(*swaps[0]) else None]:
            setattr(parent, name, stock)
        for module in model.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                if (parts := self.parts(weight)) is not None:
                    setattr(module, name, nn.Parameter(_whole(parts), requires_grad=False))
        self._found.clear()

    def stand_in(self, parts: Parts) -> torch.Tensor:
        """A tensor without numbers for the stack of these."""
        rows, (first, *_) = sum(len(part) for part in parts[0]), parts[0]
        number = torch.empty(1, dtype=first.dtype)
        self._found[number.data_ptr()] = number, parts
        return number.expand(len(parts), rows, *first.shape[1:])

    def parts(self, weight: torch.Tensor) -> Parts | None:
        """What the tensor stands for, if it has no numbers."""
        found = self._found.get(weight.data_ptr()) if weight.device.type == "cpu" else None
        return None if found is None else found[1]

    def _ours(self, module: Any, in_float32: bool) -> NativeExperts | None:
        if not native_experts.known(module, in_float32=in_float32) or not native_experts.lies_well(module):
            return None
        both, downs = map(self.parts, native_experts.stored(module))
        if both is None or downs is None:
            return None
        weights = [[*_two(pieces), *down] for pieces, down in zip(both, downs, strict=True)]
        if not all(weight.is_contiguous() for expert in weights for weight in expert):
            return None
        bare = [[(weight, None) for weight in expert] for expert in weights]
        return native_experts.of(module, bare, in_float32=in_float32)

    def _agrees(self, parent: nn.Module, name: str, stock: Any) -> bool:
        """Whether a layer's experts make what those of transformers make of the same weights."""
        both, downs = map(self.parts, native_experts.stored(stock))
        ours, count, dtype = getattr(parent, name), stock.num_experts, stock.down_proj.dtype
        assert both is not None
        assert downs is not None
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(ROWS, downs[0][0].shape[0], generator=generator).to(dtype)
        shares = torch.rand(ROWS, TRIED, generator=generator).to(dtype)
        chosen = torch.arange(TRIED).expand(ROWS, TRIED)
        stands = stock.gate_up_proj, stock.down_proj
        try:
            stock.num_experts = TRIED
            stock.gate_up_proj, stock.down_proj = (nn.Parameter(_whole(each[:TRIED])) for each in (both, downs))
            expected = stock(hidden, chosen, shares).float()
        finally:
            stock.num_experts, (stock.gate_up_proj, stock.down_proj) = count, stands
        made = ours(hidden.to(ours.dtype), chosen, shares.to(ours.dtype)).float()
        return bool((made - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max().clamp(min=1e-6))


class _Merge(MergeModulelist):
    """Experts' tensors, as what stands for their stack."""

    def __init__(self, files: ExpertFiles) -> None:
        super().__init__(0)
        self._files = files

    def convert(self, input_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        for pattern, tensors in input_dict.items():
            if isinstance(tensors, list) and len({tensor.shape for tensor in tensors}) == 1:
                input_dict[pattern] = self._files.stand_in([[tensor] for tensor in tensors])
        merge: Any = super().convert
        return merge(input_dict, *args, **kwargs)


class _Join(Concatenate):
    """What stands for the stacks of two weights, as what stands for both together."""

    def __init__(self, files: ExpertFiles) -> None:
        super().__init__(1)
        self._files = files

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **_: Any
    ) -> Any:
        found = [input_dict.pop(pattern) for pattern in source_patterns if pattern in input_dict]
        parts = [self._files.parts(each) if isinstance(each, torch.Tensor) else None for each in found]
        if len({each and len(each) for each in parts}) > 1 or parts[0] is None:
            raise ValueError(f"experts of {target_patterns} lack some of {source_patterns}")
        joined = [[piece for pieces in expert for piece in pieces] for expert in zip(*parts, strict=True)]
        return {self.get_target_pattern(target_patterns): self._files.stand_in(joined)}


def _whole(parts: Parts) -> torch.Tensor:
    """As transformers makes it: `[experts, out, in]`."""
    return torch.stack([torch.cat(pieces) for pieces in parts])


def _two(pieces: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gate and up."""
    return list(pieces[0].chunk(2)) if len(pieces) == 1 else pieces
