"""The panel's JavaScript: its own tests, the committed bundle, and what its source must never contain."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "js" / "src").glob("*.js"))
STATIC = ROOT / "nbgen" / "notebook" / "static"
FORBIDDEN = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "createContextualFragment",
    "srcdoc",
    "DOMParser",
    r"\beval\(",
    r"new Function",
)


@pytest.fixture(scope="module")
def node() -> str:
    """Node with the packages of js/: only who tests or changes the panel needs them, since its bundle is committed."""
    program = shutil.which("node")
    assert program, "there is no node on this machine: `make test` installs it"
    assert (ROOT / "js" / "node_modules").is_dir(), "run `npm ci` in js/"
    return program


@pytest.mark.parametrize("word", FORBIDDEN)
def test_no_markup_is_ever_parsed(word: str) -> None:
    assert SOURCES
    assert [path.name for path in SOURCES if re.search(word, path.read_text())] == []


def test_every_style_is_the_panels_own() -> None:
    css = re.sub(r"/\*.*?\*/", "", (STATIC / "panel.css").read_text(), flags=re.DOTALL)
    selectors = re.findall(r"(?:^|\})\s*([^{}@]+?)\s*\{", re.sub(r"@keyframes[^{]*\{[^}]*\}\s*\}", "", css))
    assert selectors
    assert [rule for rule in selectors if not all(".nbgen" in part for part in re.split(r",\s*\n", rule))] == []


def test_the_committed_bundles_are_what_their_source_builds(node: str, tmp_path: Path) -> None:
    subprocess.run([node, ROOT / "js" / "build.mjs", tmp_path], check=True)
    built = {path.name: path.read_bytes() for path in tmp_path.glob("*.js")}
    assert built.keys() == {path.name for path in STATIC.glob("*.js")}
    differ = [name for name in built if built[name] != (STATIC / name).read_bytes()]
    assert differ == [], "run `npm run build` in js/"


def test_the_javascript_passes_its_own_tests(node: str) -> None:
    done = subprocess.run([node, ROOT / "js" / "test" / "all.js"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_is_bundled_is_licensed() -> None:
    licences = (ROOT / "THIRD_PARTY_LICENSES.txt").read_text()
    for holder in ("(c) 2018+, MarkedJS", "(c) 2020 Ron Kok", "(c) 2006, Ivan Sagalaev"):
        assert f"Copyright {holder}" in licences
