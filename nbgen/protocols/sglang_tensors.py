"""SGLang's access to a model's internals: `input_embeds`, `return_hidden_states`, `return_routed_experts`.

Follows SGLang 0.5.23 in names, shapes and encodings. Knows nothing of the rest of a body or an answer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor, TensorOptions
from nbgen.protocols import sglang_logprobs
from nbgen.protocols.sample import LATEST, Sample
from nbgen.sampling_params import WrongType

STATES = ("hidden_states", "generation_hidden_states")


def parse_embeds(value: Any) -> tuple[bool, list[Tensor]]:
    """Whether `input_embeds` is a single prompt `[tokens, width]` instead of a list of prompts, and the prompts.

    Raises InvalidRequest, and its subclass WrongType if there is anything but numbers.
    """
    words = "must be a list of rows of numbers, or a list of such lists"
    if not isinstance(value, list) or not all(isinstance(each, list) for each in value):
        raise WrongType(f"`input_embeds` {words}", field="input_embeds")
    if not value or not value[0]:
        raise _malformed(words)
    single = not isinstance(value[0][0], list)
    return single, [_tensor(rows) for rows in ([value] if single else value)]


def parse_options(fields: Mapping[str, Any], prompts: int, *, single: bool) -> list[TensorOptions | None]:
    """The tensors of the model that each prompt asks for."""
    asked = fields.get("return_hidden_states")
    states = sglang_logprobs.per_prompt("return_hidden_states", asked, prompts, default=False, listed=not single)
    start = None
    if fields.get("return_routed_experts"):
        start = fields.get("routed_experts_start_len") or 0
        if start < 0:
            raise InvalidRequest(f"routed_experts_start_len must be at least 0, got {start}")
    options = [
        TensorOptions(hidden_states=wanted, generation_hidden_states=wanted, routed_experts=start) for wanted in states
    ]
    return [option if option != TensorOptions() else None for option in options]


def last_state(sample: Sample) -> list[float]:
    """The hidden state of the last output token, unless that is the first one: `[hidden]`."""
    return list(map(float, _floats(sample.tensors.get(LATEST, []))))


def routed_experts(sample: Sample) -> str:
    """Base64 of int32 `[tokens, layers, experts per token]`."""
    return base64.b64encode(b"".join(sample.tensors.get("routed_experts", ()))).decode()


class InnerNumbers:
    """The keys of `meta_info` for one sequence. Rows are encoded once, however often a stream repeats them."""

    def __init__(self, options: TensorOptions | None) -> None:
        self._options = options or TensorOptions()
        self._steps: list[msgspec.Raw] = []
        self._prompt = msgspec.Raw(b"[]")
        self._read = [0, 0]

    def meta_info(self, sample: Sample) -> dict[str, Any]:
        """`hidden_states` holds the prompt's `[tokens, hidden]`, then `[hidden]` for each output token after the first.

        `routed_experts` comes with the last event.
        """
        found: dict[str, Any] = {}
        reason = sample.finish_reason
        whole = bool(sample.output_ids) or (reason is not None and reason.type == "length")
        if self._options.of_states and whole:
            found["hidden_states"] = self._states(sample)
        if self._options.routed_experts is not None and reason is not None:
            found["routed_experts"] = routed_experts(sample)
        return found

    def _states(self, sample: Sample) -> list[msgspec.Raw]:
        prompt, steps = (sample.tensors.get(name, []) for name in STATES)
        width = _width(prompt, sample.prompt_tokens)
        if len(prompt) > self._read[0]:
            self._prompt = _encode(_rows(prompt, width))
            self._read[0] = len(prompt)
        for piece in steps[self._read[1] :]:
            self._steps += _rows([piece], width)
        self._read[1] = len(steps)
        return [self._prompt, *self._steps][: max(1, len(sample.output_ids))]


def _width(prompt: list[memoryview], tokens: int) -> int:
    return sum(piece.nbytes for piece in prompt) // (4 * max(1, tokens)) or 1


def _floats(pieces: list[memoryview]) -> np.ndarray:
    return np.frombuffer(b"".join(pieces), np.float32)


def _rows(pieces: list[memoryview], width: int) -> list[msgspec.Raw]:
    """Encode rows one by one, so that other threads can run in between."""
    return [_encode(row.tolist()) for row in _floats(pieces).reshape(-1, width)]


def _encode(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _tensor(rows: Any) -> Tensor:
    try:
        numbers = np.array(rows)
    except (ValueError, OverflowError):
        raise _malformed("has rows of different lengths") from None
    if numbers.dtype.kind not in "iuf":
        raise WrongType("`input_embeds` must hold rows of numbers alone", field="input_embeds")
    if numbers.ndim != 2 or not numbers.size:
        raise _malformed("must hold rows of numbers: [tokens, width] for each prompt, neither of them 0")
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(numbers, dtype="<f4")
    if not np.isfinite(floats).all():
        raise _malformed("holds a number beyond float32")
    return Tensor(name="input_embeds", datatype="FP32", shape=floats.shape, data=memoryview(floats.tobytes()))


def _malformed(words: str) -> InvalidRequest:
    return InvalidRequest(f"`input_embeds` {words}", field="input_embeds")
