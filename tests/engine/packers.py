"""Checkpoints whose linear layers are packed into words, made of plain ones in numpy, as their formats describe it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import edit

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
#: QLoRA's NF4, which files hold beside each layer.
NF4 = [
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
]  # fmt: skip
#: Tensors of a layer behind its name, and the weight `[out, in]` that they stand for.
Packed = tuple[dict[str, Any], Any]
Packer = Callable[[np.ndarray], Packed]


class Rounding(NamedTuple):
    """How weights are rounded: bits, inputs of a group (-1 for all), and whether 0 is the middle value."""

    bits: int = 4
    group: int = 32
    symmetric: bool = False


class Rounded(NamedTuple):
    """Of a weight `[out, in]`: its values, and `[out, groups]` scales and zeros; the group of each input."""

    values: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    group_of: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        return (self.values - self.zeros[:, self.group_of]) * self.scales[:, self.group_of].astype(np.float32)


def rounded(weight: np.ndarray, rounding: Rounding, group_of: np.ndarray | None = None) -> Rounded:
    inputs, most = weight.shape[1], 2**rounding.bits - 1
    size = inputs if rounding.group == -1 else rounding.group
    group_of = np.arange(inputs) // size if group_of is None else group_of
    scales, zeros = [], []
    for group in range(group_of.max() + 1):
        own = weight[:, group_of == group]
        least, largest = own.min(1), own.max(1)
        if rounding.symmetric:
            least, largest = -np.abs(own).max(1), np.abs(own).max(1)
        scales.append(np.maximum((largest - least) / most, 1e-6).astype(np.float16))
        middle = np.full(len(weight), (most + 1) // 2)
        zeros.append(middle if rounding.symmetric else np.clip(np.round(-least / scales[-1]), 1, most).astype(int))
    found = np.stack(scales, 1), np.stack(zeros, 1)
    values = np.clip(np.round(weight / found[0][:, group_of] + found[1][:, group_of]), 0, most).astype(int)
    return Rounded(values, *found, group_of)


def words(values: np.ndarray, bits: int, order: list[int] | None = None) -> np.ndarray:
    """Rows of values, so many together in a word of 32 bits."""
    each = 32 // bits
    packed = np.zeros((len(values), values.shape[1] // each), np.uint32)
    for place, which in enumerate(order or range(each)):
        packed |= values[:, which::each].astype(np.uint32) << np.uint32(bits * place)
    return packed.view(np.int32)


def gptq(rounding: Rounding, less: int = 1, order: Callable[[int], np.ndarray] | None = None) -> Packer:
    """`order` is the group of each of so many inputs."""

    def pack_layer(weight: np.ndarray) -> Packed:
        own = rounded(weight, rounding, None if order is None else order(weight.shape[1]))
        tensors = {
            "qweight": words(own.values, rounding.bits).T,
            "qzeros": words(own.zeros.T - less, rounding.bits),
            "scales": own.scales.T,
            "g_idx": own.group_of.astype(np.int32),
        }
        return tensors, own.weight

    return pack_layer


def awq(rounding: Rounding) -> Packer:
    def pack_layer(weight: np.ndarray) -> Packed:
        own = rounded(weight, rounding)
        qweight, qzeros = (words(each.T, rounding.bits, AWQ_ORDER) for each in (own.values, own.zeros))
        return {"qweight": qweight, "qzeros": qzeros, "scales": own.scales.T}, own.weight

    return pack_layer


def bitsandbytes(block: int = 64, *, double: bool = False) -> Packer:
    """NF4, whose blocks' largest are in 8 bits again if it is `double`."""

    def pack_layer(weight: np.ndarray) -> Packed:
        codes, blocks = (
            np.array(NF4, np.float32),
            np.pad(weight.reshape(-1), (0, -weight.size % block)).reshape(-1, block),
        )
        largest, state = np.abs(blocks).max(1), {"quant_type": "nf4", "blocksize": block, "shape": weight.shape}
        tensors = {"weight.quant_map": codes, "weight.absmax": largest}
        if double:
            numbers, offset = np.linspace(-1, 1, 256, dtype=np.float32), largest.mean()
            outer = np.array([np.abs(part).max() for part in np.split(largest - offset, range(256, len(largest), 256))])
            inner = np.abs((largest - offset)[:, None] / outer.repeat(256)[: len(largest), None] - numbers).argmin(1)
            tensors |= {"weight.absmax": inner.astype(np.uint8), "weight.nested_absmax": outer.astype(np.float32)}
            tensors |= {"weight.nested_quant_map": numbers}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
            largest = numbers[inner] * outer.repeat(256)[: len(largest)] + offset
        values = np.abs(blocks[..., None] / largest[:, None, None] - codes).argmin(-1).astype(np.uint8)
        own, values = codes[values] * largest[:, None], values.reshape(-1)[: weight.size]
        tensors["weight"] = (values[::2] << 4 | values[1::2])[:, None]
        told = np.frombuffer(json.dumps(state, default=list).encode(), np.uint8)
        tensors["weight.quant_state.bitsandbytes__nf4"] = told
        return tensors, own.reshape(-1)[: weight.size].reshape(weight.shape)

    return pack_layer


def int8_rows(weight: np.ndarray) -> Packed:
    """LLM.int8."""
    largest = np.abs(weight).max(1).astype(np.float32)
    values = np.round(weight / largest[:, None] * 127).astype(np.int8)
    return {"weight": values, "SCB": largest, "weight_format": np.array(0, np.uint8)}, values * (largest[:, None] / 127)


def pack(
    folder: Path,
    made: Path,
    described: dict[str, object],
    packer: Packer,
    beside: str = "norm|embed|lm_head|mlp.gate.|visual",
) -> tuple[Path, Path]:
    """The packed checkpoint, but for weights whose names have something of `beside`; and its numbers in float32."""
    packed, plain = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.dim() != 2 or any(each in name for each in beside.split("|")):
            packed[name] = plain[name] = tensor.contiguous()
            continue
        parts, weight = packer(tensor.float().numpy())
        plain[name] = torch.as_tensor(weight).float()
        for part, numbers in parts.items():
            made_of = numbers.contiguous() if isinstance(numbers, torch.Tensor) else np.array(numbers, order="C")
            packed[f"{name.removesuffix('.weight')}.{part}"] = torch.as_tensor(made_of)
    for at, tensors in ((made / "packed", packed), (made / "plain", plain)):
        shutil.copytree(folder, at, ignore=shutil.ignore_patterns("*.safetensors"))
        save_file(tensors, at / "model.safetensors", {"format": "pt"})
    edit(made / "packed" / "config.json", quantization_config=described)
    return made / "packed", made / "plain"


def take_out(folder: Path, name: str) -> None:
    """Have the folder's weights lack a tensor."""
    held = load_file(folder / "model.safetensors")
    del held[name]
    save_file(held, folder / "model.safetensors", {"format": "pt"})
