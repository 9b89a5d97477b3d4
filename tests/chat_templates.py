"""Chat templates of our own, in the ways that models of many makers call tools and write thoughts."""

TURNS = (
    "{%% for m in messages %%}"
    "<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{%% if m.role == 'tool' %%}<result>{{ m.content }}</result>{%% else %%}"
    "%s{{ m.content or '' }}%s{%% endif %%}<|end|>"
    "{%% endfor %%}{%% if add_generation_prompt %%}<|assistant|>{%% if thinks %%}<think>\n{%% endif %%}{%% endif %%}"
)
SHOWN = "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
_EACH = "{%% for call in m.tool_calls or [] %%}{%% set f = call.function %%}%s{%% endfor %%}"
_ALL = "{%% if m.tool_calls %%}%s{%% endif %%}"
_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_LISTED = _EACH % (_OBJECT + "{% if not loop.last %}, {% endif %}")
_TAGS = "{% for key, value in f.arguments.items() %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}"


def template(calls: str, thought: str = "", shown: str = SHOWN) -> str:
    """A template that writes calls and thoughts so."""
    return shown + TURNS % (thought, calls)


#: A way to write calls, by what is special about it.
CALLS = {
    "objects": _EACH % ("\n<tool_call>\n" + _OBJECT + "\n</tool_call>"),
    "list": _ALL % ("[TOOL_CALLS] [" + _LISTED + "]"),
    "named": _EACH % "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}",
    "section": _ALL % ("<calls>" + _EACH % "<call>{{ f.name }}<sep>{{ f.arguments | tojson }}</call>" + "</calls>"),
    "tags": _EACH % ("\n<tool_call>\n<function={{ f.name }}>\n" + _TAGS + "</function>\n</tool_call>"),
    "bare": "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}" + _OBJECT.replace('arguments"', 'parameters"') + "{% endif %}",
    "text": _EACH % '\n<tool_call>{"name": "{{ f.name }}", "arguments": {{ "" + f.arguments }}}</tool_call>',
}
#: Shows calls in a way that is not understood.
PYTHONIC = _ALL % ("<calls>[" + _EACH % "{{ f.name }}(){% if not loop.last %}, {% endif %}" + "]</calls>")
