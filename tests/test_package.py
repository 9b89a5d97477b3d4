"""What `pip install` installs: the wheel holds the panel, the bundled model and the file that enables the extension.
The source distribution holds what its own tests need.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from nbgen import __version__

ROOT = Path(__file__).parent.parent
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, str(folder), str(ROOT)], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.parametrize(
    "name",
    [
        "nbgen/py.typed",
        "nbgen/demo/model/model.safetensors",
        "nbgen/demo/model/tokenizer.json",
        "nbgen/demo/model/README.md",
        "nbgen/engine/cpp/native.cpp",
        "nbgen/engine/cpp/layers.h",
        "nbgen/notebook/static/loader.js",
        "nbgen/notebook/static/panel.js",
        "nbgen/notebook/static/panel.css",
        "etc/jupyter/jupyter_server_config.d/nbgen.json",
        "licenses/LICENSE",
        "licenses/THIRD_PARTY_LICENSES.txt",
    ],
)
def test_the_wheel_holds(wheel: zipfile.ZipFile, name: str) -> None:
    assert any(each.endswith(name) for each in wheel.namelist())


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"nbgen", f"nbgen-{__version__}.data", f"nbgen-{__version__}.dist-info"}
    assert sum(each.file_size for each in wheel.infolist()) < 14 * MEBIBYTE
    assert not any(name.endswith((".pyc", ".ipynb", ".bin", ".pt")) for name in wheel.namelist())


def test_the_source_distribution_can_be_tested(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ["tests/conftest.py", "benchmarks/peers.py", "notebooks/infer.ipynb", "js/package-lock.json"]
    assert {*needed, "binder/postBuild", "Makefile", "constraints.txt", "README.md", "pyproject.toml"} <= names
    assert path.stat().st_size < 12 * MEBIBYTE


def test_binder_finds_the_extension_that_it_has_installed() -> None:
    """The whole list is read: a reader that leaves early breaks the pipe of who writes it."""
    options, *_, check = [line for line in (ROOT / "binder/postBuild").read_text().splitlines() if line[:1] != "#"]
    subprocess.run(["bash", "-c", f"{options}\n{check}"], check=True)
