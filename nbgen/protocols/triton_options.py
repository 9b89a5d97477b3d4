"""The names under which Triton's language models take their options: vLLM's and TensorRT-LLM's spellings of each.

One table says what is taken, as tensor, as parameter or inside `sampling_parameters`, and what each means here.
Unknown names are ignored, as both back ends do. Knows no model and no wire.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols import structured_output
from nbgen.sampling_params import SamplingParams
from nbgen.tensor_spec import TensorSpec
from nbgen.word_lists import WordLists, bad_words

PREFIX = "sampling_param_"
MAX_WORD_TOKENS = 4096
#: Beyond this, Triton's priorities are all the same here.
LOWEST_PRIORITY = 2**31
DEFAULT_MAX_TOKENS = 16
LIST = (-1,)
SCALAR = (1,)


class Option(NamedTuple):
    """One option: its datatype and dimensions as a tensor, and its other names. `shown` ones are in the metadata."""

    name: str
    datatype: str
    aliases: tuple[str, ...] = ()
    dims: tuple[int, ...] = SCALAR
    shown: tuple[str, ...] = ()


OPTIONS = (
    Option("stream", "BOOL", ("streaming",), shown=("stream", "streaming")),
    Option("exclude_input_in_output", "BOOL", ("exclude_input_from_output",), shown=("exclude_input_in_output",)),
    Option("sampling_parameters", "BYTES", shown=("sampling_parameters",)),
    Option(
        "max_tokens",
        "INT32",
        ("request_output_len", "max_new_tokens", "max_output_tokens"),
        shown=("max_tokens", "request_output_len"),
    ),
    Option("min_tokens", "INT32", ("min_length",), shown=("min_tokens", "min_length")),
    Option("temperature", "FP32", shown=("temperature",)),
    Option("top_k", "INT32", ("runtime_top_k",), shown=("top_k", "runtime_top_k")),
    Option("top_p", "FP32", ("runtime_top_p",), shown=("top_p", "runtime_top_p")),
    Option("min_p", "FP32"),
    Option("repetition_penalty", "FP32", shown=("repetition_penalty",)),
    Option("presence_penalty", "FP32", shown=("presence_penalty",)),
    Option("frequency_penalty", "FP32", shown=("frequency_penalty",)),
    Option("length_penalty", "FP32", ("len_penalty",), shown=("length_penalty",)),
    Option("beam_width", "INT32", ("num_beams",), shown=("beam_width",)),
    Option("n", "INT32", ("num_return_sequences", "best_of")),
    Option("seed", "UINT64", ("random_seed",), shown=("seed", "random_seed")),
    Option("stop", "BYTES", ("stop_words", "stop_sequences"), LIST, shown=("stop_words",)),
    Option("bad_words", "BYTES", (), LIST, shown=("bad_words",)),
    Option("stop_token_ids", "INT32", (), LIST),
    Option("end_id", "INT32", shown=("end_id",)),
    Option("stop_words_list", "INT32", (), (2, -1)),
    Option("bad_words_list", "INT32", (), (2, -1)),
    Option("pad_id", "INT32", shown=("pad_id",)),
    Option("input_lengths", "INT32", shown=("input_lengths",)),
    Option("ignore_eos", "BOOL"),
    Option("skip_special_tokens", "BOOL"),
    Option("include_stop_str_in_output", "BOOL"),
    Option("early_stopping", "BOOL"),
    Option("return_log_probs", "BOOL", ("return_logprobs",), shown=("return_log_probs",)),
    Option("logprobs", "INT32"),
    Option("return_context_logits", "BOOL", shown=("return_context_logits",)),
    Option("return_generation_logits", "BOOL", shown=("return_generation_logits",)),
    Option("return_finish_reason", "BOOL", ("return_stop_reason",), shown=("return_finish_reason",)),
    Option("return_cumulative_logprob", "BOOL", shown=("return_cumulative_logprob",)),
    Option("return_num_input_tokens", "BOOL", shown=("return_num_input_tokens",)),
    Option("return_num_output_tokens", "BOOL", shown=("return_num_output_tokens",)),
    Option("return_perf_metrics", "BOOL", shown=("return_perf_metrics",)),
    Option("lora_name", "BYTES"),
    Option("guided_decoding_guide_type", "BYTES"),
    Option("guided_decoding_guide", "BYTES"),
    Option("structured_outputs", "BYTES"),
)
CANONICAL = {name: option for option in OPTIONS for name in (option.name, *option.aliases)}
#: Datatypes that a client may send instead.
_ALSO = {"INT32": ("INT64", "UINT32", "UINT64"), "UINT64": ("INT64", "INT32", "UINT32"), "FP32": ("FP64",)}


def specs(*, shown: bool) -> tuple[TensorSpec, ...]:
    """The options as inputs: those of the metadata, or those that are taken beside them."""
    return tuple(
        TensorSpec(
            name=name, datatype=option.datatype, dims=option.dims, optional=True, also=_ALSO.get(option.datatype, ())
        )
        for option in OPTIONS
        for name in (option.name, *option.aliases)
        if (name in option.shown) == shown
    )


def gather(parameters: Mapping[str, Any], tensors: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Every known option by its canonical name: from its tensor, else `sampling_parameters`, else the parameters."""
    text, *_ = tensors.get("sampling_parameters") or [parameters.get("sampling_parameters", "")]
    sampling = structured_output.text_object("sampling_parameters", text)
    options: dict[str, Any] = {}
    for source in (_named(parameters), _named(sampling), _tensor_values(tensors)):
        options |= source
    return options


