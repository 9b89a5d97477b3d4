"""Reads the files of words and sentences beside the modules that use them; knows nothing of what they say."""

import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).parent


@cache
def tables(name: str) -> dict:
    """The content of one file."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def wording(name: str) -> SimpleNamespace:
    """The same, each key an attribute."""
    return SimpleNamespace(**tables(name))
