"""Why a chat does not go through a model's template: what is wrong with that, with the tools, or with the messages."""

from collections.abc import Sequence
from typing import Any

import jinja2

from nbgen.engine.template_turns import ASK, Render
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage

#: What rendering may raise: a template computes, and may follow what is nested deeply.
ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
#: The one of several templates that chats go through.
DEFAULT = "default"
#: Characters of a template's own words that are repeated.
MAX_WORDS = 300


def refusal(
    error: Exception, template: object, messages: Sequence[ChatMessage], bad_tool: str, who: str = "chat template"
) -> InvalidRequest:
    """What whoever sent the messages is told, and the `bad_tool` among them if there is one.

    `template` is the tokenizer's or processor's, which `who` says.
    """
    instead = "in the model's folder, or send the text to continue instead"
    if isinstance(template, dict) and DEFAULT not in template:
        named = ", ".join(map(str, template))[:200]
        words = f"this model has chat templates named {named}, and none named {DEFAULT!r} for plain chats: name one so"
        return InvalidRequest(f"{words} {instead}", field="messages")
    if isinstance(error, jinja2.TemplateSyntaxError):
        words = f"this model's chat template is no valid Jinja (line {error.lineno}): mend it {instead}"
        return InvalidRequest(words, field="messages")
    if bad_tool:
        why = error if isinstance(error, jinja2.TemplateError) else "it does not read the schema of what that takes"
        return InvalidRequest(f"the model's {who} cannot show {bad_tool}: {why}"[:MAX_WORDS], field="tools")
    roles = ", ".join(message.role for message in messages)
    said = f": {error}"[:MAX_WORDS] if type(error) is jinja2.TemplateError else ""
    return InvalidRequest(f"the model's {who} refuses the messages (roles: {roles}){said}", field="messages")


def bad_tool(tools: list[dict[str, Any]] | None, render: Render) -> str:
    """The first of the tools that a template cannot show beside a plain question; "" where it can."""

    def shows(some: list[dict[str, Any]]) -> bool:
        try:
            render([{"role": "user", "content": ASK}], some, True)
        except Exception:  # what renders may be a processor, which raises anything
            return False
        return True

    if not tools or shows(tools) or not shows([]):
        return ""
    while len(tools) > 1:  # in halves: there may be many
        half = tools[: len(tools) // 2]
        tools = tools[len(half) :] if shows(half) else half
    return "the tools together" if shows(tools) else f"the tool {tools[0]['function']['name']!r}"
