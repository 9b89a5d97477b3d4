"""The body of a run: messages or a text, from what a person writes, and options, checked before anything is sent.

Names and ranges of options belong to SamplingParams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest, no_character
from nbgen.logit_processor import wire
from nbgen.notebook.media import Part, is_content, with_media
from nbgen.notebook.turns import NAMES
from nbgen.sampling_params import SamplingParams, WrongType

#: The keys that a message may have; `tool_calls` and `tool_call_id` are for calls and their results.
MEMBERS = {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"}
Prompt = str | Sequence[Mapping[str, Any]]
#: Python's names for JSON's types in error messages.
IN_PYTHON = {"null": "None", "array": "list", "object": "dict"}


def run_body(
    prompt: Prompt,
    *,
    complete: bool = False,
    system: str | None = None,
    media: list[Part] | None = None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of `POST runs`. A text is a user's message, or is continued as it stands (`complete`).

    `media` are parts that are added to the last message, or to the text.
    """
    body = asked(prompt, complete=complete, system=system, media=media)
    return {**body, "params": (sampling_options if complete else chat_options)(options)}


def asked(
    prompt: Prompt, *, complete: bool = False, system: str | None = None, media: list[Part] | None = None
) -> dict[str, Any]:
    """The part of a run's body without its options: `messages`, or `prompt` and `media`."""
    if not complete:
        return {"messages": with_media(chat_messages(prompt, system), media or [])}
    return {"prompt": continued(prompt, system), **({"media": media} if media else {})}


def continued(prompt: Prompt, system: str | None) -> str:
    """The text that `complete=True` continues. Raises InvalidRequest for messages, and for a system prompt."""
    if isinstance(prompt, str) and not system:
        return prompt
    words = "complete=True continues one text: it takes no messages and no system prompt"
    raise InvalidRequest(words, field="system" if system else "prompt")


def question(text: Any, media: list[Part]) -> dict[str, Any]:
    """A user's message, with media or without. Raises InvalidRequest for an empty one."""
    if not isinstance(text, str):
        raise InvalidRequest(f"a message is a text, got {type(text).__name__}")
    if not text.strip() and not media:
        raise InvalidRequest("the message is empty")
    return with_media([{"role": "user", "content": text}], media)[0]


def beside(adapter: str = "", logit_processor: Any = None) -> dict[str, str]:
    """The parts of a run's body beside prompt and options, as far as they are given."""
    code = "" if logit_processor is None else processor_text(logit_processor)
    return {name: text for name, text in (("adapter", adapter), ("logit_processor", code)) if text}


def of_adapter(adapter: str) -> dict[str, str]:
    """A LoRA adapter's name as SGLang's API takes it, if one is given."""
    return {"lora_path": adapter} if adapter else {}


def processor_text(processor: Any) -> str:
    """A logit processor as the API takes it. Raises InvalidRequest for any other value."""
    try:
        return wire(processor)
    except (ValueError, AttributeError, TypeError) as error:
        words = error if isinstance(error, ValueError) else f"got {type(processor).__name__}, which has no to_str()"
        raise InvalidRequest(f"logit_processor: {words}", field="logit_processor") from None


def chat_messages(prompt: Prompt, system: str | None = None) -> list[dict[str, Any]]:
    """Messages as the API takes them, the system prompt first."""
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _listed(prompt)
    for turn in turns:
        if not _is_message(turn):
            words = f'a message is {{"role": "user", "content": "…"}}, its role one of {", ".join(NAMES)}; got {turn!r}'
            raise InvalidRequest(words)
    if not turns or (isinstance(prompt, str) and not prompt.strip()):
        raise InvalidRequest("the prompt is empty")
    return [*system_turn(system), *turns]


def system_turn(system: str | None) -> list[dict[str, Any]]:
    """A system prompt as a list of one message, or of none. Raises InvalidRequest if it is no text."""
    if system and not is_content(system):
        raise InvalidRequest(f"system is a text, got {type(system).__name__}", field="system")
    return [{"role": "system", "content": system}] if system else []


