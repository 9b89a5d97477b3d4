"""The names of options of Triton's language models: vLLM's and TensorRT-LLM's spellings of each.

One table lists the options, which come as tensors, as parameters or inside `sampling_parameters`. Unknown names are
ignored, as both back ends do; known but unsupported ones are refused. Knows no model, no wire and no meanings
(`triton_sampling`).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from nbgen.errors import InvalidRequest, renamed
from nbgen.protocols import structured_output
from nbgen.tensor_spec import TensorSpec

PREFIX = "sampling_param_"
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
    Option("n", "INT32", ("num_return_sequences",)),
    Option("best_of", "INT32"),
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
    Option("spaces_between_special_tokens", "BOOL"),
    Option("logit_bias", "BYTES"),
    Option("allowed_token_ids", "INT32", (), LIST),
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
    Option("structured_outputs", "BYTES", ("guided_decoding",)),
    *(Option(name, "BYTES", (), LIST if name == "guided_choice" else SCALAR) for name in structured_output.GUIDED),
)
#: Options of either back end that are not supported, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "prompt_logprobs": (None,),
    "truncate_prompt_tokens": (None,),
    "detokenize": (None, True),
    "use_beam_search": (None, False),
    "logits_processors": (None, []),
    "no_repeat_ngram_size": (None, 0),
    "embedding_bias_words": (None, "", []),
    "embedding_bias_weights": (None, "", []),
    "lora_task_id": (None,),
}
#: The engine's names that differ from the canonical ones.
NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
    "lora_path": "lora_name",
    "custom_logit_processor": "allowed_token_ids",
    "bad_ids": "bad_words_list",
    "stop_ids": "stop_words_list",
}
CANONICAL = {name: option for option in OPTIONS for name in (option.name, *option.aliases)}
#: Datatypes that are accepted instead of an option's own.
_ALSO = {"INT32": ("INT64", "UINT32", "UINT64"), "UINT64": ("INT64", "INT32", "UINT32"), "FP32": ("FP64",)}


def specs(*, shown: bool) -> tuple[TensorSpec, ...]:
    """The options as input tensors: those in the metadata (`shown`), or those that are accepted besides."""
    return tuple(
        TensorSpec(
            name=name, datatype=option.datatype, dims=option.dims, optional=True, also=_ALSO.get(option.datatype, ())
        )
        for option in OPTIONS
        for name in (option.name, *option.aliases)
        if (name in option.shown) == shown
    )


class Given(NamedTuple):
    """An option's value, and its name in the request."""

    name: str
    option: Option
    value: Any


class Options(dict[str, Any]):
    """The known options of a request by canonical name; `written` has the names that the request uses."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, str] = {}

    def take(self, source: Iterable[Given]) -> None:
        """Add options, overriding earlier sources. Raises InvalidRequest if two names of an option disagree."""
        found: dict[str, Given] = {}
        for given in source:
            other = found.setdefault(given.option.name, given)
            if other is not given and other.value != given.value:
                raise InvalidRequest(f"{other.name} and {given.name} are names of one option: give one of them")
        for name, given in found.items():
            self[name], self.written[name] = given.value, given.name

    def in_its_words(self, error: InvalidRequest) -> InvalidRequest:
        """The refusal with the engine's names replaced by those in the request."""
        return renamed(error, self.written | {own: self.written.get(name, name) for own, name in NAMES.items()})


def gather(parameters: Mapping[str, Any], tensors: Mapping[str, list[Any]]) -> Options:
    """The options: each from its tensor, else `sampling_parameters`, else the parameters. Raises InvalidRequest."""
    text, *_ = tensors.get("sampling_parameters") or [parameters.get("sampling_parameters", "")]
    sampling = structured_output.text_object("sampling_parameters", text)
    options = Options()
    for source in (_named(parameters), _named(sampling), _tensor_values(tensors)):
        options.take(source)
    return options


def _named(source: Mapping[str, Any]) -> Iterator[Given]:
    """Known options of a mapping, cast to their types; null and empty lists are skipped."""
    for name, value in source.items():
        plain = name.removeprefix(PREFIX)
        if plain in UNSUPPORTED and value not in UNSUPPORTED[plain]:
            raise InvalidRequest(f"{name} is not supported by this server: leave it out")
        option = CANONICAL.get(plain)
        if option is None or value is None or plain == "sampling_parameters":
            continue
        cast = _cast(name, value, option)
        if cast != [] and (plain, cast) != ("stop", [False]):  # stop=[false] cancels no other request
            yield Given(name, option, cast)


def _tensor_values(tensors: Mapping[str, list[Any]]) -> Iterator[Given]:
    for name, values in tensors.items():
        option = CANONICAL.get(name)
        if option is None or not values:
            continue
        if option.datatype == "FP32":
            values = [_scalar(name, value, "FP32") for value in values]
        yield Given(name, option, values[0] if option.dims == SCALAR else values)


def _cast(name: str, value: Any, option: Option) -> Any:
    if option.dims != SCALAR:
        listed = value if isinstance(value, list) else [value]
        flags = (bool,) if option.name == "stop" else ()
        return [
            item if isinstance(item, flags) else _element(name, item, option.datatype) for item in listed if item != ""
        ]
    return _scalar(name, value, option.datatype)


def _element(name: str, item: Any, datatype: str) -> Any:
    if datatype == "BYTES" and not isinstance(item, str):
        raise InvalidRequest(f"{name[:80]} must be text or a list of text, got {reprlib.repr(item)}")
    return _scalar(name, item, datatype)


def _scalar(name: str, value: Any, datatype: str) -> Any:
    try:
        match datatype:
            case "BYTES":
                return value if isinstance(value, str) else msgspec.json.encode(value).decode()
            case "BOOL":
                return _boolean(value)
            case "FP32":
                return _finite(value)
            case _:
                return _integer(value, 2**64 if datatype == "UINT64" else 2**63)
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest(f"{name[:80]} must be {_WORDS[datatype]}, got {str(value)[:80]!r}") from None


_WORDS = {
    "BOOL": "true or false",
    "FP32": "a finite number",
    "INT32": "an integer",
    "UINT64": "an integer",
}


def as_number(value: Any) -> Any:
    """The value, which may be a number as text, as vLLM's clients send. Raises ValueError for Python-only syntax."""
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError
    return value


def _boolean(value: Any) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise ValueError
    return value


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(number := float(as_number(value))):
        raise ValueError
    return number


def _integer(value: Any, end: int) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    if not -(2**63) <= (number := int(as_number(value))) < end:
        raise ValueError
    return number
