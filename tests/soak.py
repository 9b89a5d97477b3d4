"""What `make soak` does that would take `make test` too long.

Tests that look for the unexpected go on many times as long, and the variants that are `soaking` run, which tell what
others tell that always run. Those have a marker: pyproject.toml leaves out whatever has it, unless pytest is told what
to run by another expression of markers, as `make soak` does.
"""

import os
from collections.abc import Container, Iterable
from typing import Any

import pytest

#: Times as many examples, or seconds.
TIMES = int(os.environ.get("NBGEN_SOAK", "1"))


def soaking(*values: object) -> Any:
    """A variant of a test that runs when soaking alone."""
    return pytest.param(*values, marks=pytest.mark.soak)


def seldom(values: Iterable[Any], these: Container[Any]) -> list[Any]:
    """Values of a parameter, of which `these` run when soaking alone, and the others always."""
    return [soaking(value) if value in these else value for value in values]
