"""Takes a step's rows through a decoder's layers on a GPU, in few kernels that read each weight once.

`ManyRows` leaves products to the GPU's own library, and does all between two products in one kernel. `OneRow` is bound
by memory alone: norms, gates and sums are part of the products' kernels. Needs triton: import it only with a GPU.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import nn

from nbgen.engine.decoder_kernels import add_and_norm, gate, multiply_one_row
from nbgen.engine.kernel_overlap import overlap

#: Numbers that one program gates.
GATED = 1024
#: Outputs, or inputs, up to which a product counts as small.
FEW = 1024


class Product(NamedTuple):
    """A linear layer's weight `[outputs, inputs]` and bias `[outputs]`."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class Norm(NamedTuple):
    """An RMS norm's weight, and the epsilon that keeps it from dividing by zero."""

    weight: torch.Tensor
    epsilon: float

    @classmethod
    def of(cls, module: Any) -> "Norm":
        """The norm of transformers' module."""
        return cls(module.weight, module.variance_epsilon)


class ManyRows:
    """Rows `[T, hidden]`, changed in place; a layer's result is added together with the next norm."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self._hidden = hidden
        self._added: torch.Tensor | None = None

    def product(self, norm: Norm, linear: Product) -> torch.Tensor:
        """The product `[T, outputs]` of the normed rows."""
        return nn.functional.linear(self.normed(norm), *linear)

    def gated(self, norm: Norm, linear: Product) -> torch.Tensor:
        """`silu(g) * u` `[T, outputs / 2]`; the normed rows' product has g before u."""
        projected = self.product(norm, linear)
        rows, size = len(projected), projected.shape[1] // 2
        output = projected.new_empty(rows, size)
        gate[rows, triton.cdiv(size, GATED)](
            projected, output, size, BLOCK=GATED, num_warps=4, enable_fp_fusion=True, **overlap(output.device)
        )
        return output

    def add(self, input: torch.Tensor, linear: Product) -> None:
        """Add the product of `input` `[T, inputs]` to the rows."""
        self._added = nn.functional.linear(input, *linear)

    def normed(self, norm: Norm) -> torch.Tensor:
        """`[T, hidden]`"""
        (rows, size), output = self._hidden.shape, torch.empty_like(self._hidden)
        added, block = self._added, triton.next_power_of_2(size)
        add_and_norm[(rows,)](
            self._hidden, self._hidden if added is None else added, norm.weight, output, size, norm.epsilon,
            ADDS=added is not None, BLOCK=block, num_warps=min(16, max(1, block // 512)), enable_fp_fusion=True,
            **overlap(output.device),
        )  # fmt: skip
        self._added = None
        return output

    def pick(self, rows: torch.Tensor) -> None:
        """Keep only these rows."""
        self._hidden = self._hidden[rows]
        self._added = None if self._added is None else self._added[rows]


class OneRow:
    """The same for one row `[1, hidden]`."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self._hidden = hidden

    def product(self, norm: Norm, linear: Product) -> torch.Tensor:
        return one_row(self._hidden, linear, norm)

    def gated(self, norm: Norm, linear: Product) -> torch.Tensor:
        return one_row(self._hidden, linear, norm, gated=True)

    def add(self, input: torch.Tensor, linear: Product) -> None:
        self._hidden = one_row(input, linear, added=self._hidden)


def one_row(
    input: torch.Tensor,
    linear: Product,
    norm: Norm | None = None,
    added: torch.Tensor | None = None,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """The product `[1, outputs]` of `input` `[1, inputs]`, which `norm` norms first; then gated, or plus `added`."""
    outputs, inputs = linear.weight.shape
    outputs = outputs // 2 if gated else outputs
    output = input.new_empty(1, outputs)
    rows, columns, warps = part(outputs, inputs, normed=norm is not None)
    multiply_one_row[(triton.cdiv(outputs, rows),)](
        input, input if norm is None else norm.weight, linear.weight, input if linear.bias is None else linear.bias,
        input if added is None else added, output, inputs, outputs, 0.0 if norm is None else norm.epsilon,
        NORMED=norm is not None, GATED=gated, HAS_BIAS=linear.bias is not None, ADDS=added is not None,
        BLOCK_N=rows, BLOCK_K=columns, num_warps=warps, enable_fp_fusion=True, **overlap(output.device),
    )  # fmt: skip
    return output


def part(outputs: int, inputs: int, *, normed: bool) -> tuple[int, int, int]:
    """Outputs and inputs of a program's part of the weight, and its warps: the fastest on an H200.

    Products with few outputs need small parts, so that every multiprocessor has some.
    """
    if not normed:
        rows, columns, warps = (8, 2048, 8) if outputs > 2 * FEW else (2, 2048, 8 if outputs <= FEW else 4)
    elif outputs >= 8 * FEW or inputs <= FEW:
        rows, columns, warps = 4, 2048, 2 if inputs <= FEW else 4
    else:
        rows, columns, warps = (8, 1024, 8) if inputs <= 2 * FEW else (16, 512, 8)
    return rows, min(columns, triton.next_power_of_2(inputs)), warps
