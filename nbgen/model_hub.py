"""Quickly checks whether a model's name can be loaded, before the present model is given up for it.

Looks at the local cache, and asks the hub at most whether a configuration exists. For a logged-in user the check of
private models is left to loading. Does not use the hub's own library, which takes long to import.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from nbgen import model_files
from nbgen.errors import ModelError

HUB_SECONDS = 3.0
TRUE = ("1", "ON", "YES", "TRUE")


def check(name: str) -> None:
    """Raise ModelError for what is no model's name or folder, or a hub id that is neither cached nor found on the hub.

    An incomplete copy passes if the rest can be downloaded.
    """
    if model_files.check(name) is not None:
        return
    offline = _is_true("HF_HUB_OFFLINE") or _is_true("TRANSFORMERS_OFFLINE")
    if _cached(name):
        if offline and (state := commit(name)):
            model_files.check_files(_copy(name) / "snapshots" / state, f"the local copy of {name}")
        return
    absent = f"{name!r} is not in the local cache, and"
    if offline:
        raise ModelError(f"{absent} HF_HUB_OFFLINE keeps it from being downloaded")
    status = _status(name)
    if status is None:
        raise ModelError(f"{absent} the hub cannot be reached: check the name and the network")
    if status == 404:
        raise ModelError(f"{absent} the hub has no such model: check the name")
    if status in (401, 403) and not _logged_in():
        raise ModelError(f"{absent} the hub has no such model that is public: check the name, or log in")


def commit(name: str) -> str:
    """The commit of a hub model in the local cache; empty if none is cached."""
    try:
        return (_copy(name) / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _cached(name: str) -> bool:
    return any((_copy(name) / "snapshots").glob("*/config.json"))


def _copy(name: str) -> Path:
    return _cache() / f"models--{name.replace('/', '--')}"


def _cache() -> Path:
    """The folder in which the hub's library keeps its downloads."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(named).expanduser() if named else _home() / "hub"


def _home() -> Path:
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or os.path.join(above, "huggingface")).expanduser()


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in TRUE


def _logged_in() -> bool:
    named = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    return bool(named) or Path(os.environ.get("HF_TOKEN_PATH") or _home() / "token").expanduser().is_file()


def _status(name: str) -> int | None:
    """The hub's HTTP status for the model's configuration, through the environment's proxy; None without an answer."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if urlsplit(hub).scheme not in ("http", "https"):
        return None
    try:
        with urlopen(Request(f"{hub}/{name}/resolve/main/config.json", method="HEAD"), timeout=HUB_SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code
    except (OSError, ValueError, HTTPException):
        return None
