"""Weights in numbers of 8 and 4 bits beside their scales, made of plain ones as their formats describe it."""

import numpy as np
import torch

from tests.engine.packers import Packed, Packer

#: By their bits: a sign, two bits of exponent, one of mantissa.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = torch.cat((E2M1, -E2M1))
LARGEST = 448


def of_blocks(weight: torch.Tensor, rows: int, columns: int, powers: bool = False) -> tuple[torch.Tensor, ...]:
    """E4M3, the scales `[down, across]` of blocks, of which the last may be parts, and the numbers that these are."""
    down, across = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
    padding = (0, across * columns - weight.shape[1], 0, down * rows - weight.shape[0])
    blocks = torch.nn.functional.pad(weight, padding).view(down, rows, across, columns)
    scales = blocks.abs().amax((1, 3)) / LARGEST
    scales = scales.log2().ceil().exp2() if powers else scales
    values = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).float()
    values, numbers = (each.reshape(down * rows, -1) for each in (values, values * scales[:, None, :, None]))
    part = slice(weight.shape[0]), slice(weight.shape[1])
    return values[part].to(torch.float8_e4m3fn), scales, numbers[part].contiguous()


def e4m3(name: str, rows: int | None = None, columns: int | None = None, beside: str | None = None) -> Packer:
    """With the scales of blocks, or of all of a side; `beside` is the scale of inputs."""

    def pack_layer(weight: np.ndarray) -> Packed:
        whole = torch.from_numpy(weight)
        values, scales, numbers = of_blocks(whole, rows or len(whole), columns or whole.shape[1])
        tensors = {"weight": values, name: scales if scales.numel() > 1 else scales.reshape(())}
        return tensors | ({beside: torch.tensor(0.01)} if beside else {}), numbers

    return pack_layer


def int8(*, symmetric: bool) -> Packer:
    """Whole numbers, with a scale for each output, and a zero if they are not symmetric."""

    def pack_layer(weight: np.ndarray) -> Packed:
        whole = torch.from_numpy(weight)
        scales = whole.abs().amax(1, keepdim=True) / 100
        zeros = torch.zeros_like(scales) if symmetric else torch.arange(len(whole))[:, None] % 9
        values = (whole / scales + zeros).round()
        tensors = {"weight": values.to(torch.int8), "weight_scale": scales}
        return tensors | ({} if symmetric else {"weight_zero_point": zeros.to(torch.int8)}), (values - zeros) * scales

    return pack_layer


def mxfp8(weight: np.ndarray) -> Packed:
    values, scales, numbers = of_blocks(torch.from_numpy(weight), 1, 32, powers=True)
    return {"weight": values, "weight_scale": (scales.log2() + 127).to(torch.uint8)}, numbers


def e2m1(weight: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two to a byte, the first in the low half, and the numbers that these are."""
    groups = weight.unflatten(1, (scales.shape[1], -1))
    values = ((groups / scales[..., None])[..., None] - E2M1).abs().argmin(-1).to(torch.uint8)
    numbers, values = (E2M1[values.int()] * scales[..., None]).flatten(1), values.flatten(1)
    return values[:, ::2] | values[:, 1::2] << 4, numbers


def mxfp4(weight: np.ndarray) -> Packed:
    whole = torch.from_numpy(weight)
    scales = (whole.unflatten(1, (-1, 32)).abs().amax(2) / E2M1.max()).log2().ceil().exp2()
    words, numbers = e2m1(whole, scales)
    return {"weight_packed": words, "weight_scale": (scales.log2() + 127).to(torch.uint8)}, numbers


def nvfp4(*, divides: bool) -> Packer:
    """As compressed-tensors has it, whose scale of scales divides, or as ModelOpt."""

    def pack_layer(weight: np.ndarray) -> Packed:
        whole = torch.from_numpy(weight)
        outer = whole.abs().max() / (E2M1.max() * LARGEST)
        scales = (whole.unflatten(1, (-1, 16)).abs().amax(2) / E2M1.max() / outer).to(torch.float8_e4m3fn)
        words, numbers = e2m1(whole, scales.float() * outer)
        if divides:
            return {"weight_packed": words, "weight_scale": scales, "weight_global_scale": 1 / outer[None]}, numbers
        return {"weight": words, "weight_scale": scales, "weight_scale_2": outer}, numbers

    return pack_layer