def _named(source: Mapping[str, Any]) -> dict[str, Any]:
    """Known options of a mapping, cast to their types; `null` is not given."""
    found = {}
    for name, value in source.items():
        option = CANONICAL.get(name.removeprefix(PREFIX))
        if option is not None and value is not None and option.name != "sampling_parameters":
            found[option.name] = _cast(name, value, option)
    return found


def _tensor_values(tensors: Mapping[str, list[Any]]) -> dict[str, Any]:
    found = {}
    for name, values in tensors.items():
        option = CANONICAL.get(name)
        if option is not None and values:
            found[option.name] = values[0] if option.dims == SCALAR else values
    return found


def _cast(name: str, value: Any, option: Option) -> Any:
    if option.dims != SCALAR:
        listed = value if isinstance(value, list) else [value]
        return [_scalar(name, item, option.datatype) for item in listed if item != ""]
    return _scalar(name, value, option.datatype)


def _scalar(name: str, value: Any, datatype: str) -> Any:
    try:
        match datatype:
            case "BYTES":
                return value if isinstance(value, str | bool) else msgspec.json.encode(value).decode()
            case "BOOL":
                return _boolean(value)
            case "FP32":
                return _finite(float(value))
            case _:
                return _integer(value)
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest(f"{name[:80]} must be {_WORDS[datatype]}, got {str(value)[:80]!r}") from None


_WORDS = {"BOOL": "true or false", "FP32": "a number", "INT32": "an integer", "UINT64": "an integer"}


def _boolean(value: Any) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise ValueError
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


# --- what they mean


def refuse_unsupported(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an option that this server would have to ignore."""
    if options.get("beam_width", 1) > 1:
        raise InvalidRequest(f"beam_width is {options['beam_width']}; this server decodes without beams, so 1 at most")
    if any(isinstance(item, bool) for item in _listed(options.get("stop"))) and True in options["stop"]:
        raise InvalidRequest("stop=true would cancel another request: close that request's connection instead")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def sampling_params(options: Mapping[str, Any], *, new_tokens: bool = True) -> SamplingParams:
    """The options as the engine knows them; without `new_tokens` the prompt alone is computed."""
    fields: dict[str, Any] = {
        name: options[name]
        for name in (
            "temperature",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "ignore_eos",
            "skip_special_tokens",
            "n",
        )
        if name in options
    }
    fields["max_new_tokens"] = options.get("max_tokens", DEFAULT_MAX_TOKENS) if new_tokens else 0
    fields["min_new_tokens"] = options.get("min_tokens", 0) if new_tokens else 0
    fields["top_p"] = _off(options.get("top_p"), (0.0,), 1.0)
    fields["top_k"] = _off(options.get("top_k"), (0,), -1)
    fields["no_stop_trim"] = options.get("include_stop_str_in_output")
    fields["stop"] = [word for word in options.get("stop", ()) if isinstance(word, str)]
    fields["stop_token_ids"] = _stop_ids(options)
    fields |= structured_output.triton_grammar(options)
    if "seed" in options:
        fields["sampling_seed"] = (options["seed"] + 2**63) % 2**64 - 2**63
    return SamplingParams.parse(_within_reach(fields))


def word_lists(options: Mapping[str, Any]) -> WordLists | None:
    """The words that must not come, or of several tokens end the answer. Raises InvalidRequest."""
    lists = WordLists(
        bad=bad_words(_listed(options.get("bad_words"))),
        bad_ids=_word_list(options, "bad_words_list"),
        stop_ids=[word for word in _word_list(options, "stop_words_list") if len(word) > 1],
    )
    return lists if lists != WordLists() else None


def adapter(options: Mapping[str, Any]) -> str:
    """The LoRA adapter's name; "" is the base model. Whether there is one of this name is known later."""
    name = options.get("lora_name", "")
    if not isinstance(name, str):
        raise InvalidRequest(f"lora_name must be the name of an adapter, got {str(name)[:80]}")
    return name


def priority(value: Any) -> int:
    """The engine's priority, the higher the sooner, for Triton's: 1 is the highest, 0 the default, which comes last."""
    return max(1, LOWEST_PRIORITY - value) if isinstance(value, int) and value else 0


def _within_reach(fields: dict[str, Any]) -> dict[str, Any]:
    """A limit beyond every context is as good as the largest."""
    return fields | {"max_new_tokens": min(fields["max_new_tokens"], 2**31)}


def _off(value: Any, offs: tuple[Any, ...], standard: Any) -> Any:
    return standard if value in offs else value


def _stop_ids(options: Mapping[str, Any]) -> list[int]:
    words = [word for word in _word_list(options, "stop_words_list") if len(word) == 1]
    own = [*options.get("stop_token_ids", ()), *_listed(options.get("end_id"))]
    return [token for token in (*own, *(token for word in words for token in word)) if token >= 0]


def _word_list(options: Mapping[str, Any], name: str) -> list[list[int]]:
    """The token ids of each word of TensorRT-LLM's `[2, n]` lists: the ids of all, and where each ends, up to -1."""
    encoded = options.get(name, [])
    half = len(encoded) // 2
    ends = list(takewhile(lambda end: end >= 0, encoded[half:]))
    if len(encoded) % 2 or ends != sorted(ends) or (ends and ends[-1] > half) or half > MAX_WORD_TOKENS:
        raise InvalidRequest(
            f"{name} must be [2, n], n at most {MAX_WORD_TOKENS}: the ids of all words, and where each word ends, "
            "padded with -1"
        )
    return [encoded[start:end] for start, end in pairwise((0, *ends)) if end > start]
