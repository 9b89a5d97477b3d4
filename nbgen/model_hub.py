"""Whether a model's name can be loaded, as far as can be told in a moment: before another model is given up for it.

Reads folders' names and asks at most whether the hub answers at all; a gated or misspelt repository is told by loading.
Knows nothing of the hub's own library, which takes long to import.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from nbgen import model_files
from nbgen.errors import ModelError

HUB_SECONDS = 3.0
TRUE = ("1", "ON", "YES", "TRUE")


def check(name: str) -> None:
    """Raises ModelError for what is no model's name or folder, and for a hub id if neither it nor the hub is there."""
    if model_files.check(name) is not None or _cached(name):
        return
    if _offline():
        raise ModelError(f"{name!r} is not in the local cache, and HF_HUB_OFFLINE keeps it from being downloaded")
    if not _answers():
        raise ModelError(
            f"{name!r} is not in the local cache, and the hub cannot be reached: check the name and the network"
        )


def _cached(name: str) -> bool:
    snapshots = _cache() / f"models--{name.replace('/', '--')}" / "snapshots"
    return any(snapshots.glob("*/config.json"))


def _cache() -> Path:
    """Where the hub's library keeps what it has downloaded."""
    env = os.environ
    home = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")).expanduser()


def _offline() -> bool:
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper() in TRUE


def _answers() -> bool:
    """Whether the hub says anything, through the proxy of the environment where there is one."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if urlsplit(address).scheme not in ("http", "https"):
        return False
    try:
        urlopen(Request(address, method="HEAD"), timeout=HUB_SECONDS).close()
    except HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True
