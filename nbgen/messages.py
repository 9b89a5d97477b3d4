"""The messages between the server and the process that runs a language model (`frames` encodes them).

Nothing here is executable: decoding yields these structs or fails. One request is one prompt; a batch is several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from nbgen.errors import NbgenError, from_status, writable
from nbgen.media_types import MediaType
from nbgen.sampling_params import SamplingParams
from nbgen.word_lists import WordLists


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A message: immutable, tagged with its class name."""


class ContentPart(Struct, frozen=True, tag=False):
    """A piece of a turn: text, or a placeholder for the next of the request's media, in their order."""

    type: Literal["text", "image", "audio", "video"]
    text: str = ""


class ToolCall(Struct, frozen=True, tag=False):
    """A function that the model wants called. `arguments` is JSON as the model wrote it, normally an object."""

    id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True, tag=False):
    """One turn of a chat. The model's may have `reasoning` and `tool_calls`; a tool's has the id of its call."""

    role: Literal["system", "user", "assistant", "tool", "query", "document"]
    content: str | list[ContentPart] = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """Its text, without media."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


# --- to the engine


class LogprobOptions(Struct, frozen=True, tag=False):
    """Which log-probabilities a request wants, besides those of its output tokens.

    `start` is the position of the first prompt token that gets one (None: no prompt token does). Each position also
    gets its `top` most likely tokens, and those of `token_ids`; `text` adds the text of each token.
    """

    start: int | None = None
    top: int = 0
    token_ids: list[int] = []
    text: bool = False


class Tensor(Struct, frozen=True, tag=False):
    """A tensor of a KServe v2 datatype, row-major and little-endian. BYTES elements have a 4-byte length in front."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview = memoryview(b"")


class Media(Struct, frozen=True, tag=False):
    """An image, a sound or a video of a prompt.

    "raw" is an encoded file in `data` (PNG, WAV, MP4); "frames" are a video's frames: image files as BYTES elements.
    "processor_output" is the output of the model's own processor, "precomputed_embedding" the embeddings of its place
    in the prompt (`feature`, `[tokens, width]`): both in `tensors`, named as the model's forward names them. `options`
    are passed to the processor.
    """

    type: MediaType
    format: Literal["raw", "frames", "processor_output", "precomputed_embedding"] = "raw"
    data: memoryview = memoryview(b"")
    tensors: list[Tensor] = []
    options: dict[str, bool | int | float | str] = {}


class TensorOptions(Struct, frozen=True, tag=False):
    """Which tensors of the model's internals a request wants, all float32 except the experts.

    `logits` `[prompt, vocab]` and `hidden_states` `[prompt, hidden]` (after the last norm) are of the prompt's tokens.
    `generation_logits` `[output, vocab]` are those that the output's tokens were sampled from, before any sampling
    option changed them; `logprobs` `[output]` is their natural log-softmax at the sampled tokens.
    `generation_hidden_states` `[output - 1, hidden]` are of the output's tokens after the first; `last_hidden_state`
    `[hidden]` is the last of these; each one replaces the one before. `routed_experts` is the position from which on
    experts are wanted: int32 `[tokens, layers, experts per token]`. `pooled` is the prompt's "mean" or "last" state.
    """

    logits: bool = False
    hidden_states: bool = False
    generation_logits: bool = False
    logprobs: bool = False
    generation_hidden_states: bool = False
    last_hidden_state: bool = False
    routed_experts: int | None = None
    pooled: Literal["", "mean", "last"] = ""

    @property
    def of_states(self) -> bool:
        """Whether it needs hidden states."""
        return bool(self.hidden_states or self.generation_hidden_states or self.last_hidden_state or self.pooled)

    @property
    def of_prompt(self) -> bool:
        """Whether it needs every token of the prompt to be computed (no prefix cache)."""
        return self.logits or self.hidden_states or self.pooled == "mean"


class ToolOptions(Struct, frozen=True, tag=False):
    """The functions that the model may call, as chat templates take them: OpenAI's JSON.

    If `required` it must call one; if `function` is named, that one only; if `parallel` it may call several. If it must
    call, is `guided`, or may call one alone, arguments are held to their schemas as far as can be, `strict` ones fully.
    """

    tools: list[dict[str, Any]]
    required: bool = False
    function: str = ""
    strict: list[str] = []
    guided: bool = False
    parallel: bool = True


