"""The README's annotated tree names every module, and none that is not there."""

import re
from pathlib import Path

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


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).is_file(), target


def test_every_notebook_is_named() -> None:
    named = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("\nnotebooks/ ")[2].partition("\nbenchmarks/ ")[0]
    )
    assert set(re.findall(r"\w+", named)) == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
