"""transformers knows the same models by a list that was kept as by its own."""

import os
import time
from pathlib import Path

import pytest

from tests.engine.test_lean_imports import fresh

#: Engines leave torchvision out, without which some names come from other modules of transformers'.
WITHOUT = "import sys; sys.modules['torchvision'] = None\n"
KNOWN = """
import hashlib, transformers, transformers.models
for module in (transformers, transformers.models):
    names = module._class_to_module
    print(len(names), hashlib.sha256(repr(sorted(names.items())).encode()).hexdigest())
"""
ENGINES = "from nbgen.engine.lean_imports import import_leanly; import_leanly('transformers.models.auto')\n" + KNOWN
#: The same without torch, which takes longer to import than all the rest.
KEPT = (
    WITHOUT
    + "from nbgen.engine import model_list\nwith model_list.model_list_kept(): import transformers.models\n"
    + KNOWN
)
#: Ends where a model's file is read that nobody asked for.
NOT_MADE = """
import sys
def refuse(event, given):
    if event == "open" and str(given[0]).endswith("modeling_zamba2.py"):
        raise SystemExit("made of transformers' files")
sys.addaudithook(refuse)
"""


@pytest.fixture(scope="module")
def own() -> list[str]:
    """What transformers says itself."""
    return fresh(WITHOUT + KNOWN)


def test_it_is_transformers_own_and_made_once_and_others_that_nobody_uses_go(own: list[str], tmp_path: Path) -> None:
    folder, long_ago = tmp_path / "nbgen", time.time() - 61 * 86_400
    folder.mkdir()
    of_another, unused = folder / "models-0123.msgpack", folder / "models-4567.msgpack"
    for file in (of_another, unused):
        file.touch()
    os.utime(unused, (long_ago, long_ago))
    assert len(own) == 2
    assert fresh(ENGINES, XDG_CACHE_HOME=str(tmp_path)) == own
    (kept,) = set(folder.iterdir()) - {of_another}
    before = kept.stat()
    assert fresh(NOT_MADE + KEPT, XDG_CACHE_HOME=str(tmp_path)) == own
    assert kept.stat().st_mtime_ns == before.st_mtime_ns
    kept.write_bytes(before.st_size * b"?")
    assert fresh(KEPT, XDG_CACHE_HOME=str(tmp_path)) == own, "damaged"
    os.utime(kept, (long_ago, long_ago))
    assert fresh(NOT_MADE + KEPT, XDG_CACHE_HOME=str(tmp_path)) == own
    assert kept.stat().st_mtime > long_ago + 86_400, "it is in use"


def test_without_a_folder_to_keep_it_in_it_is_made(own: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert fresh(KEPT, XDG_CACHE_HOME=str(tmp_path / "file")) == own


def test_another_state_of_transformers_files_has_a_list_of_its_own(tmp_path: Path) -> None:
    from nbgen.engine.model_list import _state

    (tmp_path / "llama").mkdir()
    before = _state(tmp_path)
    (tmp_path / "llama" / "modeling_llama.py").touch()
    assert _state(tmp_path) != before
