"""A package that no process of these tests has: see `tests/conftest.py`."""

raise ImportError("left out of the tests")
