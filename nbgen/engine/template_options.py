"""A client's options for a chat template: they may set the template's own variables, but no argument of transformers.

transformers takes both in one call, and a processor also uses options that the template does not read, such as
addresses and paths of media. Knows no tokenizer and no processor.
"""

from collections.abc import Mapping
from functools import lru_cache
from inspect import signature
from typing import Any

import jinja2.ext
import jinja2.meta
from transformers import PreTrainedTokenizerBase
from transformers.processing_utils import ProcessorMixin
from transformers.utils.chat_template_utils import render_jinja_template

from nbgen.engine.template_fault import DEFAULT
from nbgen.errors import InvalidRequest

#: Names of arguments of transformers itself.
RESERVED = frozenset(
    name
    for call in (
        PreTrainedTokenizerBase.apply_chat_template,
        ProcessorMixin.apply_chat_template,
        render_jinja_template,
    )
    for name in signature(call).parameters
)

XML_TOOLS = "xml_tools"
#: The error for messages to a base model, which only continues texts; for HTTP clients and for notebooks.
NO_TEMPLATE = (
    "this model has no chat template and takes no messages: send a text that it is to continue, by complete=True, "
    "%%nbgen --complete or nbgen.Stream in a notebook, by a prompt or text over HTTP"
)


class Generation(jinja2.ext.Extension):
    """Parses transformers' own tag `generation`, which is put around what the model writes."""

    tags = {"generation"}  # noqa: RUF012  # an attribute that jinja2 reads

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_environment = jinja2.Environment(extensions=[Generation, jinja2.ext.loopcontrols])  # it renders nothing


def check(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an option that is an argument of transformers."""
    if reserved := sorted(RESERVED.intersection(options)):
        words = f"{reserved[0]} is not an option that a template may be given"
        raise InvalidRequest(words, field="template_options")


def read_by(template: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a processor's template reads. Others are ignored, as Jinja does. Raises InvalidRequest."""
    check(options)
    chosen = template.get(DEFAULT, "") if isinstance(template, Mapping) else template
    return {name: value for name, value in options.items() if name in _variables(chosen)}


def of_tools(template: Any, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The tools under `XML_TOOLS`, if the template reads that variable, as SmolLM3's does."""
    found = template.values() if isinstance(template, Mapping) else [template]
    return {XML_TOOLS: tools} if tools and any(XML_TOOLS in _variables(each) for each in found) else {}


def in_system(template: Any) -> bool:
    """Whether a template reads tools from a turn, as Phi-4-mini's does from the system's turn."""
    return isinstance(template, str) and "['tools']" in template and "tools" not in _variables(template)


@lru_cache
def _variables(template: str) -> frozenset[str]:
    try:
        return frozenset(jinja2.meta.find_undeclared_variables(_environment.parse(template)))
    except jinja2.TemplateError:  # reported when it is rendered
        return frozenset()
