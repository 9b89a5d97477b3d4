"""`%nbgen fix`: the question about a cell that failed. Knows the words of the question only."""

from __future__ import annotations

from nbgen.notebook.cell_errors import CellError

SYSTEM = (
    "You repair cells of a Jupyter notebook. Say in one or two sentences what is wrong, then give the whole corrected "
    "cell in one ```python block."
)


def question(failed: CellError) -> str:
    """The cell and its error."""
    return f"This cell:\n\n```python\n{failed.source}\n```\n\nfailed with:\n\n```\n{failed.traceback}\n```"
