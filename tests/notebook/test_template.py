"""Interpolation: what `{{…}}` becomes, and what stays as it was."""

import time

import pandas
import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbgen.errors import InvalidRequest
from nbgen.notebook.template import as_text, fill, filled, parsed
from tests.notebook.test_magics import run
from tests.notebook.test_map import PolarsFrame


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{x}} and {{ x + 1 }}", "3 and 4"),
        ('{"a": {x}} and ${x}$ stay', '{"a": {x}} and ${x}$ stay'),
        ("{{ {'a': {'b': x}}['a']['b'] }}", "3"),
        ("an open {{ is text", "an open {{ is text"),
        ("{{In[1]}}: {{Out[1]}}", "x = 3: 3"),
        ("{{'}}'}}!", "}}!"),
        ("{{[y * x for y in (1, 2)]}}", "[3, 6]"),
        ("{{None}} {{id}} {{max(x, 5)}}", "None 7 5"),
    ],
)
def test_expressions_are_filled_in_and_single_braces_are_text(template: str, filled: str) -> None:
    assert fill(template, {"x": 3, "id": 7, "In": ["", "x = 3"], "Out": {1: 3}}) == filled


def test_many_expressions_take_no_longer_than_their_text_is_long() -> None:
    began = time.process_time()
    assert fill(("a" * 200 + "{{x}}") * 2000, {"x": 3}) == ("a" * 200 + "3") * 2000
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{missing}}", "{{missing}}: name 'missing' is not defined"),
        ("{{ input }}", "{{input}}: name 'input' is not defined"),
        ("{{type}}", "{{type}}: name 'type' is not defined"),
        ("{{x.nope}}", "{{x.nope}}: AttributeError"),
        ("{{x.bit_count}}", "{{x.bit_count}}: it is a function"),
        ("{{not python}} {{x}}", "{{not python}}"),
        ("{{" + "-" * 200_000 + "1}}", "---}}: is not a Python expression"),
    ],
)
def test_an_expression_that_fails_is_named(template: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fill(template, {"x": 3})
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [None, float("nan"), pandas.NA, pandas.NaT])
def test_a_missing_value_is_refused_only_where_none_may_be(value: object) -> None:
    assert fill("{{x}}", {"x": value}) == str(value)
    with pytest.raises(InvalidRequest, match="x is missing"):
        filled(parsed("{{x}}"), {"x": value}, whole=True)


@pytest.mark.parametrize("value", [0, "", [], [None], pandas.Series([None])])
def test_what_is_empty_is_not_missing(value: object) -> None:
    assert filled(parsed("{{x}}"), {"x": value}, whole=True) == as_text(value)


def test_a_table_becomes_markdown() -> None:
    frame = pandas.DataFrame({"city": ["Rome", "a|b"], "people": [2, 3]})
    assert fill("{{t}}", {"t": frame}) == "| city | people |\n| --- | --- |\n| Rome | 2 |\n| a\\|b | 3 |"
    assert fill("{{t}}", {"t": PolarsFrame(city=["Rome"])}) == "| city |\n| --- |\n| Rome |"


def test_a_value_that_cannot_be_written_is_named() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(InvalidRequest, match=r"^{{x}}: RuntimeError: no text"):
        fill("{{x}}", {"x": Broken()})


def test_an_index_that_is_called_as_a_column_is_another_column() -> None:
    frame = pandas.DataFrame({"city": ["Rome", "Oslo", "Rome"]})
    counts = frame.groupby("city")["city"].count()
    assert fill("{{t}}", {"t": counts}) == "| index_city | city |\n| --- | --- |\n| Oslo | 1 |\n| Rome | 2 |"
    twice = frame.set_index(["city", frame.index.rename("city")], drop=False)
    assert fill("{{t}}", {"t": twice}).startswith("| index_index_city | index_city | city |")


def test_a_table_keeps_an_index_that_says_something() -> None:
    series = pandas.Series([1, 2], index=["a", "b"], name="n")
    assert fill("{{s}}", {"s": series}) == "| index | n |\n| --- | --- |\n| a | 1 |\n| b | 2 |"


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("about {topic}", "{topic} is sent as it stands: {{topic}}, in two braces, puts in its value.\n"),
        ("about {other} or {open}", ""),
        ("about {{topic}}, not {topic}", ""),
        ('print(f"{topic}")', ""),
        (r"x^{topic} and \sqrt{topic}", ""),
    ],
)
def test_a_variable_in_single_braces_is_told(shell: InteractiveShell, cell: str, told: str) -> None:
    shell.user_ns["topic"] = "kernels"
    said, good = run(shell, f"%%nbgen --max-new-tokens 1\n{cell}")
    assert good
    assert said.startswith(told)
    assert ("is sent as it stands" in said) == bool(told)
    assert run(shell, f"%%nbgen --raw --max-new-tokens 1\n{cell}")[0].find("as it stands") < 0
