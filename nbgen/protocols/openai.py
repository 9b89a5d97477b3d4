"""OpenAI's completions and chat completions: parses their bodies into requests.

Follows OpenAI's API reference, with the extra sampling fields of SGLang and vLLM. Unknown fields are ignored, known
ones that this server does not support yet are refused. Does not know the format of answers (`openai_answer`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from nbgen.errors import InvalidRequest, renamed
from nbgen.logit_processor import allowed_tokens
from nbgen.messages import GenerateRequest, LogprobOptions, TensorOptions
from nbgen.protocols.chat_messages import Turn, conversation, manner, template_options
from nbgen.protocols.json_body import are_ids, check_range, convert, parse_object, refuse_inside, refuse_unsupported
from nbgen.protocols.media import Item
from nbgen.protocols.openai_tools import Tool, ToolChoice, tool_options
from nbgen.protocols.request_ids import namespace, request_ids
from nbgen.protocols.sglang_unsupported import IN_COMMON
from nbgen.protocols.structured_output import grammar_field, openai_grammar
from nbgen.sampling_params import GRAMMARS, SamplingParams
from nbgen.word_lists import WordLists, checked_words

COMPLETION_TOKENS = 16
MAX_SAMPLES = 1024
MAX_TOP_LOGPROBS = 20

#: The callers' name for the options of a chat template.
OF_TEMPLATES = {"template_options": "chat_template_kwargs"}
#: Known fields that are not supported yet, with the values that ask for nothing and are accepted.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "chat_template": (None,),
    "prompt_logprobs": (None,),
    "prompt_embeds": (None,),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "documents": (None, []),
    "web_search_options": (None,),
    "moderation": (None,),
    "store": (None, False),
    "input_ids": (None,),
    "return_meta_info": (None, False),
    "return_input_ids_in_sglext": (None, False),
    "return_output_ids_in_sglext": (None, False),
    **IN_COMMON,
}
UNSUPPORTED_IN_COMPLETIONS: dict[str, tuple[Any, ...]] = {"add_special_tokens": (None, True)}
UNSUPPORTED_IN_CHATS: dict[str, tuple[Any, ...]] = {"add_special_tokens": (None, False), "echo": (None, False)}
UNSUPPORTED_STREAM_OPTIONS: dict[str, tuple[Any, ...]] = {"include_obfuscation": (None, False)}
#: OpenAI's, SGLang's and vLLM's names of sampling options, mapped to ours.
SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "n": "n",
    "stop": "stop",
    "seed": "sampling_seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "min_tokens": "min_new_tokens",
    "stop_token_ids": "stop_token_ids",
    "include_stop_str_in_output": "no_stop_trim",
    "no_stop_trim": "no_stop_trim",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "stop_regex": "stop_regex",
    "custom_params": "custom_params",
    "spaces_between_special_tokens": "spaces_between_special_tokens",
}


class StreamOptions(msgspec.Struct):
    """Whether a stream reports token usage in a last chunk, or in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(msgspec.Struct):
    """`response_format.json_schema`. The engine checks the schema itself."""

    schema: dict[str, Any] | bool
    name: str = ""
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """The format of the whole answer. A bare `schema` is the form of llama.cpp's and Together's clients."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """The fields of both routes, besides the sampling options."""

    model: str = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    response_format: ResponseFormat | None = None
    custom_logit_processor: str | None = None
    allowed_token_ids: list[int] | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    rid: str | list[str] | None = None
    priority: int | None = None
    lora_path: str | list[str | None] | None = None
    return_hidden_states: bool | Literal["last"] | None = None
    return_routed_experts: bool | None = None
    routed_experts_start_len: int | None = None
    return_token_ids: bool | None = None
    return_prompt_token_ids: bool | None = None
    bad_words: list[str] | None = None


class CompletionBody(Body, kw_only=True):
    """A body of `/v1/completions`."""

    prompt: Any = None
    echo: bool | None = None
    logprobs: int | None = None


class ChatBody(Body, kw_only=True):
    """A body of `/v1/chat/completions`."""

    messages: list[Turn]
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None


class Call(NamedTuple):
    """What one call asks for; choices are numbered prompt by prompt, then sample by sample."""

    requests: list[GenerateRequest]
    chat: bool
    stream: bool = False
    usage: bool = False
    usage_in_each: bool = False
    echo: bool = False
    #: Whether the ids of an answer's tokens are wanted (a request's `prompt_ids` asks for those of its prompt).
    token_ids: bool = False
    #: Whether the caller wants log-probabilities.
    logprobs: bool = False
    #: The model's name in the body.
    model: str = ""
    #: The media of each request, in the order of `requests`.
    media: Sequence[list[Item]] = ()
    #: The caller's names of the engine's options, for error messages.
    names: Mapping[str, str] = {}


B = TypeVar("B", bound=Body)


def parse_completion(raw: bytes) -> Call:
    """The call in a body of `/v1/completions`. Raises InvalidRequest."""
    fields = parse_object(raw)
    refuse_unsupported(fields, UNSUPPORTED_IN_COMPLETIONS)
    if fields.get("best_of") == fields.get("n"):  # best_of equal to n changes nothing
        fields.pop("best_of", None)
    body = _body(fields, CompletionBody)
    echo, top = bool(body.echo), body.logprobs
    check_range("logprobs", top, 0, MAX_TOP_LOGPROBS)
    limit = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    params = _sampling(fields, limit)
    prompts = _prompts(body.prompt)
    _check_samples(len(prompts) * params.n)
    single = len(prompts) == 1 and not isinstance(body.rid, list)
    rids = request_ids(body.rid, len(prompts), params.n, single=single)
    wanted = None if top is None else LogprobOptions(start=0 if echo else None, top=top, text=True)
    shared = {"logprobs": wanted, "group": uuid.uuid4().hex}
    requests = [
        _request(body, rid, params, **shared, adapter=name, **_asked(p, echo=echo))
        for rid, p, name in zip(rids, prompts, _adapters(body.lora_path, len(prompts)), strict=True)
    ]
    names = _names(fields, "max_tokens") | {"input_ids": "prompt"}
    names |= {"top_logprobs_num": "logprobs", "logprob_start_len": "echo"}
    return _call(body, requests, chat=False)._replace(echo=echo, logprobs=top is not None, names=names)


def parse_chat(raw: bytes) -> Call:
    """The call in a body of `/v1/chat/completions`. Raises InvalidRequest."""
    return chat_call(parse_object(raw))


def chat_call(fields: dict[str, Any]) -> Call:
    """The call that the fields of a chat body ask for. Raises InvalidRequest."""
    refuse_unsupported(fields, UNSUPPORTED_IN_CHATS)
    body = _body(fields, ChatBody)
    if body.add_generation_prompt is False and not body.continue_final_message:
        words = "add_generation_prompt is false, and continue_final_message is not set: leave it out, or set both"
        raise InvalidRequest(words, field="add_generation_prompt")
    check_range("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", field="top_logprobs")
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    wanted = LogprobOptions(top=body.top_logprobs or 0, text=True) if body.logprobs else None
    params = _sampling(fields, getattr(body, name), name)
    _check_samples(params.n)
    (rid,) = request_ids(body.rid, 1, params.n, single=True)
    messages, media = conversation(body.messages)
    request = _request(
        body,
        rid,
        params,
        messages=messages,
        logprobs=wanted,
        adapter=_adapters(body.lora_path, 1)[0],
        tools=tool_options(body.tools, body.tool_choice, body.parallel_tool_calls),
        parts=True,
        thoughts=body.separate_reasoning is not False,
        continue_final=body.continue_final_message,
        template_options=template_options(manner(body.chat_template_kwargs, body.reasoning_effort, body.verbosity)),
    )
    names = _names(fields, name) | {"input_ids": "messages", "messages": "messages", **OF_TEMPLATES}
    names["top_logprobs_num"] = "top_logprobs"
    return _call(body, [request], chat=True)._replace(logprobs=wanted is not None, media=[media], names=names)


def _body(fields: dict[str, Any], kind: type[B]) -> B:
    refuse_unsupported(fields, UNSUPPORTED)
    refuse_inside(fields, "stream_options", UNSUPPORTED_STREAM_OPTIONS)
    return convert(fields, kind)


def _sampling(fields: Mapping[str, Any], limit: int | None, limit_name: str = "max_tokens") -> SamplingParams:
    """Sampling options under our names; a refusal names the field as the caller wrote it."""
    if limit is not None and limit < 1:
        raise InvalidRequest(f"{limit_name} must be at least 1, got {limit}", field=limit_name)
    ours = {own: fields[name] for own, name in _given(fields).items()} | openai_grammar(fields)
    try:
        return SamplingParams.parse({**ours, "max_new_tokens": limit})
    except InvalidRequest as error:
        raise renamed(error, _names(fields, limit_name)) from None


def _given(fields: Mapping[str, Any]) -> dict[str, str]:
    return {own: name for name, own in SAMPLING.items() if fields.get(name) is not None}


def _names(fields: Mapping[str, Any], limit_name: str) -> dict[str, str]:
    """The caller's names of the engine's options."""
    names = {own: name for name, own in SAMPLING.items()} | _given(fields) | {"max_new_tokens": limit_name}
    names |= {"custom_logit_processor": "allowed_token_ids"} if fields.get("allowed_token_ids") else {}
    return names | (dict.fromkeys(GRAMMARS, field) if (field := grammar_field(fields)) else {})


def _request(body: Body, rid: str, params: SamplingParams, **own: Any) -> GenerateRequest:
    return GenerateRequest(
        rid=rid,
        namespace=namespace(body.extra_key, body.cache_salt),
        priority=body.priority or 0,
        logit_processor=_logit_processor(body),
        words=WordLists(bad=bad) if (bad := checked_words(body.bad_words or ())) else None,
        params=params,
        tensors=_tensors(body),
        prompt_ids=bool(body.return_token_ids or body.return_prompt_token_ids),
        streamed=bool(body.stream),
        **own,
    )


def _logit_processor(body: Body) -> str | None:
    """The caller's own logit processor, or one for `allowed_token_ids`."""
    if not body.allowed_token_ids:
        return body.custom_logit_processor or None
    if body.custom_logit_processor:
        words = "allowed_token_ids and custom_logit_processor exclude each other: give one of them"
        raise InvalidRequest(words, field="allowed_token_ids")
    return allowed_tokens(body.allowed_token_ids)


