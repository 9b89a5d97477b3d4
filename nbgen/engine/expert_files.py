"""Keeps experts' weights as a checkpoint has them for our own experts: one tensor each, or MXFP4. CPU only.

transformers stacks the former into one tensor and dequantizes the latter to 16 bits, which takes time, and memory for a
whole mixture at once. So while it loads a model, it gets placeholders for them; layers that do not become ours get the
tensors that transformers makes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter
from transformers.integrations.mxfp4 import Mxfp4Dequantize

from nbgen.engine import native_experts
from nbgen.engine.checkpoint import Report
from nbgen.engine.expert_weights import Apart, Mxfp4, Packed, Weights
from nbgen.engine.linear import restore, swap
from nbgen.engine.native_experts import NativeExperts

#: transformers' operations on experts' tensors, in order: it stacks them, and joins the stacks of gate and up.
CHAINS = ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)])
#: Weights of a whole mixture, not of one linear layer.
MIXTURES = (Apart, Mxfp4)
#: Experts and rows of a trial; and how far a result may be from transformers' own, as a share of it.
TRIED, ROWS = 2, 4
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class ExpertFiles:
    """The weights of one model's experts, behind their placeholders."""

    def __init__(self, *, written_out: bool) -> None:
        """`written_out`: loading dequantizes weights, of which only MXFP4's can be kept here."""
        self._chains = () if written_out else CHAINS
        #: By the address of the placeholder, which is kept alive so that no other tensor gets its address.
        self._found: dict[int, tuple[torch.Tensor, Weights | Packed]] = {}

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Give models that transformers loads meanwhile placeholders for experts' weights, until `settle`."""
        transform: Any = WeightConverter
        stock = transform.convert

        def convert(converter: Any, *args: Any, **kwargs: Any) -> Any:
            own = converter.operations
            if [type(each) for each in own] == [Mxfp4Dequantize]:
                converter.operations = [_Unwritten(self, own[0])]
            elif [(type(each), getattr(each, "dim", None)) for each in own] in self._chains:
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
    def settle(self, model: nn.Module, report: Report, *, in_float32: bool) -> None:
        """Replace placeholders by our experts if these agree with transformers', else by transformers' tensors.

        Weights of 16 bits may compute `in_float32`. `report` is told how many weights are done.
        """
        if not self._found:
            return
        done, total = 0, len(self._found)

        def ours(module: nn.Module) -> NativeExperts | None:
            nonlocal done
            if (made := self._ours(module, in_float32)) is not None:
                done += 2
                report("laying out experts", done, total)
            return made

        swaps = swap(model, ours)
        if swaps and not self._agrees(*swaps[0]):
            restore(swaps)
        for module in model.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                if (found := self.found(weight)) is not None:
                    setattr(module, name, nn.Parameter(found.whole(), requires_grad=False))
        self._found.clear()

    def stand_in(self, weights: Weights | Packed) -> torch.Tensor:
        """A placeholder for these weights: a tensor of NaN that takes no memory."""
        number = torch.full((1,), torch.nan, dtype=weights.dtype)
        self._found[number.data_ptr()] = number, weights
        return number.expand(weights.shape)

    def found(self, weight: torch.Tensor) -> Weights | Packed | None:
        """The weights that a placeholder stands for; None for any other tensor."""
        found = self._found.get(weight.data_ptr()) if weight.device.type == "cpu" else None
        return None if found is None else found[1]

    def take(self, weight: torch.Tensor) -> Weights | Packed | None:
        """The same, and the tensor is a placeholder no longer."""
        return self._found.pop(weight.data_ptr(), (weight, None))[1]

    def packed(self, weight: torch.Tensor) -> torch.Tensor | Packed:
        """The packed weight that a placeholder stands for, or else the tensor itself."""
        found = self.take(weight)
        return found if isinstance(found, Packed) else weight

    def _ours(self, module: Any, in_float32: bool) -> NativeExperts | None:
        if not native_experts.known(module, in_float32=in_float32):
            return None
        both, downs = map(self.found, native_experts.stored(module))
        if not isinstance(both, MIXTURES) or not isinstance(downs, MIXTURES):
            return None
        dtype = torch.float32 if in_float32 else module.down_proj.dtype
        two, one = both.products(module, dtype, two=module.has_gate), downs.products(module, dtype, two=False)
        if two is None or one is None:
            return None
        return native_experts.with_products(
            module, [[*gate, *down] for gate, down in zip(two, one, strict=True)], dtype
        )

    def _agrees(self, parent: nn.Module, name: str, stock: Any) -> bool:
        """Whether our experts' results agree with transformers' experts over the same weights."""
        names = native_experts.names(stock)
        stands = [getattr(stock, each) for each in names]
        both, downs = map(self.found, stands)
        ours, count, dtype = getattr(parent, name), stock.num_experts, stock.down_proj.dtype
        assert isinstance(both, MIXTURES)
        assert isinstance(downs, MIXTURES)
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(ROWS, ours.width, generator=generator).to(dtype)
        shares = torch.rand(ROWS, TRIED, generator=generator).to(dtype)
        chosen = torch.arange(TRIED).expand(ROWS, TRIED)
        try:
            stock.num_experts = TRIED
            for each, weights in zip(names, (both, downs), strict=True):
                setattr(stock, each, nn.Parameter(weights.whole(TRIED)))
            expected = stock(hidden, chosen, shares).float()
        finally:
            stock.num_experts = count
            for each, stood in zip(names, stands, strict=True):
                setattr(stock, each, stood)
        made = ours(hidden.to(ours.dtype), chosen, shares.to(ours.dtype)).float()
        return bool((made - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max().clamp(min=1e-6))


class _Merge(MergeModulelist):
    """Makes a placeholder for the stack of experts' tensors."""

    def __init__(self, files: ExpertFiles) -> None:
        super().__init__(0)
        self._files = files

    def convert(self, input_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        for pattern, tensors in input_dict.items():
            if isinstance(tensors, list) and len({tensor.shape for tensor in tensors}) == 1:
                input_dict[pattern] = self._files.stand_in(Apart([[self._files.packed(each)] for each in tensors]))
        merge: Any = super().convert
        return merge(input_dict, *args, **kwargs)


class _Join(Concatenate):
    """Makes one placeholder for two joined stacks from their placeholders."""

    def __init__(self, files: ExpertFiles) -> None:
        super().__init__(1)
        self._files = files

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **_: Any
    ) -> Any:
        found = [input_dict.pop(pattern) for pattern in source_patterns if pattern in input_dict]
        apart = [self._files.take(each) if isinstance(each, torch.Tensor) else None for each in found]
        parts = [each.parts for each in apart if isinstance(each, Apart)]
        if len(parts) < len(found) or len({len(each) for each in parts}) != 1:
            raise ValueError(f"experts of {target_patterns} lack some of {source_patterns}")
        joined = [[piece for pieces in expert for piece in pieces] for expert in zip(*parts, strict=True)]
        return {self.get_target_pattern(target_patterns): self._files.stand_in(Apart(joined))}


class _Unwritten(Mxfp4Dequantize):
    """Makes a placeholder for the weight that transformers would dequantize from blocks and scales."""

    def __init__(self, files: ExpertFiles, stock: Mxfp4Dequantize) -> None:
        super().__init__(stock.hf_quantizer)
        self._files = files

    def convert(self, input_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        name, model = kwargs["full_layer_name"], kwargs["model"]
        given = {
            key.rpartition("_")[2]: each[0] if isinstance(each, list) else each for key, each in input_dict.items()
        }
        weight = model.get_parameter(name)
        if len(given) == 2 and (weights := Mxfp4(given["blocks"], given["scales"], weight.dtype)).fits(weight):
            return {name: self._files.stand_in(weights)}
        write_out: Any = super().convert
        return write_out(input_dict, *args, **kwargs)
