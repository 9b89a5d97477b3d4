"""A model's files on disk: found or downloaded, and checked by name before anything reads them (`model_files`).

No code from a model's folder is ever run. Knows nothing of torch.
"""

import logging
import math
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from nbgen import safetensors_file
from nbgen.errors import ModelError
from nbgen.model_files import check_files, model_folder, weight_files
from nbgen.safetensors_file import Entry

DOWNLOADED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
#: Suffix of the subfolders that hold layers of a model (`dense_modules`).
DENSE = "_Dense"
#: Duplicates of the weights for their makers' own programs, which are in subfolders with any other suffix.
NOT_DOWNLOADED = [
    *(f"*[!{DENSE[place]}]{DENSE[place + 1 :]}/*.safetensors" for place in range(len(DENSE))),
    "consolidated*.safetensors",
]
#: Bytes read at once, if the last of them is not in memory: the first ones may have been read ahead.
PAGE_IN_BYTES = 2 * 2**20

Report = Callable[[str, int, int], None]

log = logging.getLogger(__name__)

#: Folders of this process's downloads: the hub is asked once, so a model stays the same while the process lives.
_downloads: dict[str, Path] = {}


def find(name: str, report: Report) -> Path:
    """The checked folder of `name`; a hub id is downloaded if it is not there yet. Raises ModelError."""
    folder = model_folder(name) or _kept(name) or _download(name, report)
    check_files(folder, name)
    return folder


def weight_bytes(folder: Path) -> int:
    """The size of the weight files."""
    return sum(path.stat().st_size for path in weight_files(folder))


def tensors(folder: Path) -> dict[str, Entry]:
    """The header entry of each tensor in the weight files; none for a damaged file, which loading will report."""
    return {name: entry for path in weight_files(folder) for name, entry in safetensors_file.tensors(path).items()}


def present(name: str) -> Path | None:
    """The folder of `name` if it is on this machine. It is not checked: loading reports what is wrong with it."""
    try:
        return model_folder(name) or _downloaded(name)
    except (ModelError, ValueError):  # not a model's name
        return None


def _kept(name: str) -> Path | None:
    """The folder of a download of this process, if nobody has deleted it."""
    folder = _downloads.get(name)
    return folder if folder and folder.is_dir() else None


def _downloaded(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def page_in(name: str) -> None:
    """Have the operating system read a local model's weights ahead of use, except those that are in memory already."""
    with suppress(ModelError, OSError):  # loading reports what is wrong
        for path in weight_files(folder) if (folder := present(name)) else ():
            with path.open("rb", buffering=0) as file:
                _read_missing(file, path.stat().st_size)


def _read_missing(file: FileIO, size: int) -> None:
    buffer = bytearray(PAGE_IN_BYTES)
    for start in range(0, size, PAGE_IN_BYTES):
        if not _is_in_memory(file.fileno(), min(start + PAGE_IN_BYTES, size) - 1):
            file.seek(start)
            file.readinto(buffer)


def _is_in_memory(descriptor: int, at: int) -> bool:
    """Whether this byte of a file is in memory; False if the system does not say."""
    try:
        return os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except (AttributeError, OSError):
        return False


def _download(name: str, report: Report) -> Path:
    from huggingface_hub import snapshot_download
    from tqdm.auto import tqdm

    class Progress(tqdm):  # type: ignore[misc]
        """Reports the bytes received from the bar that is furthest ahead: others count files, or fewer bytes."""

        most = 0.0

        def display(self, *_: Any, **__: Any) -> None:
            if self.unit == "B" and self.n >= Progress.most:
                Progress.most = self.n
                report(f"downloading {name}", int(self.n), int(self.total or 0))

    try:
        _downloads[name] = Path(
            snapshot_download(name, allow_patterns=DOWNLOADED, ignore_patterns=NOT_DOWNLOADED, tqdm_class=Progress)
        )
        return _downloads[name]
    except Exception as error:  # from the hub's library, those beneath it, or the network
        log.exception("downloading %s", name)
        raise ModelError(
            f"{name!r} is not in the local cache and could not be downloaded ({type(error).__name__}): "
            "check the name, the network, and that you are logged in if the model is gated"
        ) from error
    finally:
        Progress.most = math.inf  # bars call `display` once more when they are deleted
