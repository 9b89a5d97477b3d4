"""SGLang's `/generate`: parses its body into requests.

Follows SGLang 0.5.23. Knows no vocabulary, no context length and not the format of answers (`sglang_answer`).
"""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import msgspec

from nbgen.commands import PauseMode
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, Tensor
from nbgen.protocols import sglang_logprobs, sglang_media, sglang_tensors
from nbgen.protocols.json_body import (
    MAX_TOKEN_ID,
    are_integers,
    check_text_size,
    is_integer,
    parse_json,
    parse_object,
    refuse_unsupported,
)
from nbgen.protocols.media import Item
from nbgen.protocols.request_ids import namespace, request_ids
from nbgen.protocols.sglang_unsupported import IN_GENERATE, IN_SAMPLING, refuse
from nbgen.sampling_params import SamplingParams, WrongType
from nbgen.word_lists import WordLists

MAX_PROMPTS = 1024
MAX_TIMEOUT = 600

SAMPLING_NAMES = {*SamplingParams.__struct_fields__, *IN_SAMPLING, "stream_interval"}


class SchemaError(InvalidRequest):
    """A field of the body has the wrong JSON type."""


class ContractError(InvalidRequest):
    """A strictly typed field or a sampling parameter is refused by SGLang's strict layer of checks."""


class Generation(NamedTuple):
    """What one call asks for. If `single`, the answer is an object, else a list by prompts and then by samples."""

    requests: list[GenerateRequest]
    single: bool
    stream: bool
    #: For each request, tokens between two chunks of its stream; None: the server's default.
    intervals: Sequence[int | None]
    #: The media of each request.
    media: Sequence[list[Item]] = ()


class Prompt(NamedTuple):
    """One prompt; exactly one of the fields is set."""

    text: str | None = None
    input_ids: list[int] | None = None
    input_embeds: Tensor | None = None


def parse_generate(body: bytes, *, preferred: Mapping[str, Any] | None = None, truncate: bool = False) -> Generation:
    """The requests in a body of `/generate`. Raises InvalidRequest or one of its subclasses above.

    `preferred` are sampling parameters for requests that do not set them; `truncate` has too long prompts cut.
    """
    fields = parse_json(body)
    if not isinstance(fields, dict):
        raise SchemaError("the body must be a JSON object")
    _check_types(fields)
    one_prompt, prompts = _prompts(fields)
    given = _options(fields.get("sampling_params"), len(prompts), one_prompt)
    options = [{**(preferred or {}), **each} for each in given]
    intervals = [_interval(option) for option in options]
    params = [_params(option) for option in options]
    refuse(fields, IN_GENERATE)
    n = _samples(params)
    if len(prompts) * n > MAX_PROMPTS:
        raise InvalidRequest(f"{len(prompts)} prompts times n={n}; at most {MAX_PROMPTS} samples at once")
    one_answer = one_prompt and n == 1  # with n > 1 a single prompt is a batch of one
    listed, texts = not one_answer, partial(_texts, fields=fields, prompts=len(prompts))
    own: dict[str, list[Any]] = {
        "rid": request_ids(fields.get("rid"), len(prompts), n, single=one_answer),
        "params": params,
        "logprobs": sglang_logprobs.parse(fields, len(prompts), single=one_answer, n=n),
        "tensors": sglang_tensors.parse_options(fields, len(prompts), single=one_answer),
        "logit_processor": [code or None for code in texts("custom_logit_processor", listed=listed and n == 1)],
        "adapter": texts("lora_path", listed=listed),
        "namespace": [*map(namespace, *(texts(name, listed=listed) for name in ("extra_key", "cache_salt")))],
    }
    media = sglang_media.parse(fields, len(prompts), single=one_prompt)
    stream = fields.get("stream", False)
    common = GenerateRequest(
        rid="",
        priority=fields.get("priority") or 0,
        group=uuid.uuid4().hex,
        truncate=truncate,
        prompt_ids=fields.get("return_prompt_token_ids") or False,
        media_optional=True,
        words=WordLists(in_order=True),
        streamed=stream,
        thoughts=fields.get("require_reasoning") or False,
    )
    requests = [
        msgspec.structs.replace(common, **prompt._asdict(), **dict(zip(own, row, strict=True)))
        for prompt, row in zip(prompts, zip(*own.values(), strict=True), strict=True)
    ]
    return Generation(requests, one_answer, stream, intervals, media)


