"""Finds the entries of a model's config.json that a library's error is about: the owner sees these, the log its words.

Knows no model: an entry is found by its name or value in the error's words, or as a size that is not positive.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError

#: transformers' names for the types that an entry should have had.
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}
SIZE = re.compile(r"num_\w+|\w+_(size|dim)")
#: Entries whose values occur in many of transformers' messages.
EVERYWHERE = ("model_type", "transformers_version")
MOST_SHOWN = 80


def told(error: BaseException, config: Mapping[str, Any]) -> str:
    """What is wrong in `config`; empty if the error does not tell."""
    words, entries = str(error), dict(_entries(config))
    if isinstance(error, StrictDataclassError):
        blamed = [path for path in entries if _name(path).search(words)]
    elif isinstance(error, KeyError):
        blamed = [path for path, value in entries.items() if isinstance(value, str) and _holds(words, path, value)]
    else:
        blamed = [path for path, value in entries.items() if type(value) is int and value <= 0 and _is_size(path)]
    said = " and ".join(f"{path} is {json.dumps(entries[path])[:MOST_SHOWN]}" for path in blamed)
    kind = re.search(r"expected (?:an? )?(\w+), got", words)
    return said + (f", and must be {KINDS[kind[1]]}" if said and kind and kind[1] in KINDS else "")


def _entries(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """All entries with their paths, also those of nested configurations."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _name(path: str) -> re.Pattern[str]:
    """A pattern for an entry's name in a message: `num_attention_heads`, or "number of attention heads"."""
    name = re.escape(path.rpartition(".")[2]).replace("num_", "(?:num_|number of )")
    return re.compile(rf"\b{name.replace('_', '[_ ]')}\b")


def _holds(words: str, path: str, value: str) -> bool:
    return path not in EVERYWHERE and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", words) is not None


def _is_size(path: str) -> bool:
    return SIZE.fullmatch(path.rpartition(".")[2]) is not None
