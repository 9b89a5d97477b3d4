"""A client's own code for the model's scores, and how it travels: SGLang's `CustomLogitProcessor`, wire and class.

The one module that turns bytes into code. Nothing here runs unless the server's owner has allowed it
(`enable_custom_logit_processor`). Knows neither engine nor requests.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: Where SGLang 0.5.23 has these classes: pickles of users' classes name this module.
SGLANG_MODULE = "sglang.srt.sampling.custom_logit_processor"


class CustomLogitProcessor(ABC):
    """Changes scores before a token is chosen. Subclasses take no arguments and keep no state between steps."""

    @abstractmethod
    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any] | None] | None = None) -> Any:
        """New scores for `logits`, a float tensor `[requests, vocab]`, in place or not.

        `custom_param_list` has each request's `custom_params`; in an object, `__req__` describes the request
        (`origin_input_ids`, `output_ids`, `sampling_params`, `rid`). Changes to an object last for the request.
        """

    @classmethod
    def to_str(cls) -> str:
        """The class as `custom_logit_processor` takes it. Needs dill: `pip install 'nbgen[processors]'`."""
        import dill

        return json.dumps({"callable": dill.dumps(cls, recurse=True).hex()})

    @classmethod
    def from_str(cls, text: str) -> CustomLogitProcessor:
        """An instance of the class in `text`. Runs whatever code it holds."""
        return load(text)


class DisallowedTokensLogitsProcessor(CustomLogitProcessor):
    """Forbids the tokens of `custom_params["token_ids"]`, request by request."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any] | None] | None = None) -> Any:
        for row, params in enumerate(custom_param_list or ()):
            logits[row, (params or {}).get("token_ids", [])] = float("-inf")
        return logits


def load(text: str) -> CustomLogitProcessor:
    """An instance of the class in `text`, JSON `{"callable": HEX}`, HEX being a dill pickle of the class.

    Runs whatever code it holds. Raises ValueError or TypeError if it is none, and whatever that code raises.
    """
    import dill

    fields = json.loads(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("callable"), str):
        raise ValueError('a processor is JSON {"callable": "…"}')
    _offer_sglang_module()
    processor = dill.loads(bytes.fromhex(fields["callable"]))
    if not isinstance(processor, type):
        raise TypeError("a processor is a class")
    instance = processor()
    if not callable(instance):
        raise TypeError("a processor can be called")
    return instance


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
