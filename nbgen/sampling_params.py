"""The sampling parameters: how to choose tokens and when to stop. The one place for their defaults and checks.

Ranges and meanings follow `sampling_params.py` of SGLang 0.5.23, whose names every layer uses.
Knows nothing of the model: what depends on a vocabulary or a context length is checked in the engine.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest, place_of

DEFAULT_NEW_TOKENS = 128
MAX_STOP_STRINGS = 32
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_STOP_REGEXES = 32
MAX_STOP_REGEX_BYTES = 256
MAX_GRAMMAR_BYTES = 64 * 2**10
MAX_N = 128
MAX_TOP_K = 2**31 - 1
#: Most characters of an unknown name that are compared and quoted.
MAX_NAME = 80

#: The options that constrain the whole answer; a request may set only one.
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")

#: The string formats of JSON schemas that can be enforced.
STRING_FORMATS = frozenset(
    {
        *("date", "date-time", "duration", "time"),
        *("email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template"),
        *("json-pointer", "relative-json-pointer", "base64", "base64url"),
        *("uuid", *(f"uuid{version}" for version in range(1, 9))),
    }
)

#: The key in a JSON schema for llguidance's options on how answers follow it.
GUIDANCE = "x-guidance"
#: … its JSON is spaced as Python writes it: the model cannot choose white space.
SPACED = {GUIDANCE: {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
#: … answers follow it only as far as it can be enforced.
LENIENT = "lenient"

#: What applies when neither the request nor the model's `generation_config.json` says otherwise.
MODEL_DEFAULTS: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}

_INTEGER = re.compile(r"-?[0-9]{1,20}")


class WrongType(InvalidRequest):
    """A value whose JSON type the option does not take, whatever its range."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of one request.

    `None` in one of the five fields of `MODEL_DEFAULTS` means "the model's own default"; `with_defaults` fills
    them in. `max_new_tokens=None` means as many tokens as the context holds; left out, it is 128 or what fits.
    `custom_params` is passed to the custom logit processor.
    """

    max_new_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    min_new_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[int, float] = {}
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    custom_params: Any = None
    n: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, Any], *, empty_stops: bool = False) -> SamplingParams:
        """Parse a request's object; `null` means the default. Raises InvalidRequest naming the field.

        An empty stop string is ignored; with `empty_stops` it matches at once, as in SGLang.
        """
        fields = {name: value for name, value in options.items() if value is not None or name == "max_new_tokens"}
        for name in ("stop", "stop_regex"):
            if name in fields:
                fields[name] = _texts(name, fields[name], keeps_empty=name == "stop" and empty_stops)
        fields = {name: value for name, value in fields.items() if value != "" or name not in GRAMMARS}
        if isinstance(fields.get("logit_bias"), Mapping):
            fields["logit_bias"] = _bias(fields["logit_bias"])
        _refuse_floats(fields)
        if isinstance(top_k := fields.get("top_k"), int):
            fields["top_k"] = min(top_k, MAX_TOP_K)  # larger than every vocabulary
        try:
            params = msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise _refusal(str(error)) from None
        params.check()
        return params if params.n else msgspec.structs.replace(params, n=1)  # n=0 counts as 1, as in SGLang

    def with_defaults(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """A copy with the five model defaults filled in: the request's value, else `defaults`', else the constant."""
        filled = {
            name: defaults.get(name, constant)
            for name, constant in MODEL_DEFAULTS.items()
            if getattr(self, name) is None
        }
        return msgspec.structs.replace(self, **filled)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken (SGLang: temperature below 1e-6, or top_k 1)."""
        return (self.temperature is not None and self.temperature < 1e-6) or self.top_k == 1

    @property
    def token_limit(self) -> int | None:
        """The most new tokens that the request asks for; None if only the context limits them."""
        return DEFAULT_NEW_TOKENS if self.max_new_tokens is msgspec.UNSET else self.max_new_tokens

    @property
    def grammar(self) -> tuple[str, str] | None:
        """The grammar that the whole answer must match: the option's name and its text. None without a constraint."""
        return next(((name, text) for name in GRAMMARS if (text := getattr(self, name))), None)

    def check(self) -> None:
        """Raise InvalidRequest for the first value outside its range."""
        for name, low, high, open_low in _RANGES:
            value = getattr(self, name)
            _check_range(name, None if value is msgspec.UNSET else value, low, high, open_low)
        _require(self.top_k is None or self.top_k == -1 or self.top_k >= 1, "top_k", self.top_k, "-1 or at least 1")
        limit = self.token_limit
        _require(
            limit is None or self.min_new_tokens <= limit,
            "min_new_tokens",
            self.min_new_tokens,
            f"at most max_new_tokens ({limit})",
        )
        self._check_lists()
        self._check_grammars()

    def _check_lists(self) -> None:
        _check_texts("stop", self.stop, "strings", MAX_STOP_STRINGS, MAX_STOP_BYTES)
        _check_texts("stop_regex", self.stop_regex, "patterns", MAX_STOP_REGEXES, MAX_STOP_REGEX_BYTES)
        ids, biases = len(self.stop_token_ids), len(self.logit_bias)
        _require(ids <= MAX_STOP_TOKEN_IDS, "stop_token_ids", f"{ids} ids", f"at most {MAX_STOP_TOKEN_IDS}")
        _require(biases <= MAX_LOGIT_BIAS, "logit_bias", f"{biases} entries", f"at most {MAX_LOGIT_BIAS}")
        for token in self.stop_token_ids:
            _check_range("stop_token_ids", token, -(2**31), 2**31 - 1, False)
        for value in self.logit_bias.values():
            _check_range("logit_bias", value, -100, 100, False)

    def _check_grammars(self) -> None:
        given = [name for name in GRAMMARS if getattr(self, name)]
        if len(given) > 1:
            raise InvalidRequest(
                f"Only one of {', '.join(GRAMMARS)} can be set, got {' and '.join(given)}", field=given[1]
            )
        for name in given:
            text = getattr(self, name)
            size = len(text.encode())
            _require(size <= MAX_GRAMMAR_BYTES, name, f"{size} bytes", f"at most {MAX_GRAMMAR_BYTES} bytes")
            _require("\0" not in text, name, "a NUL character", "text without NUL characters")


