"""Values as tables of HTML and Markdown."""

import datetime
from dataclasses import dataclass

import pydantic
from IPython.core.interactiveshell import InteractiveShell

from nbgen.notebook.display import forming_bundle, show_as_table
from nbgen.notebook.schema import Schema
from nbgen.notebook.table import html_table, markdown_table
from tests.notebook.test_schema import Plain


def test_tables_are_escaped_and_nested() -> None:
    table = html_table({"a<b": [{"x": 1}, {"x": "<i>", "y": None}], "list": ["p", "q"]})
    assert "a&lt;b" in table
    assert "<i>" not in table
    assert table.count("<table>") == 2
    assert "p<br>q" in table
    assert markdown_table(["a|b"], [["1\n2"]]) == "| a\\|b |\n| --- |\n| 1 2 |"


def test_objects_of_a_schemas_class_show_themselves_as_tables(shell: InteractiveShell) -> None:
    class Recipe(Plain):
        pass

    show_as_table(Recipe)
    show_as_table({"type": "object"})
    shown, _ = shell.display_formatter.format(Recipe("Soup", 5, "easy"))
    assert "Soup" in shown["text/html"]
    show_as_table(datetime.date)
    shown, _ = shell.display_formatter.format(datetime.date(2026, 1, 2))
    assert shown == {"text/plain": "datetime.date(2026, 1, 2)"}


def test_an_empty_value_is_shown() -> None:
    for value, shown in (([], "[]"), ({}, "{}"), ({"a": [], "b": {}, "c": ""}, "[]</td>"), ([{}, {"x": 1}], "<td")):
        assert shown in html_table(value)
    assert html_table([]).endswith(">[]</div>")


@dataclass
class Link:
    url: pydantic.HttpUrl


def test_what_only_pydantic_knows_is_shown_as_it_is_written() -> None:
    assert "https://a.test/" in html_table(Schema(Link).parse('{"url": "https://a.test/"}'))


def test_a_character_of_which_one_half_has_come_can_be_sent() -> None:
    bundle = forming_bundle('{"name": "Ann \\ud83d')
    assert [text.encode() for text in bundle.values()]
    assert "Ann \\ud83d</td>" in bundle["text/html"]


def test_brackets_without_an_end_are_not_shown() -> None:
    for deep in (10**3, 10**4):
        assert forming_bundle("[" * deep)["text/html"].endswith("</div>")
    assert "too deep to be shown" in forming_bundle('{"a": [' * 200)["text/html"]