def _tensors(body: Body) -> TensorOptions | None:
    """The tensors that the body asks for: of the hidden states the last one, as with SGLang."""
    start = (body.routed_experts_start_len or 0) if body.return_routed_experts else None
    if start is not None and start < 0:
        raise InvalidRequest(
            f"routed_experts_start_len must be at least 0, got {start}", field="routed_experts_start_len"
        )
    options = TensorOptions(last_hidden_state=bool(body.return_hidden_states), routed_experts=start)
    return options if options != TensorOptions() else None


def _adapters(given: str | list[str | None] | None, prompts: int) -> list[str]:
    """The name of each prompt's LoRA adapter; "" is the base model."""
    if not isinstance(given, list):
        return [given or ""] * prompts
    if len(given) != prompts:
        raise InvalidRequest(f"lora_path is a list of {len(given)} names for {prompts} prompts", field="lora_path")
    return [name or "" for name in given]


def _call(body: Body, requests: list[GenerateRequest], *, chat: bool) -> Call:
    options = body.stream_options or StreamOptions()
    usage, ids = (options.include_usage, options.continuous_usage_stats), bool(body.return_token_ids)
    return Call(requests, chat, bool(body.stream), *usage, token_ids=ids, model=body.model)


def _check_samples(count: int) -> None:
    if count > MAX_SAMPLES:
        raise InvalidRequest(f"{count} choices at once; at most {MAX_SAMPLES}", field="n")


def _asked(prompt: str | list[int], *, echo: bool) -> dict[str, Any]:
    """The request's fields for one prompt. The text of ids is the engine's to tell."""
    return {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt, "echo": echo}


def _prompts(prompt: Any) -> list[str | list[int]]:
    """Text, several texts, ids, or several lists of ids."""
    match prompt:
        case str() if prompt:
            return [prompt]
        case [int(), *_] if are_ids(prompt):
            return [prompt]
        case [str(), *_] if all(isinstance(each, str) and each for each in prompt):
            return list(prompt)
        case [list(), *_] if all(each and are_ids(each) for each in prompt):
            return list(prompt)
    raise InvalidRequest("prompt must be text, token ids, or a list of either, and none of them empty", field="prompt")
