"""LoRA adapters as peft saves them: `adapter_config.json` and `adapter_model.safetensors`, read and checked.

Everything is checked against the base model's layers before any tensor is read: a configuration may say anything. An
adapter that this server cannot compute exactly as peft would is refused. Only these two files are opened.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import re2
import torch
from safetensors import SafetensorError, safe_open

from nbgen.errors import InvalidRequest
from nbgen.model_files import ADAPTER, ADAPTER_WEIGHTS

MAX_CONFIG_BYTES = 2**20
MAX_RANK = 512
#: `base_model.model.` and a layer's path, then which of the two matrices. For the output layer (`lm_head`) peft also
#: saves the frozen weight, which is the base model's.
TENSOR = re.compile(r"base_model\.model\.(?P<path>.+)\.(?:lora_(?P<side>[AB])|base_layer)\.weight")
#: Options of peft that do not change what a saved adapter computes.
HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "lora_ga_config",
    "loftq_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
}
READ = {"alpha_pattern", "init_lora_weights", "lora_alpha", "peft_type", "r", "rank_pattern", "use_rslora"}
#: Values that any other option must have, since it would change what a layer computes.
UNSET: tuple[Any, ...] = (None, False, [], {}, "none")
#: Initialisations that also change the base model's weights.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")

#: Input and output widths of a base model's linear layers, by their paths.
Shapes = Mapping[str, tuple[int, int]]
#: A compiled pattern of RE2.
Pattern = Any
Number = TypeVar("Number", int, float)

_versions = itertools.count(1)


class Pair(NamedTuple):
    """One layer's matrices: `a` `[rank, in]`, and `b` `[out, rank]` already scaled, both float32 on the CPU."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(eq=False)
class Adapter:
    """One version of an adapter: what its name meant when it was loaded. `rank` is the largest of its layers."""

    name: str
    pairs: dict[str, Pair]
    rank: int

    def __post_init__(self) -> None:
        self.version = next(_versions)


class Scaling(NamedTuple):
    """Ranks and scales as a configuration gives them, layer by layer."""

    rank: int
    alpha: float
    ranks: list[tuple[Pattern, int]]
    alphas: list[tuple[Pattern, float]]
    stabilized: bool

    def rank_of(self, path: str) -> int:
        return _fitting(self.ranks, path, self.rank)

    def factor(self, path: str) -> float:
        """The factor of the product of a layer's matrices (rsLoRA: Kalajdzievski 2023)."""
        rank = self.rank_of(path)
        return _fitting(self.alphas, path, self.alpha) / (math.sqrt(rank) if self.stabilized else rank)


def read_adapter(name: str, folder: str, shapes: Shapes) -> Adapter:
    """The adapter in a folder, for a base model of these layers. Raises InvalidRequest."""
    place = Path(os.path.expanduser(folder))
    config = _config(name, place)
    _refuse_unsupported(name, config)
    scaling = _scaling(name, config)
    try:
        with safe_open(place / ADAPTER_WEIGHTS, framework="pt") as file:
            sizes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            paths = _layers(name, sizes, scaling, shapes)
            pairs = {path: _pair(file, path, scaling.factor(path)) for path in paths}
    except (SafetensorError, OSError) as error:
        raise _refused(name, f"its {ADAPTER_WEIGHTS} is damaged: save it again") from error
    if not all(torch.isfinite(tensor).all() for pair in pairs.values() for tensor in pair):
        raise _refused(name, "its weights are not finite")
    return Adapter(name, pairs, max(len(pair.a) for pair in pairs.values()))


def _refused(name: str, words: str) -> InvalidRequest:
    return InvalidRequest(f"the adapter {name!r} cannot be loaded: {words}", field="lora_path")


