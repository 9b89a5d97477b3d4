"""Clients' own code that changes logits: loaded once, called once a step for all requests that sent the same code.

It runs in a thread of its own under a time limit, on a copy of the logits, and fails only the requests that brought
it. That is no sandbox: whoever may send code may do what the engine process may. Does not know what the code does.
"""

import json
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from nbgen import logit_processor
from nbgen.engine.sequence import Sequence
from nbgen.errors import InvalidRequest
from nbgen.logit_processor import NAMED, CustomLogitProcessor, WrongParams
from nbgen.sampling_params import SamplingParams

LOAD_SECONDS = 1.0
CALL_SECONDS = 1.0
MAX_LOADED = 64

log = logging.getLogger(__name__)


class LogitProcessors:
    """The processors of one engine, by the text that they were sent as."""

    def __init__(self, *, code: bool = True) -> None:
        """Without `code`, only processors that nbgen itself has are allowed, by name."""
        self._code = code
        self._loaded: OrderedDict[str, CustomLogitProcessor] = OrderedDict()
        self._loading, self._calling = TimedThread(), TimedThread()
        self._lock = threading.Lock()

    def load(self, text: str) -> CustomLogitProcessor:
        """The processor in `text`, ready to be called. Raises InvalidRequest."""
        if (processor := self._loaded.get(text)) is None:
            self._check(text)
            processor = self._load(text)
        with self._lock:
            self._loaded[text] = processor
            self._loaded.move_to_end(text)
            while len(self._loaded) > MAX_LOADED:
                self._loaded.popitem(last=False)
        return processor

    def close(self) -> None:
        """End the threads that this has begun."""
        self._loading.close()
        self._calling.close()

    def apply(self, scores: torch.Tensor, sequences: list[Sequence]) -> None:
        """Let each sequence's processor change its row of `scores` `[rows, vocab]`, in place.

        Where it fails, no token of the row is allowed and the sequence's `fault` says why.
        """
        groups: dict[str, list[int]] = {}
        for row, sequence in enumerate(sequences):
            if sequence.logit_processor is not None:
                groups.setdefault(sequence.logit_processor, []).append(row)
        for text, rows in groups.items():
            self._apply(text, rows, scores, sequences)

    def _apply(self, text: str, rows: list[int], scores: torch.Tensor, sequences: list[Sequence]) -> None:
        try:
            scores[rows] = self._call(text, scores[rows], [_custom_params(sequences[row]) for row in rows])
        except Exception as error:  # whatever a client's code raises is its request's alone
            if len(rows) > 1 and not isinstance(error, TimeoutError):
                for row in rows:
                    self._apply(text, [row], scores, sequences)
                return
            if isinstance(error, WrongParams):
                fault = f"custom_logit_processor: {error}"
            else:
                log.exception("the custom logit processor of %d requests failed", len(rows))
                fault = f"the request's custom logit processor failed: {_reason(error)}"
            for row in rows:
                sequences[row].fault = fault
            scores[rows] = float("-inf")

    def _call(self, text: str, scores: torch.Tensor, params: list[Any]) -> torch.Tensor:
        processor = self.load(text)

        @torch.inference_mode()
        def call() -> torch.Tensor:
            changed = processor(scores, params)
            if not isinstance(changed, torch.Tensor) or changed.shape != scores.shape:
                raise WrongShape(f"it must return a tensor of the shape {tuple(scores.shape)}")
            return changed.to(scores)

        return self._calling.run(call, CALL_SECONDS)

    def _check(self, text: str) -> None:
        try:
            code = logit_processor.is_code(text)
        except ValueError as error:
            words = "it is not JSON" if isinstance(error, json.JSONDecodeError) else error
            raise _refusal(f"cannot be loaded: {words}") from None
        if code and not self._code:
            raise _refusal(
                "holds code, and this server is not configured to enable custom logit processor: its owner can, with "
                f"NbgenApp.enable_custom_logit_processor. Without code there are, by name: {', '.join(NAMED)}"
            )

    def _load(self, text: str) -> CustomLogitProcessor:
        try:
            return self._loading.run(lambda: logit_processor.load(text), LOAD_SECONDS)
        except Exception as error:  # whatever a pickle raises is its sender's alone
            log.exception("a custom logit processor cannot be loaded")
            raise _refusal(f"cannot be loaded: {_reason(error)}") from None


def _refusal(words: str) -> InvalidRequest:
    return InvalidRequest(f"custom_logit_processor {words}", field="custom_logit_processor")


class WrongShape(Exception):
    """What a processor returned does not have the shape of the scores that it was given."""


class RequestView:
    """What a processor sees of its request as `__req__`, under SGLang's names."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

    @property
    def rid(self) -> str:
        return self._sequence.rid

    @property
    def origin_input_ids(self) -> list[int]:
        return self._sequence.prompt_ids[: self._sequence.answer_start]

    @property
    def output_ids(self) -> list[int]:
        return self._sequence.output_ids

    @property
    def sampling_params(self) -> SamplingParams:
        return self._sequence.params


class TimedThread:
    """Runs one function after the other in a thread; one that takes too long is left behind with its thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Any] | None = None
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any], seconds: float) -> Any:
        """What `function` returns or raises, called in its turn; TimeoutError after `seconds`."""
        done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        with self._lock:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=_work, args=(self._jobs,), name="logit-processors", daemon=True).start()
            self._jobs.put((function, done))
            try:
                value, error = done.get(timeout=seconds)
            except queue.Empty:
                self._leave()
                raise TimeoutError from None
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """End the thread, if there is one."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        """Let the thread end after its present call."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None


def _work(jobs: queue.SimpleQueue[Any]) -> None:
    while (job := jobs.get()) is not None:
        function, done = job
        try:
            done.put((function(), None))
        except BaseException as error:  # SystemExit, too, ends nothing but this call
            done.put((None, error if isinstance(error, Exception) else RuntimeError(type(error).__name__)))


def _custom_params(sequence: Sequence) -> Any:
    if isinstance(sequence.custom_params, dict):
        sequence.custom_params["__req__"] = RequestView(sequence)
    return sequence.custom_params


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return str(error) if isinstance(error, WrongShape) else f"it raised {type(error).__name__}"
