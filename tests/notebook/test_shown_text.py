"""Texts as Jupyter's Markdown: code as it is, tags, images and dollars harmless, maths where the panel has it."""

import html
import json
import re
from pathlib import Path
from typing import Any

import mistune
import pytest

from nbgen.notebook.shown_text import as_markdown, as_typed, text_bundle
from nbgen.notebook.turns import shown

#: Texts, and what of them is maths: each formula, and whether it stands by itself.
MATHS = Path(__file__).parents[2] / "js" / "test" / "maths.json"
CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
FORMULA = re.compile(
    r"\$\$(?P<display>[^$]+)\$\$|\$(?P<inline>(?:\\\$|[^$])+)\$|(?P<environment>\\begin\{(\w+\*?)\}[^$]+\\end\{\4\})"
)

DOLLAR = "<span>&#36;</span>"
BACKSLASH = "<span>&#92;</span>"


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Use the <title> tag.\n\n1. one", "Use the &lt;title> tag.\n\n1. one"),
        ("Map<String, List<Foo>> </b> <!-- x --> <?php", "Map&lt;String, List&lt;Foo>> &lt;/b> &lt;!-- x --> &lt;?php"),
        ("1 < 2, a <b, \\<b>", "1 < 2, a &lt;b, &lt;b>"),
        ("![x](https://a.b) \\![x](y) wow!", "&#33;[x](https://a.b) &#33;[x](y) wow!"),
        ("~~a <b>~~ ~c~", "~~a &lt;b>~~ &#126;c&#126;"),
        ("[x](https://a.b/c_(d)) and [y](a`b) `<c>`", "[x](https://a.b/c_(d)) and [y]&#40;a`b) `&lt;c>&#96;"),
        ("www.a.b/`<c>` `<d>`", "www.a.b/&#96;&lt;c>&#96; `<d>`"),
        ("see <https://a.b> and https://a.b/?c=$d", "see <https://a.b> and https://a.b/?c=&#36;d"),
        ("`vec![1]` and `<b>` and ``a`b``", "`vec![1]` and `<b>` and ``a`b``"),
        ("``a`<b>``", "<code>a&#96;&lt;b&#62;</code>"),
        ("\\`<b> and a ` <b>", "&#96;&lt;b> and a &#96; &lt;b>"),
        ("a ``` <b>\n` <i>", "a &#96;&#96;&#96; &lt;b>\n&#96; &lt;i>"),
        ("| `a | <b>` |", "| <code>a &#124; &lt;b&#62;</code> |"),
        ("`\\begin{a}` <b>", "<code>&#92;begin&#123;a&#125;</code> &lt;b>"),
        ("| a. <br> b<BR/><br>c | `<br>` |", "| a. <br> b<BR/><br>c | `<br>` |"),
        ("<br>\n- <br>\n1. <br>\n><br>", "&lt;br>\n- &lt;br>\n1. &lt;br>\n>&lt;br>"),
    ],
)
def test_tags_and_images_are_text_and_code_is_code(text: str, markdown: str) -> None:
    assert as_markdown(text) == markdown


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("$5 today and $6 tomorrow", f"{DOLLAR}5 today and {DOLLAR}6 tomorrow"),
        ("PATH=$HOME/bin:$PATH \\$1", f"PATH={DOLLAR}HOME/bin:{DOLLAR}PATH {DOLLAR}1"),
        ("the $n$th and $x$s, not $a$b", f"the $n$th and $x$s, not {DOLLAR}a{DOLLAR}b"),
        ("$x^2$, $$y$$ and `$z`", "$x^2$, $$y$$ and `$z`"),
        ("\\(a<b\\) and \\[ c \\]", "$a< b$ and $$ c $$"),
        ("\\[\nx\n\n= 1\n\\]", "$$\nx\n= 1\n$$"),
        ("$$ a\n\nb $$ c", f"{DOLLAR}{DOLLAR} a\n\nb {DOLLAR}{DOLLAR} c"),
        ("$www.a.b$`c`", f"{DOLLAR}www.a.b&#36;&#96;c&#96;"),
        ("$a~b$", "$a\\ b$"),
        ("\\begin{align} a &= b \\end{align}", "\\begin{align} a &= b \\end{align}"),
        ("\\begin{align} a \\\\(b\\\\)", f"{BACKSLASH}begin{{align}} a {BACKSLASH}(b{BACKSLASH})"),
        ("$a{$ b $c$", f"{DOLLAR}a{{{DOLLAR} b $c$"),
    ],
)
def test_dollars_are_maths_where_the_panel_says_so(text: str, markdown: str) -> None:
    assert as_markdown(text) == markdown


