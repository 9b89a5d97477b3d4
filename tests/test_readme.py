"""The README's annotated tree names every module, and none that is not there; CONTRIBUTING names what is there."""

import re
from pathlib import Path

import pytest

import nbgen
from nbgen.notebook.magics import ACTIONS

ROOT = Path(__file__).parent.parent
FOLDERS = ("", "notebook", "protocols", "server", "engine")


def test_the_tree_is_the_tree() -> None:
    tree = (ROOT / "README.md").read_text().partition("## The tree")[2].partition("## ")[0]
    named, folder = set(), ""
    for line in tree.splitlines():
        if match := re.match(r"  (\w+)/ ", line):
            folder = match[1]
        elif match := re.match(r" +(\w+\.py) ", line):
            named.add((folder, match[1]))
    there = {
        (folder, path.name)
        for folder in FOLDERS
        for path in (ROOT / "nbgen" / folder).glob("*.py")
        if path.name != "__init__.py"
    }
    assert named == there


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / target).is_file(), target


def test_what_a_contributor_is_told_of_is_there() -> None:
    told = re.findall(r"`([^`\n]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("```", ""))
    paths = [path for path in told if re.fullmatch(r"[\w/]+(\.(py|md|toml)|/)", path)]
    assert len(paths) > 30
    assert [path for path in paths if not any((above / path).exists() for above in (ROOT, ROOT / "nbgen"))] == []
    names = {name for name in told if re.fullmatch(r"\w+", name)}
    assert len(names) > 30
    sources = [ROOT / "Makefile", *(ROOT / "nbgen").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert names - {word for path in sources for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))} == set()


def test_every_notebook_is_named() -> None:
    named = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("\nnotebooks/ ")[2].partition("\nbenchmarks/ ")[0]
    )
    assert set(re.findall(r"\w+", named)) == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_every_helper_and_every_action_of_the_magic_is_told_of() -> None:
    """The classes are what helpers return or raise, but for the panels."""
    above = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The way of a request")[0]
    helpers = {name for name in (*nbgen.__all__, "map") if name.islower() and not name.startswith("_")}
    told = set(re.findall(r"\bnbgen[. ](\w+)", above))
    assert {*helpers, *ACTIONS, "Chat", "Stream"} - told == set()
