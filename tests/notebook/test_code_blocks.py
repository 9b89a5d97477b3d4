"""What of an answer's Markdown is code, and the cell that it becomes."""

import pytest

from nbgen.notebook.code_blocks import as_cell, code_blocks


@pytest.mark.parametrize(
    ("markdown", "blocks"),
    [
        ("no code", []),
        ("So:\n```python\nx = 1\n```\nand", ["x = 1"]),
        ("```\na\n```\n~~~\nb\n~~~", ["a", "b"]),
        ("```python\nx = 1\n\ny = 2", ["x = 1\n\ny = 2"]),
        ("```python\n", [""]),
        ("   ```\na\n   ```", ["a"]),
        ("    ```\na\n    ```", []),
        ("````\n```\na\n```\n````", ["```\na\n```"]),
        ("```\na\n~~~\nb\n```", ["a\n~~~\nb"]),
        ("```\na\n```  \nb", ["a"]),
        ("```\na\n```b\n```", ["a\n```b"]),
        ("say ```a``` here", []),
    ],
)
def test_code_stands_between_fences(markdown: str, blocks: list[str]) -> None:
    assert code_blocks(markdown) == blocks


def test_an_answer_becomes_a_cell() -> None:
    assert as_cell("```\na\n```\nthen\n```\nb\n```") == "a\n\nb"
    assert as_cell("# Only words") == "%%markdown\n# Only words"