def parse_pause(body: bytes) -> PauseMode:
    """The mode of `/pause_generation`."""
    mode = parse_object(body).get("mode", "abort")
    if mode not in get_args(PauseMode):
        raise SchemaError(f"`mode` must be one of {', '.join(get_args(PauseMode))}", field="mode")
    return mode  # type: ignore[no-any-return]


def parse_timeout(digits: str) -> float:
    """Seconds to wait, from a query string. Raises InvalidRequest."""
    try:
        seconds = float(digits)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_TIMEOUT:
        raise InvalidRequest(f"timeout must be 0 to {MAX_TIMEOUT} seconds", field="timeout")
    return seconds


def parse_abort(body: bytes) -> tuple[str, bool]:
    """The rid in a body of `/abort_request` ("" matches none), and whether to abort all requests."""
    fields = parse_object(body)
    rid, every = fields.get("rid"), fields.get("abort_all")
    if not isinstance(rid, str | None):
        raise SchemaError("`rid` must be text")
    if not isinstance(every, bool | None):
        raise SchemaError("`abort_all` must be true or false")
    return rid or "", bool(every)


# --- types


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _or_null(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _one_or_many(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: check(value) or (isinstance(value, list) and all(map(check, value)))


#: name, what it may be, its check
TYPES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("text", "text or a list of text", _one_or_many(_is_text)),
    ("input_ids", "a list of integers or a list of such lists", _one_or_many(are_integers)),
    ("sampling_params", "an object or a list of objects", _one_or_many(lambda value: isinstance(value, dict))),
    ("rid", "text or a list of text", _one_or_many(_is_text)),
    ("custom_logit_processor", "text or a list of text", _one_or_many(_or_null(_is_text))),
    ("extra_key", "text or a list of text", _one_or_many(_or_null(_is_text))),
    ("cache_salt", "text or a list of text", _one_or_many(_or_null(_is_text))),
    ("priority", "an integer", is_integer),
    ("routed_experts_start_len", "an integer", is_integer),
    ("lora_path", "text or a list of text", _one_or_many(_or_null(_is_text))),
    *((name, "text, an object or a list of these", sglang_media.is_given) for name in sglang_media.FIELDS),
    ("logprob_start_len", "an integer or a list of integers", _one_or_many(_or_null(is_integer))),
    ("top_logprobs_num", "an integer or a list of integers", _one_or_many(_or_null(is_integer))),
    ("token_ids_logprob", "a list of integers or a list of such lists", _one_or_many(_or_null(are_integers))),
)
#: As TYPES, for fields whose type SGLang does not coerce.
STRICT_TYPES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("return_logprob", "true, false or a list of these", _one_or_many(_or_null(_is_bool))),
    ("return_text_in_logprobs", "true or false", _or_null(_is_bool)),
    ("return_hidden_states", "true, false or a list of these", _one_or_many(_or_null(_is_bool))),
    ("return_routed_experts", "true or false", _or_null(_is_bool)),
    ("return_prompt_token_ids", "true or false", _or_null(_is_bool)),
    ("require_reasoning", "true or false", _or_null(_is_bool)),
)


def _check_types(fields: Mapping[str, Any]) -> None:
    """Check like SGLang's lenient layer (SchemaError), then like its strict one (ContractError)."""
    for name, allowed, check in TYPES:
        value = fields.get(name)
        if value is not None and not check(value):
            raise SchemaError(f"`{name}` must be {allowed}, got {_shown(value, check)}", field=name)
    for name, allowed, check in STRICT_TYPES:
        if not check(fields.get(name)):
            raise ContractError(f"`{name}` must be {allowed}, got {_shown(fields[name], check)}", field=name)
    stream = fields.get("stream", False)
    if stream is None:
        raise SchemaError("`stream` must be true or false", field="stream")
    if not isinstance(stream, bool):
        raise ContractError(f"`stream` must be true or false, got {stream!r:.80}", field="stream")


def _shown(value: Any, check: Callable[[Any], bool]) -> str:
    """A short form for messages; of a list that mixes types, the first entry next to one of another that is wrong."""
    mixed = [pair for pair in pairwise(value) if type(pair[0]) is not type(pair[1])] if isinstance(value, list) else []
    wrong = (entry for pair in mixed for entry in pair if not check([entry]))
    return f"a list with {reprlib.repr(next(wrong, mixed[0][1]))} in it" if mixed else reprlib.repr(value)


# --- prompts


