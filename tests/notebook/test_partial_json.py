"""JSON that is still being written reads as what is there so far."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbgen.notebook.partial_json import parse_partial

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("{", {}),
        ('{"na', {}),
        ('{"name', {}),
        ('{"name": ', {}),
        ('{"name": "Pan', {"name": "Pan"}),
        ('{"name": "a\\', {"name": "a"}),
        ('{"n": "x", "steps": ["a", "b', {"n": "x", "steps": ["a", "b"]}),
        ('{"n": tru', {}),
        ('{"n": 1, "m": -', {"n": 1}),
        ('[{"a": "}"}, {"b', [{"a": "}"}, {}]),
    ],
)
def test_what_is_there_is_read(text: str, value: object) -> None:
    assert parse_partial(text) == value


@given(values)
def test_every_beginning_of_every_value_can_be_read(value: object) -> None:
    text = json.dumps(value)
    for end in range(len(text)):
        parse_partial(text[:end])
    assert parse_partial(text) == value


@pytest.mark.parametrize("text", ["hello", "{a, b", '"'])
def test_other_text_is_nothing(text: str) -> None:
    assert not parse_partial(text)