@pytest.mark.parametrize(("text", "formulas"), json.loads(MATHS.read_text()))
def test_maths_is_what_the_panel_takes_for_it(text: str, formulas: list[list[Any]]) -> None:
    markdown = CODE.sub("", as_markdown(text))
    found = [
        [one["environment"] or one["display"] or one["inline"], not one["inline"]] for one in FORMULA.finditer(markdown)
    ]
    assert [[_packed(tex), alone] for tex, alone in found] == [[_packed(tex), alone] for tex, alone in formulas]


def _packed(tex: str) -> str:
    return "".join(tex.split())


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("```html\n<img src=x> $5\n```", "```html\n<img src=x> $5\n```"),
        ("a\n```rust\nvec![1]\n```\n<b>", "a\n\n```rust\nvec![1]\n```\n\n&lt;b>"),
        ("~~~~\n```\n~~~\n~~~~\n<b>", "````\n```\n~~~\n````\n\n&lt;b>"),
        ("```python\nx = 1", "```python\nx = 1\n```"),
        ("1. do\n\n   ```sh\n   <b>\nlazy\n   ```\n2. b", "1. do\n\n   ```sh\n   <b>\n   lazy\n   ```\n\n2. b"),
        ("- ```\n  <b>\n  ```", "- ```\n  <b>\n  ```"),
        ("> ```\n> <b>\n<b>", "> ```\n> <b>\n> ```\n\n&lt;b>"),
        ("text\n\n    if a <b:\n\n        $5\n\n<b>", "text\n\n```\nif a <b:\n\n    $5\n```\n\n&lt;b>"),
        ("- item\n\n    <b> goes on", "- item\n\n    &lt;b> goes on"),
        ("```a ```` b``` <b>", "```a ```` b``` &lt;b>"),
        ("\r\n```\r\n<b>\r\n```", "\n```\n<b>\n```"),
    ],
)
def test_code_blocks_stay_and_end(text: str, markdown: str) -> None:
    assert as_markdown(text) == markdown


@pytest.mark.parametrize(
    "text",
    [
        "# no heading\n**a** _b_ `c` <d> ![e](f) $5 and $6 \\(g\\) ~~h~~",
        "  two spaces\n    four,  two inside\n1. one\n- two\n= = =\n\nafter",
        "| a | b |\n|---|---|\n| &lt; | 1 |",
    ],
)
def test_what_a_person_typed_stands_as_it_was_typed(text: str) -> None:
    made = re.sub("</?(?:p|span)>|<br />(?=\n)|\n$", "", mistune.html(as_typed(text)).replace("<br>", "<br />"))
    assert html.unescape(made).replace("\xa0", " ") == text


def test_an_answer_is_markdown_and_a_question_is_not() -> None:
    assert shown({"role": "assistant", "content": "# a"}) == "# a"
    assert [shown({"role": role, "content": "# a"}) for role in ("user", "system", "tool")] == ["&#35; a"] * 3


def test_halves_of_characters_are_written_out() -> None:
    assert [text.encode() for text in text_bundle("so \ud83d").values()] == [b"so \\ud83d"] * 2


def test_the_plain_text_is_the_text() -> None:
    assert text_bundle("`vec![1]` <b> $5")["text/plain"] == "`vec![1]` <b> $5"