def _texts(name: str, given: Any, *, keeps_empty: bool) -> list[Any]:
    if not isinstance(given, str | list):
        raise WrongType(f"{name} must be text or a list of text, got {given!r:.80}", field=name)
    listed = [given] if isinstance(given, str) else given
    return [text for text in listed if keeps_empty or text != ""]


#: name, lowest, highest, whether the lowest itself is refused
_RANGES: tuple[tuple[str, float, float, bool], ...] = (
    ("max_new_tokens", 0, 2**31, False),
    ("min_new_tokens", 0, 2**31, False),
    ("temperature", 0, math.inf, False),
    ("top_p", 0, 1, True),
    ("min_p", 0, 1, False),
    ("repetition_penalty", 0, 2, True),
    ("frequency_penalty", -2, 2, False),
    ("presence_penalty", -2, 2, False),
    ("sampling_seed", -(2**63), 2**63 - 1, False),
    ("n", 0, MAX_N, False),
)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} must be {allowed}, got {value}", field=name)


def _check_texts(name: str, texts: Sequence[str], what: str, most: int, most_bytes: int) -> None:
    longest = max((len(text.encode()) for text in texts), default=0)
    _require(len(texts) <= most, name, f"{len(texts)} {what}", f"at most {most}")
    _require(longest <= most_bytes, name, f"{longest} bytes", f"at most {most_bytes} bytes each")


def _check_range(name: str, value: float | None, low: float, high: float, open_low: bool) -> None:
    if value is None:
        return
    _require(-math.inf < value < math.inf, name, value, "a finite number")  # of integers of any size
    above = value > low if open_low else value >= low
    words = f"{'above' if open_low else 'at least'} {low}" + (f" and at most {high}" if high < math.inf else "")
    _require(above and value <= high, name, value, words)


def _refuse_floats(fields: Mapping[str, Any]) -> None:
    """Refuse `8.0` and `true` as integers."""
    for name in ("max_new_tokens", "min_new_tokens", "top_k", "sampling_seed", "n"):
        value = fields.get(name)
        if isinstance(value, bool | float):
            raise WrongType(f"{name} must be an integer, got {value!r}", field=name)


def _bias(entries: Mapping[Any, Any]) -> dict[int, Any]:
    for key, value in entries.items():
        if not (_INTEGER.fullmatch(str(key)) and -(2**63) <= int(key) < 2**63):
            shown = reprlib.repr(key)
            raise InvalidRequest(
                f"logit_bias keys must be token ids written as integers, got {shown}", field="logit_bias"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongType(f"logit_bias[{key}] must be a number, got {reprlib.repr(value)}", field="logit_bias")
    return {int(key): value for key, value in entries.items()}


def _refusal(text: str) -> WrongType:
    """msgspec's message with the field's name in front, instead of the path at its end (`at $.top_p`)."""
    what, name = place_of(text)
    if unknown := re.search("unknown field `(.*)`", what):
        refused = no_option(unknown[1], SamplingParams.__struct_fields__)
        return WrongType(refused.message, field=refused.field)
    return WrongType(f"{name}: {what}" if name else what, field=name.partition("[")[0] or None)


def no_option(name: str, known: Sequence[str]) -> InvalidRequest:
    """The refusal of an unknown option.

    It suggests a known option that is spelt alike or contains the name's words; if there is none, it lists all.
    """
    name = name[:MAX_NAME]
    words = name.split("_")
    slips, alike = (difflib.get_close_matches(name, known, 1, likeness) for likeness in (0.8, 0.6))
    meant = [*slips, *(each for each in known if all(word in each for word in words)), *alike]
    more = f"did you mean {meant[0]!r}?" if meant else f"there are {', '.join(known)}"
    return InvalidRequest(f"there is no option {name!r}; {more}", field=name)
