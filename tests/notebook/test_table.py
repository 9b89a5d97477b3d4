"""Values as tables of HTML and Markdown."""

from IPython.core.interactiveshell import InteractiveShell

from nbgen.notebook.display import show_as_table
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


def test_an_empty_value_is_shown() -> None:
    for value, shown in (([], "[]"), ({}, "{}"), ({"a": [], "b": {}, "c": ""}, "[]</td>"), ([{}, {"x": 1}], "<td")):
        assert shown in html_table(value)
    assert html_table([]).endswith(">[]</div>")
