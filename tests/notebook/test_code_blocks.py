"""What of an answer's Markdown is code, and the cell that it becomes."""

import time

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
        ("~~~~ of ~ and ~~~\n~~~\na\n~~~~", ["~~~\na"]),
        ("```\na\n```  \nb", ["a"]),
        ("```\na\n```b\n```", ["a\n```b"]),
        ("say ```a``` here", []),
    ],
)
def test_code_stands_between_fences(markdown: str, blocks: list[str]) -> None:
    assert code_blocks(markdown) == blocks


def test_an_answer_that_repeats_a_fence_forever_is_read_at_once() -> None:
    begun = time.process_time()
    assert code_blocks("So:\n" + "~" * 30_000) == []
    assert time.process_time() - begun < 2


def test_an_answer_becomes_a_cell() -> None:
    assert as_cell("```\na\n```\nthen\n```\nb\n```") == "a\n\nb"
    assert as_cell("# Only words") == "%%markdown\n# Only words"
