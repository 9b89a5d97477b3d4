"""The engine process of an embedding model: texts in, vectors out; texts that wait together make one batch.

One thread computes; another receives and tokenizes. Requests for generated text are refused. Does not know how vectors
are computed.
"""

import logging
import threading
import time
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from nbgen.commands import (
    AdapterState,
    ContinueGeneration,
    LoadAdapter,
    MemoryState,
    PauseGeneration,
    ReleaseMemory,
    ResumeMemory,
    UnloadAdapter,
)
from nbgen.engine import memory
from nbgen.engine.channel import Channel
from nbgen.engine.context_length import too_many_tokens
from nbgen.engine.deadlines import waited
from nbgen.engine.embedding_model import EmbeddingModel
from nbgen.engine.endings import ABORTED, ended_by, ending
from nbgen.engine.loop import STATUS_SECONDS
from nbgen.engine.pulse import ADMISSION_SECONDS, Pulse
from nbgen.engine.token_ids import check_ids, translated
from nbgen.engine_state import EngineStatus
from nbgen.errors import InternalError, InvalidRequest, NbgenError, Unavailable
from nbgen.frames import Request, ToEngine
from nbgen.messages import (
    AbortRequest,
    EmbedOutput,
    EmbedRequest,
    FinishReason,
    GenerateRequest,
    TensorOptions,
)
from nbgen.tokenizer_messages import DetokenizeRequest, TokenizeRequest

#: Tokens of one batch, padding included.
BATCH_TOKENS = 8192

log = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """A text to embed."""

    rid: str
    ids: list[int]
    #: For a query with a document: which of the two each token belongs to.
    types: list[int]
    #: Monotonic seconds; while the loop is paused no time counts.
    since: float


