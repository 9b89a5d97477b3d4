"""Translates the options of Triton's language models into the engine's. Knows only their canonical names.

`triton_options` knows the other names, and where the options come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, takewhile
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.logit_processor import allowed_tokens
from nbgen.protocols import structured_output
from nbgen.protocols.json_body import is_integer
from nbgen.protocols.triton_options import Options
from nbgen.sampling_params import SamplingParams
from nbgen.word_lists import WordLists, checked_words

MAX_WORD_TOKENS = 4096
#: Triton's priorities from here on are all equal here.
LOWEST_PRIORITY = 2**31
DEFAULT_MAX_TOKENS = 16


def refuse_unsupported(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an option that this server would have to ignore."""
    if options.get("beam_width", 1) > 1:
        raise InvalidRequest(f"beam_width is {options['beam_width']}; this server decodes without beams, so 1 at most")
    if (best_of := options.get("best_of", 0)) not in (0, n := options.get("n", 1)):
        raise InvalidRequest(f"best_of is {best_of}, and n is {n}: no more samples are made here than are given")
    if any(isinstance(item, bool) for item in _listed(options.get("stop"))) and True in options["stop"]:
        raise InvalidRequest("stop=true would cancel another request: close that request's connection instead")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def sampling_params(options: Options, *, new_tokens: bool = True) -> SamplingParams:
    """The options as the engine's sampling parameters; without `new_tokens` only the prompt is computed."""
    try:
        return SamplingParams.parse(_fields(options, new_tokens))
    except InvalidRequest as error:
        raise options.in_its_words(error) from None


def _fields(options: Mapping[str, Any], new_tokens: bool) -> dict[str, Any]:
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
            "spaces_between_special_tokens",
            "n",
        )
        if name in options
    }
    # A limit beyond every context is cut to the largest that is accepted.
    fields["max_new_tokens"] = min(options.get("max_tokens", DEFAULT_MAX_TOKENS), 2**31) if new_tokens else 0
    fields["min_new_tokens"] = options.get("min_tokens", 0) if new_tokens else 0
    fields["top_p"] = _off(options.get("top_p"), (0.0,), 1.0)
    fields["top_k"] = _off(options.get("top_k"), (0,), -1)
    fields["no_stop_trim"] = options.get("include_stop_str_in_output")
    fields["stop"] = [word for word in options.get("stop", ()) if isinstance(word, str)]
    fields["stop_token_ids"] = _stop_ids(options)
    fields |= structured_output.triton_grammar(options)
    if bias := options.get("logit_bias"):
        fields["logit_bias"] = structured_output.text_object("logit_bias", bias)
    if "seed" in options:
        fields["sampling_seed"] = (options["seed"] + 2**63) % 2**64 - 2**63
    return fields


def logit_processor(options: Mapping[str, Any]) -> str | None:
    """A logit processor for `allowed_token_ids`, if given."""
    ids = options.get("allowed_token_ids")
    return None if ids is None else allowed_tokens(ids)


def word_lists(options: Mapping[str, Any]) -> WordLists | None:
    """The forbidden words, and the stop words of several tokens. Raises InvalidRequest."""
    lists = WordLists(
        bad=checked_words(_listed(options.get("bad_words"))),
        bad_ids=_word_list(options, "bad_words_list"),
        stop_ids=[word for word in _word_list(options, "stop_words_list") if len(word) > 1],
    )
    return lists if lists != WordLists() else None


def adapter(options: Mapping[str, Any]) -> str:
    """The LoRA adapter's name; "" is the base model. Whether it exists is checked later."""
    name = options.get("lora_name", "")
    if not isinstance(name, str):
        raise InvalidRequest(f"lora_name must be the name of an adapter, got {str(name)[:80]}")
    return name


def priority(value: Any) -> int:
    """The engine's priority (higher is sooner) for Triton's, where 1 is the highest and 0, the default, the lowest."""
    if value is None:
        return 0
    if not is_integer(value, 0):
        raise InvalidRequest(
            f"Unable to parse 'priority': expected unsigned integer, got {value!r:.80}", field="priority"
        )
    return max(1, LOWEST_PRIORITY - value) if value else 0


def _off(value: Any, offs: tuple[Any, ...], standard: Any) -> Any:
    return standard if value in offs else value


def _stop_ids(options: Mapping[str, Any]) -> list[int]:
    words = [word for word in _word_list(options, "stop_words_list") if len(word) == 1]
    own = [*options.get("stop_token_ids", ()), *_listed(options.get("end_id"))]
    return [token for token in (*own, *(token for word in words for token in word)) if token >= 0]


def _word_list(options: Mapping[str, Any], name: str) -> list[list[int]]:
    """The token ids of each word in TensorRT-LLM's `[2, n]` lists: all ids, then where each word ends, up to -1."""
    encoded = options.get(name, [])
    half = len(encoded) // 2
    ends = list(takewhile(lambda end: end >= 0, encoded[half:]))
    if len(encoded) % 2 or ends != sorted(ends) or (ends and ends[-1] > half) or half > MAX_WORD_TOKENS:
        raise InvalidRequest(
            f"{name} must be [2, n], n at most {MAX_WORD_TOKENS}: the ids of all words, and where each word ends, "
            "padded with -1"
        )
    return [encoded[start:end] for start, end in pairwise((0, *ends)) if end > start]