def _config(name: str, folder: Path) -> dict[str, Any]:
    if not os.path.isdir(folder):  # Path's own raises for a name that is too long
        raise _refused(name, "there is no such folder on the server's machine")
    missing = [file for file in (ADAPTER, ADAPTER_WEIGHTS) if not (folder / file).is_file()]
    if missing:
        raise _refused(name, f"its folder has no {' and no '.join(missing)}; adapters are read from safetensors only")
    try:
        with (folder / ADAPTER).open("rb") as file:
            config = json.loads(file.read(MAX_CONFIG_BYTES))
    except (ValueError, OSError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise _refused(name, f"its {ADAPTER} is not a JSON object")
    return config


def _refuse_unsupported(name: str, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise _refused(name, f"its peft_type is {config.get('peft_type')!r:.80}; LORA is served")
    for option in config.keys() - HARMLESS - READ:
        if config[option] not in UNSET:
            raise _refused(name, f"it was made with {option[:80]}={config[option]!r:.80}, which is not supported")
    made = config.get("init_lora_weights")
    if isinstance(made, str) and made.lower().startswith(CHANGES_BASE):
        raise _refused(name, f"init_lora_weights={made!r:.80} changed its base model: convert it to a plain LoRA")


def _scaling(name: str, config: dict[str, Any]) -> Scaling:
    rank, alpha = config.get("r"), config.get("lora_alpha")
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    if not isinstance(ranks, dict) or not isinstance(alphas, dict):
        raise _refused(name, "rank_pattern and alpha_pattern must be objects")
    for given in (rank, *ranks.values()):
        if not isinstance(given, int) or not 1 <= given <= MAX_RANK:
            raise _refused(name, f"its rank is {given!r:.40}; it must be 1 to {MAX_RANK}")
    for given in (alpha, *alphas.values()):
        if not isinstance(given, int | float) or not math.isfinite(given):
            raise _refused(name, f"its lora_alpha is {given!r:.40}, which is no number")
    assert isinstance(rank, int)
    assert isinstance(alpha, int | float)
    try:
        by_rank, by_alpha = ([(_compile(key), given[key]) for key in given] for given in (ranks, alphas))
    except (re2.error, UnicodeEncodeError):
        words = "rank_pattern or alpha_pattern holds a key that is no regular expression which RE2 reads"
        raise _refused(name, words) from None
    return Scaling(rank, alpha, by_rank, by_alpha, bool(config.get("use_rslora")))


def _compile(key: str) -> Pattern:
    """A pattern for paths that end in a match of `key`; RE2, as an untrusted pattern must match in linear time."""
    options = re2.Options()
    options.log_errors = False
    re2.compile(key, options)  # alone too: an unbalanced parenthesis might close the group below
    return re2.compile(rf"(?:.*\.)?(?:{key})", options)


def _fitting(patterns: list[tuple[Pattern, Number]], path: str, otherwise: Number) -> Number:
    """The value of the first pattern that matches the path, else `otherwise`."""
    return next((value for pattern, value in patterns if pattern.fullmatch(path)), otherwise)


def _layers(name: str, sizes: dict[str, tuple[int, ...]], scaling: Scaling, shapes: Shapes) -> list[str]:
    """The paths of the adapted layers. Raises InvalidRequest if file, configuration and model disagree."""
    sides: dict[str, set[str]] = {}
    for key, size in sizes.items():
        if (parts := TENSOR.fullmatch(key)) is None:
            raise _refused(name, f"its tensor {key!r:.120} belongs to no linear layer")
        path, side = parts["path"], parts["side"]
        if path not in shapes:
            raise _refused(name, f"the base model has no linear layer {path!r:.120}")
        (inputs, outputs), rank = shapes[path], scaling.rank_of(path)
        expected = {"A": (rank, inputs), "B": (outputs, rank), None: (outputs, inputs)}[side]
        if size != expected:
            raise _refused(name, f"{key!r:.120} is {list(size)}; with this base model it is {list(expected)}")
        sides.setdefault(path, set()).update(side or "")
    if not sides or any(len(both) < 2 for both in sides.values()):
        raise _refused(name, "each layer needs a lora_A and a lora_B, and at least one layer must have them")
    return list(sides)


def _pair(file: Any, path: str, factor: float) -> Pair:
    a, b = (file.get_tensor(f"base_model.model.{path}.lora_{side}.weight").float() for side in "AB")
    return Pair(a, b * factor)
