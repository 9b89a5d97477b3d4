"""Accumulates the outputs of one sequence of a request. Knows no wire format."""

from __future__ import annotations

import copy

from nbgen.messages import AnswerPart, FinishReason, GenerateOutput, TokenLogprobs, ToolCall

#: The tensor that is a single row: each new piece replaces the one before.
LATEST = "last_hidden_state"
#: SGLang's default name of the weights' version, which never changes here.
WEIGHT_VERSION = "default"
#: Approximate bytes of JSON for a token id, for a log-probability, and for each byte of a tensor.
ID_BYTES, LOGPROB_BYTES, TENSOR_BYTES = 6, 30, 5


class Sample:
    """One of the `n` continuations of a prompt, growing output by output."""

    def __init__(self) -> None:
        self.text = ""
        #: The pieces of the text; None if it is text and nothing else.
        self.parts: list[AnswerPart] | None = None
        self.output_ids: list[int] = []
        self.prompt_tokens = 0
        self.completion_tokens = 0
        #: Completion tokens of reasoning, where it is told apart from the text.
        self.reasoning_tokens = 0
        #: Tokens whose part has not come yet: of reasoning, or of a call that is not yet recognized as one.
        self._untold = 0
        self.cached_tokens = 0
        self.media_tokens: dict[str, int] = {}
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.prompt_text: str | None = None
        self.prompt_ids: list[int] = []
        self.tensors: dict[str, list[memoryview]] = {}
        self.finish_reason: FinishReason | None = None

    def add(self, output: GenerateOutput) -> None:
        """Add the output of a step."""
        self.text += output.text
        self._untold += len(output.token_ids)
        if output.parts is not None:
            self._take_parts(output)
        self.output_ids += output.token_ids
        self.prompt_tokens = output.prompt_tokens or self.prompt_tokens
        self.completion_tokens = output.completion_tokens or self.completion_tokens
        self.cached_tokens = output.cached_tokens or self.cached_tokens
        self.media_tokens = output.media_tokens or self.media_tokens
        self.logprobs += output.logprobs
        if output.prompt_logprobs:  # in a list of their own, which another thread may be reading
            self.prompt_logprobs = [*self.prompt_logprobs, *output.prompt_logprobs]
        self.prompt_text = output.prompt_text if output.prompt_text is not None else self.prompt_text
        self.prompt_ids = list(output.prompt_ids) or self.prompt_ids
        for piece in output.tensors:
            kept = [] if piece.name == LATEST else self.tensors.get(piece.name, [])
            self.tensors[piece.name] = kept
            kept.append(piece.data)
        self.finish_reason = output.finish_reason or self.finish_reason

    def snapshot(self) -> Sample:
        """A copy of the present state, which another thread can read while this sample grows."""
        same = copy.copy(self)
        same.output_ids, same.logprobs = [*self.output_ids], [*self.logprobs]
        same.parts = None if self.parts is None else [*self.parts]
        same.tensors = {name: [*pieces] for name, pieces in self.tensors.items()}
        return same

    def _take_parts(self, output: GenerateOutput) -> None:
        self.parts = self.parts or []
        self.parts += output.parts or ()
        if output.parts or output.finish_reason:
            if self.parts and self.parts[-1].reasoning:
                self.reasoning_tokens += self._untold
            self._untold = 0

    @property
    def content(self) -> str:
        """The text without reasoning and calls."""
        return self.text if self.parts is None else "".join(part.content for part in self.parts)

    @property
    def reasoning(self) -> str:
        """The reasoning, if it is told apart from the text."""
        return "".join(part.reasoning for part in self.parts or ())

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The complete tool calls."""
        return [part.tool_call for part in self.parts or () if part.tool_call and not part.cut]

    @property
    def size(self) -> int:
        """Roughly the bytes of the sample as JSON."""
        rows = len(self.prompt_logprobs) + len(self.logprobs)
        last = [entry for entries in (self.prompt_logprobs, self.logprobs) for entry in entries[-1:]]
        each = max((1 + len(entry.top or ()) + len(entry.chosen or ()) for entry in last), default=0)
        ids = len(self.output_ids) + len(self.prompt_ids)
        tensors = sum(piece.nbytes for pieces in self.tensors.values() for piece in pieces)
        return len(self.text) + ids * ID_BYTES + rows * each * LOGPROB_BYTES + tensors * TENSOR_BYTES


def usage(samples: list[Sample]) -> dict[str, int]:
    """Token counts of a request: the prompt counts once, and every sample counts."""
    return {
        "prompt_tokens": samples[0].prompt_tokens,
        "completion_tokens": sum(sample.completion_tokens for sample in samples),
        "cached_tokens": samples[0].cached_tokens,
    }
