"""Checkpoints whose linear layers are packed into words, made of plain ones, in numpy: as GPTQ and AWQ describe it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import edit

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


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
    inputs = weight.shape[1]
    size = inputs if rounding.group == -1 else rounding.group
    group_of = np.arange(inputs) // size if group_of is None else group_of
    most = 2**rounding.bits - 1
    scales, zeros = [], []
    for group in range(group_of.max() + 1):
        own = weight[:, group_of == group]
        least, largest = own.min(1), own.max(1)
        if rounding.symmetric:
            largest = np.abs(own).max(1)
            least = -largest
        scale = np.maximum((largest - least) / most, 1e-6).astype(np.float16)
        scales.append(scale)
        middle = np.full(len(weight), (most + 1) // 2)
        zeros.append(middle if rounding.symmetric else np.clip(np.round(-least / scale), 1, most).astype(int))
    scales, zeros = np.stack(scales, 1), np.stack(zeros, 1)
    values = np.clip(np.round(weight / scales[:, group_of] + zeros[:, group_of]), 0, most).astype(int)
    return Rounded(values, scales, zeros, group_of)


def words(values: np.ndarray, bits: int, order: list[int] | None = None) -> np.ndarray:
    """Rows of values, so many together in a word of 32 bits."""
    each = 32 // bits
    order = order or list(range(each))
    packed = np.zeros((len(values), values.shape[1] // each), np.uint32)
    for place, which in enumerate(order):
        packed |= values[:, which::each].astype(np.uint32) << np.uint32(bits * place)
    return packed.view(np.int32)


def gptq(own: Rounded, bits: int, less: int = 1) -> dict[str, np.ndarray]:
    return {
        "qweight": words(own.values, bits).T,
        "qzeros": words(own.zeros.T - less, bits),
        "scales": own.scales.T,
        "g_idx": own.group_of.astype(np.int32),
    }


def awq(own: Rounded, bits: int) -> dict[str, np.ndarray]:
    return {
        "qweight": words(own.values.T, bits, AWQ_ORDER),
        "qzeros": words(own.zeros.T, bits, AWQ_ORDER),
        "scales": own.scales.T,
    }


def pack(
    folder: Path,
    made: Path,
    described: dict[str, object],
    pack_layer: Callable[[Rounded, int], dict[str, np.ndarray]],
    rounding: Rounding,
    group_of: Callable[[int], np.ndarray] | None = None,
    beside: str = "norm|embed|lm_head|router|mlp.gate.|visual|conv",
) -> tuple[Path, Path]:
    """The packed checkpoint, and one of the same numbers in float32."""
    packed, plain = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.dim() != 2 or any(each in name for each in beside.split("|")):
            packed[name] = plain[name] = tensor.contiguous()
            continue
        weight = tensor.float().numpy()
        own = rounded(weight, rounding, None if group_of is None else group_of(weight.shape[1]))
        plain[name] = torch.from_numpy(own.weight.astype(np.float32))
        for part, numbers in pack_layer(own, rounding.bits).items():
            packed[f"{name.removesuffix('.weight')}.{part}"] = torch.from_numpy(np.ascontiguousarray(numbers))
    for at, tensors in ((made / "packed", packed), (made / "plain", plain)):
        shutil.copytree(folder, at, ignore=shutil.ignore_patterns("*.safetensors"))
        save_file(tensors, at / "model.safetensors", {"format": "pt"})
    edit(made / "packed" / "config.json", quantization_config=described)
    return made / "packed", made / "plain"
