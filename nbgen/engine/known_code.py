"""Which code of transformers a part of a model runs: code is compared, not the names of classes.

Many families share code. It is named by the module and class of one family: `llama.LlamaMLP`.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import cache
from types import CodeType
from typing import Any

from torch import nn

#: Families whose code others share. The code of any other is compared only with parts of that family, and of families
#: named after it: a comparison imports a family, and importing all of them takes longer than a small model's start.
COMMON = frozenset(
    (
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "olmo2",
        "phi3",
        "glm4",
        "ernie4_5",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "glm4_moe",
    )
)
#: Functions that apply rotary positions to heads, and those of families with other names for them.
ROTARY = ("apply_rotary_pos_emb", "rotate_half")
OTHERS = {
    "gpt_oss": ("apply_rotary_pos_emb", "_apply_rotary_emb"),
    "gptj": ("apply_rotary_pos_emb", "rotate_every_two"),
    "codegen": ("apply_rotary_pos_emb", "rotate_every_two"),
    "deepseek_v2": ("apply_rotary_emb",),
    "deepseek_v3": (*ROTARY, "apply_rotary_pos_emb_interleave"),
}


def like(part: nn.Module, names: Iterable[str]) -> str | None:
    """The first of these names whose code the part runs, if any. Its own family's come first: they are imported."""
    own, family = type(part).forward, type(part).__module__.rpartition(".modeling_")[2]
    asked = [name for name in names if _may_be(name, family)]
    order = sorted(asked, key=lambda name: not name.startswith(f"{family}."))
    return next((name for name in order if same_code(own, getattr(known(name), "forward", None))), None)


def turns_like(attend: Any, family: str) -> bool:
    """Whether an attention rotates its heads by that family's code, and they have an even width, which it needs."""
    home = sys.modules[type(attend).__module__]
    same = all(same_code(getattr(home, name, None), known(f"{family}.{name}")) for name in OTHERS.get(family, ROTARY))
    names = ("rotary_ndims", "qk_rope_head_dim", "head_dim")
    return same and next(width for name in names if (width := getattr(attend, name, None))) % 2 == 0


def _may_be(name: str, family: str) -> bool:
    base = name.partition(".")[0]
    return base in COMMON or family.startswith(base)


@cache
def known(name: str) -> Any:
    """The class or function of that name, imported on first use; None if this version of transformers has none."""
    family, _, part = name.partition(".")
    try:
        return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), part, None)
    except ModuleNotFoundError:
        return None


def same_code(function: Callable[..., Any] | None, other: Callable[..., Any] | None) -> bool:
    """Whether two functions have the same code, apart from strings and annotations."""
    return function is not None and other is not None and _code(function) == _code(other)


def _code(function: Callable[..., Any]) -> tuple[Any, ...]:
    code: CodeType = inspect.unwrap(function).__code__
    constants = tuple(value for value in code.co_consts if not isinstance(value, str))
    return code.co_code, code.co_names, code.co_varnames, constants
