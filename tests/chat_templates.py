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
_MARKED = "{% for key, value in f.arguments.items() %}{{ key }}:{% if value is string %}<|'|>{{ value }}<|'|>{% else %}"
_MARKED += "{{ value | tojson }}{% endif %}{% if not loop.last %},{% endif %}{% endfor %}"
_PYTHON = "{{ f.name }}({% for key, value in f.arguments.items() %}{{ key }}=VALUE{% if not loop.last %}, {% endif %}"
_ROW = _EACH % (_PYTHON + "{% endfor %})\n")
_PYTHON = "[" + _EACH % (_PYTHON + "{% endfor %}){% if not loop.last %}, {% endif %}") + "]"


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
    "python": _ALL % ("<|tool_call_start|>" + _PYTHON.replace("VALUE", "{{ value | tojson }}") + "<|tool_call_end|>"),
    "row": _ALL % ("<calls>\n" + _ROW.replace("VALUE", "{{ value | tojson }}") + "</calls>"),
    "marked": _EACH % ("<|tool_call>call:{{ f.name }}{{ '{' }}" + _MARKED + "}<tool_call|>"),
    "keyed": _ALL
    % ("<|tools|>[" + _LISTED.replace('"name": "{{ f.name }}", "arguments"', '"{{ f.name }}"') + "]<|/tools|>"),
    "text": _EACH % '\n<tool_call>{"name": "{{ f.name }}", "arguments": {{ "" + f.arguments }}}</tool_call>',
}
#: Writes ids of calls in the place of functions' names.
IDS = _ALL % ("<calls>" + _EACH % "<call>{{ call.id }}<sep>{{ f.arguments | tojson }}</call>" + "</calls>")
#: Shows calls in a way that is not understood.
PYTHONIC = _ALL % ("<calls>[" + _EACH % "{{ f.name }}(){% if not loop.last %}, {% endif %}" + "]</calls>")
#: Calls in Python's syntax that are all of an answer; the values are not even quoted.
BARE_PYTHON = _ALL % _PYTHON.replace("VALUE", "{{ value }}")
#: Tells models to write such.
TOLD = (
    "{% if tools %}<|system|>{{ tools | tojson }} To call them, write nothing but "
    "[first_name(name=value, other=value), second_name(name=value)]<|end|>{% endif %}"
)
#: Shows calls as JSON beside tags in which there may be Python.
LOOSE = _ALL % ("<|python_start|><|python_end|>" + _EACH % _OBJECT.replace('arguments"', 'parameters"'))
#: Says how calls are written, and leaves them out of turns.
TOLD_OBJECTS = (
    "{% if tools %}<|system|>{{ tools | tojson }} For each call, write <tool_call>\n"
    '{"name": <the name>, "arguments": <a JSON object>}\n</tool_call><|end|>{% endif %}'
)
TOLD_LIST = "{% if tools %}<|system|>{{ tools | tojson }} Calls are <|tool_call|> and a JSON list.<|end|>{% endif %}"
#: Every part of an answer is in a channel.
CHANNELS = (
    "<|start|>system<|message|>Channels: analysis, commentary, final.<|end|>"
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% set last = namespace(name='') %}{% for m in messages %}"
    "{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('either') }}{% endif %}"
    "{% if m.content or m.thinking %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}"
    "{% set f = m.tool_calls[0].function %}{% set last.name = f.name %}"
    "<|start|>assistant to=functions.{{ f.name }}"
    "<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}{% set over = loop.last and not add_generation_prompt %}"
    "{% if over and m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if over else '<|end|>' }}"
    "{% elif m.role == 'tool' %}"
    "<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
