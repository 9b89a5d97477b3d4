"""Linear layers in C++ of our own, which read a weight as it lies in its file: no copy, no other layout. CPU only.

A row's result never depends on the rows beside it, to the last bit. Knows nothing of models.
"""

import ctypes
from ctypes import c_int64, c_void_p

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from nbgen.engine import memory, native
from nbgen.engine.linear import Swap, is_plain, swap
from nbgen.engine.native import function, library

#: Number of outputs that the C++ computes together.
OUTPUTS = 4
ALL = slice(None)
#: Products with fewer multiplications than this run on one thread: waking another takes longer.
SMALL = 2**15


class LinearFields(ctypes.Structure):
    """`Linear` of the C++."""

    _fields_ = [
        *((name, c_void_p) for name in ("weight", "bias", "down", "up")),
        *((name, c_void_p) for name in ("bfloat16", "float16", "integers", "scales", "steps")),
        *((name, c_void_p) for name in ("numbers", "exponents", "factors", "order")),
        *((name, c_int64) for name in ("inputs", "outputs", "shift", "floats")),
    ]

    @classmethod
    def of_table(cls, weight: torch.Tensor, dtype: torch.dtype) -> "LinearFields":
        """For a table `[vocab, hidden]` that is read as `dtype`: its own, or one that holds its numbers exactly."""
        outputs, inputs = weight.shape
        return cls(**{kept_as(weight, dtype): weight.data_ptr()}, inputs=inputs, outputs=outputs)


class NativeProduct(nn.Module):
    """A linear layer whose weight `suits` this machine, in the layout that its subclass gives it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Only the shape and the type of `weight` `[out, in]` are looked at."""
        super().__init__()
        if (multiply := function("multiply", weight.dtype)) is None:
            raise ValueError(f"no product of our own for {weight.dtype}")
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        #: The input that each weight of a row multiplies, if the weights are not in the order of inputs.
        self.order: torch.Tensor | None = None
        #: The base-2 logarithm of how many groups of inputs share a factor, where the kind of weight does not tell.
        self.shift = 0
        self._dtype, self._multiply = weight.dtype, multiply

    def fields(self, rows: slice = ALL, matrices: tuple[torch.Tensor, torch.Tensor] | None = None) -> LinearFields:
        """Where the weight's `rows` lie, valid while they stay there, and adapters' `matrices`, `[columns, …]` each."""
        numbers: dict[str, torch.Tensor | None] = {"bias": self.bias, **self._numbers()}
        if rows is not ALL:
            numbers = {name: None if tensor is None else tensor[rows] for name, tensor in numbers.items()}
        down, up = matrices or (None, None)
        tensors = {**numbers, "down": down, "up": up, "order": self.order}
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
        outputs = len(range(self.out_features)[rows])
        return LinearFields(**pointers, inputs=self.in_features, outputs=outputs, shift=self.shift)

    @property
    def nbytes(self) -> int:
        """Bytes of the weight and what belongs to it, such as scales, without bias."""
        return sum(tensor.nbytes for tensor in self._numbers().values())

    def _numbers(self) -> dict[str, torch.Tensor]:
        """The tensors that the weight is kept as, by their names in `LinearFields`."""
        raise NotImplementedError

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dtype != self._dtype:
            raise RuntimeError(f"expected inputs of the weight's dtype, {self._dtype}, and got {input.dtype}")
        input = input.contiguous()
        rows = input.numel() // self.in_features
        output = input.new_empty(*input.shape[:-1], self.out_features)
        small = rows * self.in_features * self.out_features < SMALL
        threads = 1 if small else torch.get_num_threads()
        self._multiply(ctypes.byref(self.fields()), rows, threads, input.data_ptr(), output.data_ptr())
        return output


class RoundedProduct(NativeProduct):
    """A product whose weight is quantized. Only for weights that `suits_rounded`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        if not native.rounds(weight.dtype):
            raise ValueError(f"no product of our own for rounded weights of {weight.dtype}")


class NativeLinear(NativeProduct):
    """Replaces an `nn.Linear`, over the same weight `[out, in]`, which is contiguous and `suits`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self.weight = weight

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}


def replace(model: nn.Module) -> list[Swap]:
    """Replace the model's linear layers that can be read as they are."""

    def native(module: nn.Module) -> nn.Module | None:
        if type(module) is Conv1D and _on_cpu(module.weight) and suits(module.weight.T, any_outputs=True):
            return NativeLinear(_turned(module.weight), module.bias)
        return NativeLinear(module.weight, module.bias) if is_plain(module) and readable(module) else None

    return swap(model, native)


def _turned(weight: torch.Tensor) -> torch.Tensor:
    """A copy `[out, in]` of a weight `[in, out]`; the pages of the weight's file are dropped."""
    turned = weight.detach().T.contiguous()
    memory.drop_pages(weight)
    return turned


def kept_as(weight: torch.Tensor, dtype: torch.dtype) -> str:
    """The field of `LinearFields` for a weight of a layer of `dtype`."""
    return "weight" if weight.dtype == dtype else str(weight.dtype).removeprefix("torch.")


def readable(linear: nn.Linear) -> bool:
    """Whether this machine has a product for the weight as it lies there."""
    weight = linear.weight
    return _on_cpu(weight) and weight.is_contiguous() and suits(weight, any_outputs=True)


def _on_cpu(weight: torch.Tensor) -> bool:
    return type(weight) in (nn.Parameter, torch.Tensor) and weight.device.type == "cpu"


def suits(weight: torch.Tensor, *, any_outputs: bool = False) -> bool:
    """Whether this machine has a product for its type and shape: whole vectors of inputs, whole fours of outputs.

    A weight that is not quantized may have `any_outputs`: more than fill whole fours.
    """
    if (made := library(weight.dtype)) is None or function("multiply", weight.dtype) is None:
        return False
    if weight.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported() and not native.tiles():
        return False  # oneDNN can use tiles that we cannot, and is faster
    whole = weight.shape[0] % OUTPUTS == 0 or (any_outputs and weight.shape[0] > OUTPUTS)
    return whole and weight.shape[1] % made.step() == 0


def suits_rounded(weight: torch.Tensor) -> bool:
    """The same for a quantized layer; the first call compiles the products of such layers."""
    return suits(weight) and native.rounds(weight.dtype)
