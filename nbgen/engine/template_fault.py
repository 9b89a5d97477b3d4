"""Explains why a model's template refuses a chat: a fault of the template, of the tools, or of the messages."""

from collections.abc import Sequence
from typing import Any

import jinja2

from nbgen.engine.template_turns import ASK, Render
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage

#: What rendering may raise: a template is a program, and may recurse deeply.
ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
#: The name of the template for chats, if a model has several.
DEFAULT = "default"
#: The most characters of a template's own error message that are passed on.
MAX_WORDS = 300


def refusal(
    error: Exception, template: object, messages: Sequence[ChatMessage], bad_tool: str, who: str = "chat template"
) -> InvalidRequest:
    """The error for whoever sent the messages. It names the `bad_tool`, if there is one.

    `template` is that of the tokenizer or of the processor; `who` is its name for the message.
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
    """A tool that the template cannot show with a plain question, in words; "" if it can show all."""

    def shows(some: list[dict[str, Any]]) -> bool:
        try:
            render([{"role": "user", "content": ASK}], some, True)
        except Exception:  # a processor may render it, which may raise anything
            return False
        return True

    if not tools or shows(tools) or not shows([]):
        return ""
    while len(tools) > 1:  # in halves: there may be many
        half = tools[: len(tools) // 2]
        tools = tools[len(half) :] if shows(half) else half
    return "the tools together" if shows(tools) else f"the tool {tools[0]['function']['name']!r}"