class GenerateRequest(Struct, frozen=True):
    """One prompt and how to continue it. Exactly one of `text`, `input_ids`, `input_embeds`, `messages` is set.

    `input_embeds` is FP32 `[tokens, width]`, in place of the model's own embeddings of ids. `messages` goes through
    the model's chat template; `continue_final` continues the last message instead of opening an answer;
    `template_options` are the template's own variables, `tools` the functions that it tells the model of. With `parts`,
    an answer's tool calls come separately from its text, and with `thoughts` its reasoning, too; with `thoughts` alone
    the answer is one text, and only what follows its reasoning is held to a grammar. `media` replace, in order, the
    prompt's placeholders or the messages' media parts; `media_optional` drops media that the model does not take,
    instead of refusing them. The answer begins with the tokens of `prefix_ids`: they are not sampled, but their text is
    part of it. Only requests of the same `namespace` share cached prefixes. `adapter` is the name of a LoRA
    adapter; "" is the base model. A higher `priority` is served first. Requests of one `group` (a call with many
    prompts) count as waiting only while none of them runs; all `batch` of them share the size limit of one answer.
    `fit` cuts max_new_tokens to what the context holds instead of refusing it, `truncate` also cuts the prompt's end;
    `drop_oldest` drops the oldest turns of a chat that is too long for the context; `echo` returns the prompt's text,
    `prompt_ids` its ids. A `streamed` request is read while it runs: long prompts of others should delay it little.
    """

    rid: str
    text: str | None = None
    input_ids: list[int] | None = None
    input_embeds: Tensor | None = None
    messages: list[ChatMessage] | None = None
    media: list[Media] = []
    media_optional: bool = False
    continue_final: bool = False
    template_options: dict[str, bool | int | float | str] = {}
    tools: ToolOptions | None = None
    parts: bool = False
    thoughts: bool = False
    prefix_ids: list[int] = []
    namespace: tuple[str, ...] = ()
    adapter: str = ""
    priority: int = 0
    group: str = ""
    batch: int = 1
    #: A client's own logit processor, as `nbgen.logit_processor` encodes it.
    logit_processor: str | None = None
    params: SamplingParams = SamplingParams()
    words: WordLists | None = None
    logprobs: LogprobOptions | None = None
    tensors: TensorOptions | None = None
    fit: bool = False
    truncate: bool = False
    drop_oldest: bool = False
    echo: bool = False
    prompt_ids: bool = False
    streamed: bool = False


class EmbedRequest(Struct, frozen=True):
    """A text, token ids, or a query with a document, to embed. Answered by an EmbedOutput."""

    rid: str
    text: str | None = None
    input_ids: list[int] | None = None
    messages: list[ChatMessage] | None = None


class AbortRequest(Struct, frozen=True):
    """End the request with exactly this id."""

    rid: str


class TensorPiece(Struct, frozen=True):
    """Consecutive bytes of a tensor of the request `rid`, or of its answer (`pieces`), row-major and little-endian."""

    rid: str
    name: str
    data: memoryview


# --- from the engine


class FinishReason(Struct, frozen=True, tag=False):
    """Why a sequence ended.

    `matched` is the stop string or token id of "stop". `length` is the token budget of "length"; `incomplete` then
    says that a constrained answer was cut short. The other fields explain "abort" and "error", as NbgenError's do.
    """

    type: Literal["stop", "length", "abort", "error"]
    matched: int | str | None = None
    length: int | None = None
    incomplete: bool = False
    message: str | None = None
    status: int | None = None
    field: str | None = None
    code: str | None = None

    @classmethod
    def failure(cls, message: str, status: int, field: str | None = None, code: str | None = None) -> FinishReason:
        """An "error" reason. The message may quote a foreign file or a client, so it is made encodable."""
        return cls(type="error", message=writable(message), status=status, field=field, code=code)

    def as_error(self, default: str) -> NbgenError | None:
        """The error to raise for "error", with the message `default` if it has none; None for other types."""
        failed = self.type == "error"
        return from_status(self.status or 500, self.message or default, self.field, self.code) if failed else None


#: A token's natural log-probability (None where no token precedes it, -inf where it was impossible), id and text.
Logprob = tuple[float | None, int, str | None]


class TokenLogprobs(Struct, frozen=True, tag=False, array_like=True):
    """Log-probabilities at one position: of the token there, of the `top` likeliest, and of `chosen` token ids.

    `raw` has, by id, the bytes of those tokens that are only part of a character, if the vocabulary tells them.
    `offset` counts the whole characters of the answer's text before the token; it is 0 for prompt tokens.
    """

    token: Logprob
    top: list[Logprob] | None = None
    chosen: list[Logprob] | None = None
    raw: dict[int, bytes] = {}
    offset: int = 0


class AnswerPart(Struct, frozen=True, tag=False):
    """A piece of an answer: text, reasoning, new text of a call's arguments, or the whole call, which may be `cut`."""

    content: str = ""
    reasoning: str = ""
    tool_call_delta: ToolCall | None = None
    tool_call: ToolCall | None = None
    cut: bool = False


class GenerateOutput(Struct, frozen=True, gc=False):
    """What one sequence gained in a step. `text` and `token_ids` are the new part, counts are totals.

    Text that could still change (half a character, the beginning of a stop string) comes later than its tokens.
    `index` tells the `n` sequences of a request apart. The last output of each has `finish_reason`; the first with
    tokens has `ran_seconds` so far, and the prompt's text and ids if asked for. `prompt_logprobs` come in pieces, up to
    that output; `logprobs` belong to `token_ids`; `tensors` are more rows, named as in `TensorOptions`; `parts` make up
    the text, if asked for and if it is not text alone. Many are kept: empty fields are shared, and gc skips them.
    """

    rid: str
    index: int = 0
    text: str = ""
    parts: Sequence[AnswerPart] | None = None
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ran_seconds: float = 0.0
    #: Tokens of the prompt that stand for media, by their type.
    media_tokens: dict[str, int] = {}
    finish_reason: FinishReason | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    prompt_text: str | None = None
    prompt_ids: Sequence[int] = ()
    tensors: Sequence[TensorPiece] = ()

    @property
    def content(self) -> str:
        """The new text without reasoning and calls."""
        return self.text if self.parts is None else "".join(part.content for part in self.parts)


class EmbedOutput(Struct, frozen=True):
    """A text's embedding: float32, little-endian. A refusal comes as a GenerateOutput that ends in an error instead."""

    rid: str
    prompt_tokens: int
    data: memoryview


class StepOutputs(Struct, frozen=True):
    """The outputs of all sequences in one step."""

    outputs: list[GenerateOutput]
