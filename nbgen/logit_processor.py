"""Custom logit processors, which change the model's logits for a client, and their wire format: SGLang's class
`CustomLogitProcessor` as a pickle, and processors of our own by name.

The one module that turns bytes into code, which happens only if the server's owner has allowed it
(`enable_custom_logit_processor`). Knows neither engine nor requests.
"""

from __future__ import annotations

import json
import reprlib
import sys
from abc import ABC, abstractmethod
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from nbgen.errors import NbgenError

#: SGLang 0.5.23's module with these classes, which pickles of users' classes refer to.
SGLANG_MODULE = "sglang.srt.sampling.custom_logit_processor"


class CustomLogitProcessor(ABC):
    """Changes logits before a token is sampled. Subclasses take no arguments and keep no state between steps."""

    @abstractmethod
    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any] | None] | None = None) -> Any:
        """The changed `logits`, a float tensor `[requests, vocab]`, in place or not.

        `custom_param_list` has each request's `custom_params`; in an object, `__req__` describes the request
        (`origin_input_ids`, `output_ids`, `sampling_params`, `rid`). Changes to an object last for the request.
        """

    @classmethod
    def to_str(cls) -> str:
        """The class as `custom_logit_processor` takes it. Needs dill: `pip install 'nbgen[processors]'`."""
        try:
            import dill
        except ImportError:
            raise NbgenError("code is sent by dill: pip install 'nbgen[processors]'") from None
        return json.dumps({"callable": dill.dumps(cls, recurse=True).hex()})

    @classmethod
    def from_str(cls, text: str) -> CustomLogitProcessor:
        """An instance of the class in `text`. Runs whatever code it holds."""
        processor: CustomLogitProcessor = load(text)
        return processor


class DisallowedTokensLogitsProcessor(CustomLogitProcessor):
    """Forbids the tokens of `custom_params["token_ids"]`, request by request."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any] | None] | None = None) -> Any:
        for row, params in enumerate(custom_param_list or ()):
            logits[row, _token_ids(params or {}, logits)] = float("-inf")
        return logits


class AllowedTokensLogitsProcessor(CustomLogitProcessor):
    """Forbids all tokens but those of `custom_params["token_ids"]`, request by request."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any] | None] | None = None) -> Any:
        for row, params in enumerate(custom_param_list or ()):
            ids = _token_ids(params or {}, logits)
            kept = logits[row, ids]
            logits[row] = float("-inf")
            logits[row, ids] = kept
        return logits


class WrongParams(ValueError):
    """A processor got unsuitable parameters, for example `token_ids` that are no list of the model's tokens."""


#: Processors that need no code from a client: `{"name": "disallowed_tokens", "args": {"token_ids": [1, 2]}}`.
NAMED: dict[str, type[CustomLogitProcessor]] = {
    "allowed_tokens": AllowedTokensLogitsProcessor,
    "disallowed_tokens": DisallowedTokensLogitsProcessor,
}


def allowed_tokens(ids: list[int]) -> str:
    """A processor that allows these tokens only, encoded for `custom_logit_processor`."""
    return json.dumps({"name": "allowed_tokens", "args": {"token_ids": ids}})


class Named:
    """A processor of NAMED; `args` apply to each request that does not override them in its `custom_params`."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        self._processor = NAMED[name]()
        self._args = args

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any] | None]) -> Any:
        return self._processor(logits, [self._told(params, logits) for params in custom_param_list])

    def _told(self, params: Any, logits: Any) -> dict[str, Any]:
        """The request's own ids, else those of `args`, as an index tensor, which is made at the first step."""
        if not isinstance(params, dict | None):
            raise WrongParams("custom_params of a processor that is named must be an object")
        told = params if params and "token_ids" in params else self._args
        scores = logits.shape[-1], logits.device
        if told.get("_scores") != scores:
            told["_ids"] = logits.new_tensor(sorted(set(_token_ids(told, logits))), dtype=int)
            told["_scores"] = scores
        return {"token_ids": told["_ids"]}


def wire(processor: Any) -> str:
    """Encode a class with `to_str`, a `{"name": …, "args": {…}}`, or such a text for `custom_logit_processor`.

    Raises ValueError or AttributeError for anything else.
    """
    if isinstance(processor, dict):
        processor = json.dumps(processor)
    text = processor if isinstance(processor, str) else processor.to_str()
    _fields(text)
    return str(text)


def is_code(text: str) -> bool:
    """Whether loading `text` runs code that its sender wrote. Raises ValueError if it is no processor."""
    return "name" not in _fields(text)


def may_be_code(text: str) -> bool:
    """As `is_code`, but true for text that is no processor, since it might be code."""
    try:
        return is_code(text)
    except ValueError:
        return True


def load(text: str) -> Any:
    """A processor, ready to be called: JSON `{"name": …}` of NAMED, or `{"callable": HEX}`, a dill pickle of a class.

    Runs whatever code a pickle holds. Raises ValueError or TypeError if it is none, and whatever that code raises.
    """
    fields = _fields(text)
    return Named(fields["name"], fields.get("args") or {}) if "name" in fields else _unpickle(fields["callable"])


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("name", fields.get("callable")), str):
        raise ValueError('a processor is JSON {"callable": "…"} or {"name": "…", "args": {…}}')
    if "name" in fields and fields["name"] not in NAMED:
        raise ValueError(f"there is no processor {fields['name']!r:.80}; there are {', '.join(NAMED)}")
    if not isinstance(fields.get("args"), dict | None):
        raise ValueError("`args` of a processor are an object")
    return fields


def _unpickle(digits: str) -> CustomLogitProcessor:
    import dill

    _offer_sglang_module()
    processor = dill.loads(bytes.fromhex(digits))
    if not isinstance(processor, type):
        raise TypeError("a processor is a class")
    instance: CustomLogitProcessor = processor()
    if not callable(instance):
        raise TypeError("a processor can be called")
    return instance


def _token_ids(params: dict[str, Any], logits: Any) -> Any:
    """The checked ids in a processor's parameters: an id outside the vocabulary would crash a GPU's context."""
    ids, vocab_size = params.get("token_ids", []), logits.shape[-1]
    if isinstance(ids, type(logits)):  # an index tensor of ids that were checked already
        return ids
    whole = isinstance(ids, list) and set(map(type, ids)) <= {int}
    if not whole or (ids and not 0 <= min(ids) <= max(ids) < vocab_size):
        wrong = next(each for each in ids if not 0 <= each < vocab_size) if whole else reprlib.repr(ids)
        raise WrongParams(f"token_ids must be a list of integers from 0 to {vocab_size - 1}, got {wrong}")
    return ids


def _offer_sglang_module() -> None:
    """Let pickles find SGLang's classes where SGLang is not installed."""
    if "sglang" in sys.modules or find_spec("sglang") is not None:
        return
    names = SGLANG_MODULE.split(".")
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        sys.modules[name] = ModuleType(name)
    for cls in (CustomLogitProcessor, DisallowedTokensLogitsProcessor):
        setattr(sys.modules[SGLANG_MODULE], cls.__name__, cls)