def _prompts(fields: Mapping[str, Any]) -> tuple[bool, list[Prompt]]:
    """Whether the answer is one object, and the prompts. Ids win over text; but text, if given, decides the shape."""
    text, ids = fields.get("text"), fields.get("input_ids")
    embeds = fields.get("input_embeds")
    if (text is None) == (ids is None) == (embeds is None):
        came = "none was" if text is None else "all three were"
        raise InvalidRequest(f"Either text, input_ids or input_embeds should be provided: {came}.")
    if text is None and ids is None:
        try:
            single, tensors = sglang_tensors.parse_embeds(embeds)
        except WrongType as error:
            raise SchemaError(error.message, field=error.field) from None
        return single, [Prompt(input_embeds=tensor) for tensor in tensors]
    texts: list[str] | None = [text] if isinstance(text, str) else text
    if ids is None:
        return isinstance(text, str), [Prompt(text=_checked_text(item)) for item in texts or ()]
    flat = are_integers(ids)
    rows: list[list[int]] = [ids] if flat else ids
    if not all(rows):
        raise InvalidRequest("input_ids cannot be empty.", field="input_ids")
    if texts is not None and len(texts) != len(rows):
        raise InvalidRequest("`text` and `input_ids` hold different numbers of prompts", field="input_ids")
    single = flat if text is None else isinstance(text, str)
    return single, [Prompt(input_ids=_checked_ids(row)) for row in rows]


def _checked_text(text: str) -> str:
    check_text_size("text", len(text.encode()))
    return text


def _checked_ids(ids: list[int]) -> list[int]:
    if (token := min(ids)) < 0 or (token := max(ids)) > MAX_TOKEN_ID:
        raise InvalidRequest(f"`input_ids` holds an out-of-vocabulary token id, {token}", field="input_ids")
    return ids


# --- options


def _options(sampling: Any, prompts: int, single: bool) -> list[dict[str, Any]]:
    """One object of sampling parameters for each prompt."""
    if not isinstance(sampling, list):
        return _told_apart(sampling or {}, prompts)
    several = any(is_integer(each.get("n")) and each["n"] > 1 for each in sampling)
    if (single and not several) or len(sampling) != prompts:
        count = f"{prompts} prompts" if several or not single else "a single prompt, which takes one object"
        words = f"`sampling_params` is a list of {len(sampling)} objects for {count}"
        raise InvalidRequest(words, field="sampling_params")
    return sampling


def _told_apart(sampling: dict[str, Any], prompts: int) -> list[dict[str, Any]]:
    """A copy for each prompt, with its own entry of `custom_params` if that is a list."""
    if not isinstance(given := sampling.get("custom_params"), list):
        return [sampling] * prompts
    if len(given) != prompts:
        words = f"`custom_params` is a list of {len(given)} objects for {prompts} prompts: a mismatch"
        raise InvalidRequest(words, field="custom_params")
    return [{**sampling, "custom_params": each} for each in given]


def _interval(options: dict[str, Any]) -> int | None:
    if (interval := options.get("stream_interval")) is None:
        return None
    if not is_integer(interval):
        raise ContractError("stream_interval: expected an integer", field="stream_interval")
    if interval < 1:
        raise InvalidRequest(f"stream_interval must be at least 1, got {interval}", field="stream_interval")
    return int(interval)


def _params(options: dict[str, Any]) -> SamplingParams:
    unknown = next((name for name in options if name not in SAMPLING_NAMES), None)
    if unknown is not None:
        raise ContractError(f"unknown field `{unknown:.80}`, expected one of {', '.join(sorted(SAMPLING_NAMES))}")
    refuse_unsupported(options, IN_SAMPLING)
    known = {name: value for name, value in options.items() if name in SamplingParams.__struct_fields__}
    try:
        return SamplingParams.parse(known, empty_stops=True)
    except WrongType as error:
        raise ContractError(error.message, field=error.field) from None


def _texts(name: str, fields: Mapping[str, Any], prompts: int, *, listed: bool) -> list[str]:
    """The texts of an option, one for each prompt; "" if there is none."""
    given = sglang_logprobs.per_prompt(name, fields.get(name), prompts, default="", listed=listed)
    return [text or "" for text in given]


def _samples(params: list[SamplingParams]) -> int:
    counts = {option.n for option in params} or {1}
    if len(counts) > 1:
        raise InvalidRequest("all `sampling_params` of a batch must have the same `n`", field="n")
    return counts.pop()
