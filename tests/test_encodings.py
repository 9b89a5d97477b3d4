"""Texts in files and from programs are UTF-8 in every locale: no call of ours leaves that to the locale."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nbgen"


def left_to_the_locale(tree: ast.AST) -> Iterator[str]:
    """Calls that read or write text and do not say how it is encoded."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            said = {keyword.arg for keyword in node.keywords}
            if _is_text(node, said) and "encoding" not in said:
                yield ast.unparse(node)


def _is_text(call: ast.Call, said: set[str | None]) -> bool:
    whole = ast.unparse(call.func)
    name = whole.rpartition(".")[2]
    if name == "open":
        modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
        return (whole == "open" and not modes) or any(mode in ("r", "w", "a", "x") for mode in modes)
    return name in ("read_text", "write_text") or (name in ("run", "Popen", "check_output") and "text" in said)


def test_every_text_says_how_it_is_encoded() -> None:
    found = {path: [*left_to_the_locale(ast.parse(path.read_bytes()))] for path in sorted(PACKAGE.rglob("*.py"))}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("path.read_text()", True),
        ("path.open('a')", True),
        ("open(path)", True),
        ("subprocess.run(command, text=True)", True),
        ("path.read_text(encoding='utf-8')", False),
        ("open(path, 'rb')", False),
        ("path.open('rb')", False),
        ("chats.open(name)", False),
        ("subprocess.run(command, encoding='utf-8')", False),
    ],
)
def test_the_rule_catches_what_it_should(call: str, wrong: bool) -> None:
    assert bool([*left_to_the_locale(ast.parse(call))]) is wrong
