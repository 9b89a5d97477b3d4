"""Loads checkpoints whose layers are packed into words: transformers gets placeholders for the packed weights.

So transformers needs no library of the format. Linear layers and experts that our own layers can replace keep their 8
or 4 bits. Weights that transformers changes on loading, or that we have no layer for, are unpacked. CPU only.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.auto.auto_factory import _get_model_class

from nbgen.engine import bitsandbytes_weights, memory, packed_weight, scaled_weight
from nbgen.engine.checkpoint import Report
from nbgen.engine.expert_files import ExpertFiles
from nbgen.engine.expert_weights import Packed
from nbgen.engine.linear import is_plain, shown_weights
from nbgen.engine.packed_layers import Packing
from nbgen.model_files import weight_files

#: A family whose plain files have all experts in one tensor; its packed files have them apart, like the second family.
TOGETHER, APART = "qwen3_vl_moe", "qwen2_moe"

log = logging.getLogger(__name__)


def load(
    folder: Path,
    packing: Packing,
    auto: Any,
    files: ExpertFiles,
    architecture: Any,
    dtype: torch.dtype | str,
    *,
    written_out: bool,
) -> tuple[Any, dict[str, Any]]:
    """The model that `auto` makes of a configuration, and transformers' report of loading it.

    Packed weights become stand-ins made by `files`; or they are `written_out` (unpacked), also if a stand-in is lost.
    """
    for config in (architecture, architecture.get_text_config()):
        vars(config).pop("quantization_config", None)
    if not isinstance(dtype, torch.dtype):  # use the checkpoint's own
        dtype = architecture.dtype or architecture.get_text_config().dtype or torch.float16
    _take_experts_apart()
    made: Any = _get_model_class(architecture, auto._model_mapping)
    if hasattr(sys.modules[made.__module__], "Conv1D"):  # its weights are [in, out], which no packed format has
        return _made(folder, packing, made, lambda packed: packed.whole().T, architecture, dtype)
    if written_out:
        return _made(folder, packing, made, lambda packed: packed.whole(), architecture, dtype)
    model, loading = _made(folder, packing, made, files.stand_in, architecture, dtype)
    if any(map(_is_lost, (weight for weight in model.parameters() if files.found(weight) is None))):
        log.warning("%s changes its weights while they are loaded: all are written out", type(model).__name__)
        model, loading = _made(folder, packing, made, lambda packed: packed.whole(), architecture, dtype)
    return model, loading


@torch.inference_mode()
def replace(model: nn.Module, files: ExpertFiles, dtype: torch.dtype, report: Report) -> None:
    """Replace packed linear layers by ours, which compute in `dtype`; `report` is called with the layers done."""
    shown = shown_weights(model)
    places = [
        (parent, name, child, packed)
        for parent in model.modules()
        for name, child in parent.named_children()
        if is_plain(child) and id(child) not in shown
        if isinstance(packed := files.found(child.weight), Packed)
    ]
    for done, (parent, name, child, packed) in enumerate(places):
        if (layer := packed.layer(child.bias, dtype)) is not None:
            setattr(parent, name, layer)
        report("laying out weights", done + 1, len(places))
    if places:
        memory.drop_pages(*(packed.words for *_, packed in places))


@cache
def _take_experts_apart() -> None:
    """Have transformers read packed experts, which are apart, for the family that has them together (`TOGETHER`)."""
    own: Any = get_checkpoint_conversion_mapping(TOGETHER)
    others: Any = get_checkpoint_conversion_mapping(APART)
    if own and others:
        register_checkpoint_conversion_mapping(TOGETHER, own + others, overwrite=True)


def _made(
    folder: Path,
    packing: Packing,
    made: Any,
    stands_for: Callable[[Packed], torch.Tensor],
    architecture: Any,
    dtype: torch.dtype,
) -> tuple[Any, dict[str, Any]]:
    with ExitStack() as opened:
        tensors = {
            name: file.get_slice(name)
            for path in weight_files(folder)
            for file in [opened.enter_context(safe_open(path, framework="pt"))]
            for name in file.keys()  # noqa: SIM118, since it is no dictionary
        }
        state = dict(_state(tensors, packing, stands_for, dtype))
        return made.from_pretrained(
            None,
            config=architecture,
            state_dict=state,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the loader refuses these itself
        )


def _state(
    tensors: dict[str, Any], packing: Packing, stands_for: Callable[[Packed], torch.Tensor], dtype: torch.dtype
) -> Iterator[tuple[str, Any]]:
    """Every weight with its name; for packed ones what `stands_for` makes of them."""
    for layer, bits in packing.bits.items():

        def take(part: str, layer: str = layer) -> torch.Tensor | None:
            found = tensors.pop(f"{layer}.{part}", None)
            return None if found is None else found[...]

        if packing.form == "bitsandbytes":
            yield f"{layer}.weight", stands_for(bitsandbytes_weights.taken(bits, take, dtype))
        elif packing.is_scaled:
            yield f"{layer}.weight", stands_for(scaled_weight.taken(packing.block, take, dtype))
        else:
            yield f"{layer}.weight", stands_for(packed_weight.taken(packing, bits, take, dtype))
    yield from tensors.items()


def _is_lost(weight: torch.Tensor) -> bool:
    """Whether it was computed from a stand-in, whose numbers are NaN."""
    return not memory.are_mapped(weight) and bool(weight.isnan().any())
