"""A client's options for a chat template: the template's own variables, and nothing that transformers itself reads.

transformers takes both in one call, and a processor's call takes in what the template leaves: addresses and paths of
media among it. Knows no tokenizer and no processor.
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

#: What transformers reads by itself.
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
#: Of a base model, which continues texts; both in its clients' words and in a notebook's.
NO_TEMPLATE = (
    "this model has no chat template and takes no messages: send a text that it is to continue, by complete=True, "
    "%%nbgen --complete or nbgen.Stream in a notebook, by a prompt or text over HTTP"
)


class Generation(jinja2.ext.Extension):
    """transformers' own tag, around what the model writes."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_environment = jinja2.Environment(extensions=[Generation, jinja2.ext.loopcontrols])  # it renders nothing


def check(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for one that is no template's."""
    if reserved := sorted(RESERVED.intersection(options)):
        words = f"{reserved[0]} is not an option that a template may be given"
        raise InvalidRequest(words, field="template_options")


def read_by(template: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a processor's template reads; others say nothing, as always in Jinja. Raises InvalidRequest."""
    check(options)
    chosen = template.get(DEFAULT, "") if isinstance(template, Mapping) else template
    return {name: value for name, value in options.items() if name in _variables(chosen)}


def of_tools(template: Any, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The tools under the name that SmolLM3's template has for them."""
    found = template.values() if isinstance(template, Mapping) else [template]
    return {XML_TOOLS: tools} if tools and any(XML_TOOLS in _variables(each) for each in found) else {}


def in_system(template: Any) -> bool:
    """Whether a template reads tools from a turn, as Phi-4-mini's does from the system's."""
    return isinstance(template, str) and "['tools']" in template and "tools" not in _variables(template)


@lru_cache
def _variables(template: str) -> frozenset[str]:
    try:
        return frozenset(jinja2.meta.find_undeclared_variables(_environment.parse(template)))
    except jinja2.TemplateError:  # which says so where it is rendered
        return frozenset()