class EmbeddingLoop:
    """Serves one embedding model to the server at the other end of `channel`.

    At most `max_waiting` texts wait, and none longer than `queue_seconds`; None: no limit.
    """

    def __init__(
        self,
        channel: Channel,
        model: EmbeddingModel,
        max_waiting: int,
        run_seconds: float | None,
        queue_seconds: float | None = None,
    ) -> None:
        self._channel = channel
        self._model = model
        self._max_waiting = max_waiting
        self._queue_seconds = float("inf") if queue_seconds is None else queue_seconds
        #: Waiting texts by request id, in order of arrival.
        self._waiting: dict[str, Prompt] = {}
        self._paused = self._closed = False
        #: Guards these three: one thread adds and pauses, another waits and takes.
        self._changed = threading.Condition()
        self._steps = 0
        self._pulse = Pulse(channel.send, model.device.type, run_seconds)
        self._admit_text = self._pulse.bounded(self._admit, ADMISSION_SECONDS)
        self._status_due = 0.0

    def run(self, messages: Iterable[ToEngine]) -> None:
        """Serve until the server closes its end."""
        threading.Thread(target=self._receive, args=(messages,), name="admission", daemon=True).start()
        with self._pulse:
            while not self._closed:
                self._send_status()
                if batch := self._next_batch():
                    self._embed(batch)

    def _receive(self, messages: Iterable[ToEngine]) -> None:
        try:
            for message in messages:
                self._hear(message)
        finally:  # also where a message cannot be read: an engine that hears nothing must not go on
            with self._changed:
                self._closed = True
                self._changed.notify()

    def _hear(self, message: ToEngine) -> None:
        if isinstance(message, Request):
            self._admit_text(message)
            return
        match message:
            case AbortRequest():
                with self._changed:
                    self._waiting.pop(message.rid, None)
            case PauseGeneration():
                self._pause(ends_requests=message.mode == "abort")
            case ContinueGeneration():
                self._go_on()
            case ReleaseMemory() | ResumeMemory():
                words = "an embedding model has no memory to release but the model itself: unload it"
                self._channel.send(MemoryState(rid=message.rid, error=words))
            case LoadAdapter() | UnloadAdapter():
                words = f"{self._model.model.name} is an embedding model, which takes no adapters"
                self._channel.send(AdapterState(rid=message.rid, name=message.name, error=words))

    def _pause(self, *, ends_requests: bool) -> None:
        """Compute no batch until told to continue; `ends_requests` aborts those that wait."""
        with self._changed:
            self._paused = True
            ended, self._waiting = (self._waiting, {}) if ends_requests else ({}, self._waiting)
        for rid in ended:
            self._end(rid, ABORTED)

    def _go_on(self) -> None:
        with self._changed:
            if self._paused:
                now = time.monotonic()
                self._waiting = {rid: prompt._replace(since=now) for rid, prompt in self._waiting.items()}
            self._paused = False
            self._changed.notify()

    def _admit(self, request: Request) -> None:
        try:
            match request:
                case EmbedRequest():
                    prompt = Prompt(request.rid, *self._tokens(request), time.monotonic())
                    with self._changed:
                        self._waiting[prompt.rid] = prompt
                        self._changed.notify()
                case TokenizeRequest(messages=None) | DetokenizeRequest():
                    model = self._model
                    self._channel.send(translated(request, model.tokenizer, model.model.vocab_size))
                case GenerateRequest(tensors=TensorOptions(pooled="mean" | "last")):
                    words = f"{self._model.model.name} is an embedding model, which pools as its files say"
                    raise InvalidRequest(f"{words}: leave pooling out", field="pooling")
                case _:
                    raise InvalidRequest(
                        f"{self._model.model.name} is an embedding model, which writes no text: use /v1/embeddings or "
                        "/encode, or load a generation model"
                    )
        except NbgenError as error:
            self._refuse(request.rid, error)
        except Exception:  # whatever a tokenizer raises fails this request alone
            log.exception("request %s could not be tokenized", request.rid)
            self._refuse(request.rid, InvalidRequest("the text could not be tokenized"))

    def _tokens(self, request: EmbedRequest) -> tuple[list[int], list[int]]:
        if (waiting := len(self._waiting)) >= self._max_waiting:
            raise Unavailable(f"the queue is full ({waiting} waiting)")
        model = self._model
        context = model.model.context_length
        text = request.text.lower() if request.text is not None and model.lowers else request.text
        types: list[int] = []
        if request.messages is not None:
            if not model.classifies:
                raise InvalidRequest(f"{model.model.name} is an embedding model, which ranks no documents")
            ids, types = model.tokenizer.encode_pair(request.messages)
        else:
            ids = model.tokenizer.encode(text, field="input") if text is not None else request.input_ids or []
        if not ids:
            raise InvalidRequest("the text has no tokens", field="input")
        given = request.input_ids is not None
        check_ids(ids, "input_ids" if given else "input", model.model.vocab_size, tokenized=not given)
        if len(ids) > context:
            raise too_many_tokens(len(ids), context, "input", "text")
        return ids, types

    def _next_batch(self) -> list[Prompt]:
        """The first waiting texts that fit into one batch; empty after STATUS_SECONDS without any, or while paused."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._waiting and not self._paused), STATUS_SECONDS)
            if self._closed or self._paused:
                return []
            late = self._take(self._late())
            batch = self._take(_fitting(self._waiting.values()))
        for prompt in late:
            self._end(prompt.rid, waited(self._queue_seconds))
        return batch

    def _late(self) -> list[Prompt]:
        """Texts that have waited too long: the first of those that wait."""
        now = time.monotonic()
        return list(takewhile(lambda prompt: now - prompt.since > self._queue_seconds, self._waiting.values()))

    def _take(self, prompts: list[Prompt]) -> list[Prompt]:
        """These, which no longer wait."""
        for prompt in prompts:
            del self._waiting[prompt.rid]
        return prompts

    def _embed(self, wanted: list[Prompt]) -> None:
        try:
            vectors = self._model.encode([prompt.ids for prompt in wanted], [prompt.types for prompt in wanted])
        except Exception:  # a model may raise anything, and memory may run out
            log.exception("embedding %d texts", len(wanted))
            vectors = None
        if vectors is None:  # only now: the exception kept the batch's tensors alive
            self._embed_alone(wanted)
            return
        self._steps += 1
        for prompt, vector in zip(wanted, vectors, strict=True):
            data = memoryview(vector.contiguous().numpy()).cast("B")
            self._channel.send(EmbedOutput(rid=prompt.rid, prompt_tokens=len(prompt.ids), data=data))

    def _embed_alone(self, failed: list[Prompt]) -> None:
        """Compute each text of a failed batch alone: if only one is at fault, only that one is refused."""
        memory.give_back(self._model.device)
        if len(failed) > 1:
            for prompt in failed:
                self._embed([prompt])
            return
        self._refuse(failed[0].rid, InternalError("the embedding could not be computed; the server's log says why"))

    def _refuse(self, rid: str, error: NbgenError) -> None:
        self._end(rid, ended_by(error))

    def _end(self, rid: str, reason: FinishReason) -> None:
        self._channel.send(ending(rid, reason))

    def _send_status(self) -> None:
        now = time.monotonic()
        if now < self._status_due:
            return
        self._status_due = now + STATUS_SECONDS
        held = memory.report(self._model.device)
        with self._changed:
            waiting, tokens = len(self._waiting), sum(len(prompt.ids) for prompt in self._waiting.values())
        self._pulse.say(
            EngineStatus(waiting=waiting, waiting_tokens=tokens, steps=self._steps, paused=self._paused, **held)
        )


def _fitting(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The first prompts that fit into one batch."""
    batch: list[Prompt] = []
    longest = 0
    for prompt in prompts:
        longest = max(longest, len(prompt.ids))
        if batch and longest * (len(batch) + 1) > BATCH_TOKENS:
            break
        batch.append(prompt)
    return batch
