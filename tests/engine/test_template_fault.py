"""Whose fault it is that a chat cannot be rendered: the template's, or the messages'."""

from pathlib import Path

import pytest

from nbgen.engine.template_fault import bad_tool
from nbgen.engine.template_messages import with_one_system_turn
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, ContentPart
from tests.engine.conftest import tokenizer_of

#: Shows what functions take as templates of Hermes and Command R do.
EACH = "{%% for t in tools or [] %%}{%% for p in t.function.parameters.properties.values() %%}{{ %s }}{%% endfor %%}"
EACH += "{%% endfor %%}{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("", "this model has no chat template"),
        ({}, "this model has no chat template"),
        ({"rag": "{{ 1 }}", "tool_use": "{{ 2 }}"}, "has chat templates named rag, tool_use, and none named 'default'"),
        ("line\n{% for x in %}", r"chat template is no valid Jinja \(line 2\): mend it in the model's folder"),
        ("{{ messages | odd }}", r"chat template is no valid Jinja \(line 1\)"),
        (
            "{{ raise_exception('roles must alternate') }}",
            r"refuses the messages \(roles: user, tool\): roles must alternate$",
        ),
        ("{{ 1 / 0 }}", "refuses the messages"),
        ("{% macro deeper() %}{{ deeper() }}{% endmacro %}{{ deeper() }}", "refuses the messages"),
        ("{{ messages[0]['content'].odd.odd }}", "refuses the messages"),
    ],
)
def test_a_template_that_cannot_work_is_told_from_messages_that_it_refuses(
    template: str | dict[str, str], words: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(tmp_path, template)
    with pytest.raises(InvalidRequest, match=words) as refused:
        tokenizer.encode_chat([ChatMessage(role=role, content="hi") for role in ("user", "tool")])
    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (EACH % "'' + p.description", "cannot show the tool 'two': 'dict object' has no attribute 'description'$"),
        (EACH % "p.type + ''", "cannot show the tool 'two': it does not read the schema of what that takes$"),
        ("{% if (tools or [])[1:] %}{{ raise_exception('one at most') }}{% endif %}", "the tools together: one at"),
    ],
)
def test_a_tool_that_a_template_cannot_show_is_named(template: str, words: str, tmp_path: Path) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": schema}}}}
        for name, schema in (("one", {"type": "string", "description": "a"}), ("two", {"type": ["string", "null"]}))
    ]
    with pytest.raises(InvalidRequest, match=words) as refused:
        tokenizer_of(tmp_path, template).encode_chat([ChatMessage(role="user", content="hi")], tools=tools)
    assert refused.value.field == "tools"


def test_of_many_tools_the_bad_one_is_found_soon() -> None:
    """Each is rendered twice or so, however many there are."""
    shown = []

    def render(messages: object, tools: list[dict[str, dict[str, str]]], opens: bool) -> str:
        shown.append(len(tools))
        if any(tool["function"]["name"] == "f77" for tool in tools):
            raise ValueError
        return ""

    assert bad_tool([{"function": {"name": f"f{place}"}} for place in range(100)], render) == "the tool 'f77'"
    assert len(shown) < 12
    assert sum(shown) < 250


#: A template that takes a system turn at the beginning alone, as Gemma's and Mistral's do, and one that drops others.
FIRST = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
REFUSING = FIRST + "{{ raise_exception('the system comes first') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DROPPING = FIRST + "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
ANY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (REFUSING, "<system>be\n\nkind<user>hi"),
        (DROPPING, "<system>be\n\nkind<user>hi"),
        (ANY, "<system>be<system>kind<user>hi"),
    ],
)
def test_several_system_turns_are_one_where_the_template_takes_no_more(
    template: str, text: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(tmp_path, template)
    told = [ChatMessage(role="system", content=words) for words in ("be", "kind")]
    asked = ChatMessage(role="user", content="hi")
    assert tokenizer.encode_chat([*told, asked]) == tokenizer.encode(text, add_special_tokens=False)
    if template is REFUSING:
        with pytest.raises(InvalidRequest, match=r"roles: user, system.*comes first"):
            tokenizer.encode_chat([asked, told[0]])


def test_system_turns_with_media_stay_as_they_are() -> None:
    def refuse(*_: object, **__: object) -> str:
        raise ValueError

    seen = [ContentPart(type="text", text="be"), ContentPart(type="image")]
    told = [ChatMessage(role="system", content=seen), ChatMessage(role="system", content="kind")]
    assert with_one_system_turn(told, refuse) == told
