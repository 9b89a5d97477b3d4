"""The rows of a step on their way through a decoder's layers on a GPU: in few kernels, each reading weights once.

`ManyRows` leaves products to the GPU's own library, and everything between them is one kernel. `OneRow` is bound by
memory alone: norms, gates and sums go into the kernels of the products. Needs triton: import it where there is a GPU.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import nn

from nbgen.engine.decoder_kernels import add_and_norm, gate, multiply_one_row
from nbgen.engine.kernel_overlap import overlap

#: Numbers of one part that a program works on.
GATED = 1024
#: Outputs, or inputs, of a product.
FEW = 1024


class Product(NamedTuple):
    """A linear layer's weight `[outputs, inputs]` and bias `[outputs]`."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class Norm(NamedTuple):
    """An RMS norm's weight, and what keeps it from dividing by zero."""

    weight: torch.Tensor
    epsilon: float

    @classmethod
    def of(cls, module: Any) -> "Norm":
        """Of transformers' module."""
        return cls(module.weight, module.variance_epsilon)


class ManyRows:
    """Rows `[T, hidden]`; what a layer adds to them is added with the next norm. They are taken over, and written."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self._hidden = hidden
        self._added: torch.Tensor | None = None

    def product(self, norm: Norm, linear: Product) -> torch.Tensor:
        """`[T, outputs]` of the normed rows."""
        return nn.functional.linear(self.normed(norm), *linear)

    def gated(self, norm: Norm, linear: Product) -> torch.Tensor:
        """`silu(g) * u` `[T, outputs / 2]` of the normed rows' products, g before u."""
        projected = self.product(norm, linear)
        rows, size = len(projected), projected.shape[1] // 2
        output = projected.new_empty(rows, size)
        gate[rows, triton.cdiv(size, GATED)](
            projected, output, size, BLOCK=GATED, num_warps=4, enable_fp_fusion=True, **overlap(output.device)
        )
        return output

    def add(self, input: torch.Tensor, linear: Product) -> None:
        """Add the product of `input` `[T, inputs]`."""
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
        """Go on with these rows alone."""
        self._hidden = self._hidden[rows]
        self._added = None if self._added is None else self._added[rows]


class OneRow:
    """One row `[1, hidden]`, the same."""

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
    """`[1, outputs]` of `input` `[1, inputs]`, normed before by `norm`, gated, or `added` to."""
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
    """Outputs and inputs of a program's part of the weight, and its warps: what was fastest on an H200.

    Products of few outputs need small parts, to have some for every multiprocessor.
    """
    if not normed:
        rows, columns, warps = (8, 2048, 8) if outputs > 2 * FEW else (2, 2048, 8 if outputs <= FEW else 4)
    elif outputs >= 8 * FEW or inputs <= FEW:
        rows, columns, warps = 4, 2048, 2 if inputs <= FEW else 4
    else:
        rows, columns, warps = (8, 1024, 8) if inputs <= 2 * FEW else (16, 512, 8)
    return rows, min(columns, triton.next_power_of_2(inputs)), warps
