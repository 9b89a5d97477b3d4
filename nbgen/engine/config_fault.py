"""Which entries of a model's config.json a library's error is about: these are for the owner, its words for the log.

Knows no model: an entry is found by its name or its value in those words, or as a size that nothing can have.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError

#: Types that an entry should have been of, as transformers calls them.
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}
SIZE = re.compile(r"num_\w+|\w+_(size|dim)")
#: Strings that are in many words of transformers.
EVERYWHERE = ("model_type", "transformers_version")
MOST_SHOWN = 80


def told(error: BaseException, config: Mapping[str, Any]) -> str:
    """What in `config` is wrong; empty where the error does not tell."""
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
    """All of them, also of the configurations within, by their paths."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _name(path: str) -> re.Pattern[str]:
    """An entry's name as it stands in words: `num_attention_heads`, or "number of attention heads"."""
    name = re.escape(path.rpartition(".")[2]).replace("num_", "(?:num_|number of )")
    return re.compile(rf"\b{name.replace('_', '[_ ]')}\b")


def _holds(words: str, path: str, value: str) -> bool:
    return path not in EVERYWHERE and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", words) is not None


def _is_size(path: str) -> bool:
    return SIZE.fullmatch(path.rpartition(".")[2]) is not None