def _is_message(turn: Mapping[str, Any]) -> bool:
    known = {"role", "content"} <= set(turn) <= MEMBERS
    return known and turn["role"] in list(NAMES) and is_content(turn["content"])


def _listed(prompt: Any) -> list[dict[str, Any]]:
    """The messages as dicts. Raises InvalidRequest for other things that people give in place of a list of messages."""
    takes = "a prompt is a text or a list of messages"
    if isinstance(prompt, Mapping):
        raise InvalidRequest(f"{takes}: put a message alone into a list, [{prompt!r:.80}]")
    if hasattr(prompt, "columns"):  # a DataFrame, which iterates over its columns' names
        raise InvalidRequest(f"{takes}, got {type(prompt).__name__}: nbgen.map asks for each of its rows")
    if hasattr(prompt, "interpolations"):  # a t-string, which iterates over its parts
        raise InvalidRequest(f"{takes}, got {type(prompt).__name__}: an f-string is a text")
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise InvalidRequest(f"{takes}, got {type(prompt).__name__}")
    turns = list(prompt)
    if turns and all(isinstance(turn, str) for turn in turns):
        raise InvalidRequest(f"{takes}, got {len(turns)} texts: one at a time, or nbgen.map for answers")
    if wrong := [turn for turn in turns if not isinstance(turn, Mapping)]:
        raise InvalidRequest(f"{takes}, got a list with {type(wrong[0]).__name__}")
    return [_said(turn) for turn in turns]


def _said(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn without the null fields that OpenAI's clients write. A turn that only calls tools gets an empty text."""
    said = {name: value for name, value in turn.items() if value is not None and (name in MEMBERS or value != [])}
    return {"content": "", **said} if said.get("tool_calls") else said


def chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Like `sampling_options`, but an answer may fill the context: the model itself ends its turn."""
    return {"max_new_tokens": None, **sampling_options(options)}


def sampling_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, checked, without those that have their default value."""
    given = builtin(options)
    if "model" in given:
        raise InvalidRequest("model: all requests go to the model that runs; nbgen.load(…) chooses it", field="model")
    stop = given.get("stop")
    if stop == "" or (isinstance(stop, list) and "" in stop):  # servers ignore it; here it is a mistake
        raise InvalidRequest("stop: an empty text is no place to stop at", field="stop")
    if isinstance(given.get("json_schema"), Mapping):
        raise InvalidRequest("json_schema is a text; schema=… takes a dict, and reads the answer", field="json_schema")
    in_json(given.get("custom_params"), "custom_params")
    try:
        return dict(msgspec.to_builtins(SamplingParams.parse(given), str_keys=True))
    except UnicodeEncodeError as error:
        raise no_character(error) from None
    except WrongType as error:  # a class of its own only for SGLang's clients
        raise InvalidRequest(re.sub("`[^`]*`", _in_python, error.message), field=error.field) from None


def _in_python(types: re.Match[str]) -> str:
    return re.sub(r"\w+", lambda word: IN_PYTHON.get(word[0], word[0]), types[0])


def one_answer(params: dict[str, Any]) -> dict[str, Any]:
    """The same options, for callers that can show only one answer. Raises InvalidRequest if `n` is more."""
    if params.get("n", 1) > 1:
        words = "n: one answer has place here; nbgen.generate(…, n=3) without a schema has all in .texts"
        raise InvalidRequest(words, field="n")
    return params


def builtin(value: Any) -> Any:
    """The value with numbers and arrays of numpy, torch and others, at any depth, as Python's numbers and lists."""
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, Mapping):
        return {builtin(key): builtin(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [builtin(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def in_json(value: Any, name: str) -> Any:
    """The value in JSON's types. Raises InvalidRequest, with `name` as its field, if JSON cannot hold it."""
    try:
        return json.loads(json.dumps(builtin(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name} cannot be sent as JSON: {error}", field=name) from None
