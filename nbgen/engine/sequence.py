"""A prompt and its growing answer: the tokens, their blocks, how many are computed. Plain Python, no tensors."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.drafts import Drafts
from nbgen.engine.grammar import GrammarError, Matcher
from nbgen.engine.prefix_cache import COMMON, Namespace, Node
from nbgen.engine.token_counts import TokenCounts
from nbgen.errors import InvalidRequest
from nbgen.messages import FinishReason, GenerateOutput, LogprobOptions, Tensor, TensorOptions, TokenLogprobs
from nbgen.sampling_params import SamplingParams

#: The most prompt tokens of one step whose scores are returned: 64 rows of 150,000 scores are 38 MB in float32.
LOGPROB_CHUNK = 64

log = logging.getLogger(__name__)


class SequenceStatus(Enum):
    """Where a sequence is in its life."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False, repr=False)
class Sequence:
    """The state of one of a request's `n` samples.

    `token_ids` is the prompt and then the output; the first `num_computed` of them have keys and values in the
    blocks of `block_table`, which begins with the cached blocks of `nodes`. `seed` and a token's position determine
    every random choice. The answer's text begins with `prefix_text`, which is output with the first token. Sequences of
    one `namespace` may share cached blocks. The scheduler sets `rank` and serves the lowest first. `arrived` and
    `started` are monotonic seconds.
    """

    rid: str
    index: int
    prompt_ids: list[int]
    params: SamplingParams
    budget: int
    seed: int
    detokenizer: Detokenizer
    stop_strings: StopStrings
    stop_token_ids: frozenset[int] = frozenset()
    matcher: Matcher | None = None
    #: Special tokens that its text leaves out. No grammar may take them: the matcher would read them as text.
    unsaid: frozenset[int] = frozenset()
    #: How the tokens that its text leaves out are spelled: a stop string may be found there.
    left_out: Mapping[int, str] = field(default_factory=dict)
    logit_processor: str | None = None
    custom_params: Any = None
    #: Why no token can follow, where the cause is a failed logit processor.
    fault: str | None = None
    namespace: Namespace = COMMON
    #: The LoRA adapter (`adapter_folder.Adapter`) that it runs with, if any.
    adapter: Any = None
    prefix_text: str = ""
    #: How many of the prompt's last tokens begin the answer: the client gave them, and they count as sampled.
    num_given: int = 0
    #: Splits its answer into parts (`answer_parser.AnswerParser`), if the answer is more than text.
    parser: Any = None
    logprobs: LogprobOptions | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    tensors: TensorOptions | None = None
    #: Number of prompt tokens whose tensors have been output.
    num_described: int = 0
    #: The sum of these tokens' hidden states, float64 `[hidden]`, where their mean is asked for.
    state_sum: Any = None
    #: Number of tokens whose experts have been output, counting those before the first that is asked for.
    num_routed: int = 0
    #: Token sequences that must not occur in the answer.
    bad_words: tuple[tuple[int, ...], ...] = ()
    #: Embeddings to use in place of the prompt's own, FP32 `[tokens, width]`. Such a prompt shares no blocks.
    embeds: Tensor | None = None
    #: The prompt's media (`media_prompt.MediaPrompt`), if it has any.
    media: Any = None
    prompt_text: str | None = None
    #: Whether the client reads its tokens as they come.
    streamed: bool = False
    #: Whether the first output has the prompt's ids.
    shows_prompt_ids: bool = False
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    #: Whether its keys and values may not be finite, so that nobody else may use them.
    spoiled: bool = False
    #: The slot of its recurrent state while it runs, if the model has any.
    state_slot: int | None = None
    #: Token counts: when so many tokens are computed, a snapshot of that state is kept for other sequences.
    snapshots_at: list[int] = field(default_factory=list)
    #: The row of its next token among the newest sampled ones, while only the device knows which token that is.
    awaited: int | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    priority: int = 0
    group: str = ""
    rank: tuple[int, int] = (0, 0)
    arrived: float = 0.0
    started: float | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.prefix_text = self.prefix_text and self.stop_strings.begin(self.prefix_text)
        self._counts = TokenCounts()
        #: Guesses its next tokens.
        self.drafts = Drafts()
        #: Those of its last tokens that are guesses. Only a `Guess` has any.
        self.guessed: list[int] = []
        #: Whether its first output has been made.
        self._told = False

    def __len__(self) -> int:
        """How many tokens it has, an awaited one included."""
        return len(self.token_ids) + (self.awaited is not None)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        """The answer's tokens, including those that the client gave."""
        return self.token_ids[self.answer_start :]

    @property
    def output_counts(self) -> TokenCounts:
        """How often each token occurs in the answer. Each read counts the tokens that are new since the last one."""
        self._counts.add(self.token_ids[self.answer_start + self._counts.total :])
        return self._counts

    def last_output(self, count: int) -> list[int]:
        """The last `count` tokens of its answer, or all if there are fewer."""
        return self.token_ids[max(self.answer_start, len(self.token_ids) - count) :]

    @property
    def answer_start(self) -> int:
        """The index of the answer's first token, counting the tokens that the client gave."""
        return self.num_prompt - self.num_given

    def constrain(self, matcher: Matcher, *, knows_given: bool = True) -> None:
        """Hold the answer to the grammar of `matcher`, which is fresh. `knows_given`: it covers the given tokens too.

        Raises InvalidRequest for given tokens that the grammar forbids.
        """
        self.matcher = matcher
        for token_id in self.prompt_ids[self.answer_start :] if knows_given else ():
            try:
                matcher.accept(token_id)
            except GrammarError as error:
                raise InvalidRequest(f"prefix_ids: {error}", field="prefix_ids") from None

    @property
    def keys(self) -> list[int]:
        """Its tokens as the prefix cache compares them: ids, and for media numbers that stand for their content."""
        if self.media is None:
            return self.token_ids
        return self.media.keys + self.token_ids[len(self.media.keys) :]

    @property
    def shift(self) -> int:
        """The position of a token of the answer less its index: media may take fewer positions than tokens."""
        return 0 if self.media is None else self.media.shift

    def chunk_end(self, end: int) -> int:
        """Where a prefill chunk up to `end` must stop: at a snapshot, and never within tokens that see each other."""
        end = min([end, *(at for at in self.snapshots_at if at > self.num_computed)])
        for start, stop in () if self.media is None else self.media.blocks:
            if start < end < stop:
                return start if start > self.num_computed else stop
        return end

    @property
    def num_cacheable(self) -> int:
        """How many tokens may come from the cache: not the last one, nor any whose scores or experts are asked for."""
        if self.embeds is not None:
            return 0
        routed = self.num_routed if self.tensors and self.tensors.routed_experts is not None else len(self)
        scored = self.next_prompt_row if self._wants_prompt_rows else len(self)
        return min(len(self.token_ids) - 1, scored, routed)

    @property
    def next_prompt_row(self) -> int:
        """The next prompt position whose scores are asked for. The prompt's last position means that none is left."""
        described = self.num_described if self.tensors and self.tensors.of_prompt else self.num_prompt
        return min(described, self.next_logprob_row)

    @property
    def _wants_prompt_rows(self) -> bool:
        return self.next_prompt_row < self.num_prompt - 1

    @property
    def next_logprob_row(self) -> int:
        """`next_prompt_row` for log-probabilities alone. Row `start` gives the first one: of the token after it."""
        start = self.logprobs.start if self.logprobs else None
        return self.num_prompt if start is None else start + max(0, len(self.prompt_logprobs) - 1)

    @property
    def max_chunk(self) -> int:
        """The most tokens of one step: all before the first whose scores are wanted, and `LOGPROB_CHUNK` from there."""
        before = max(0, self.next_prompt_row - self.num_computed)
        return before + LOGPROB_CHUNK if self._wants_prompt_rows else len(self)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are still to be computed: 1 while decoding."""
        return len(self) - self.num_computed

    def start(self, now: float) -> None:
        """Note when it first ran. Running again after a preemption is no second start."""
        if self.started is None:
            self.started = now

    def next_ids(self, count: int) -> list[int]:
        """The ids of the next `count` uncomputed tokens. An awaited token is given as `-1 - row`."""
        ids = self.token_ids[self.num_computed : self.num_computed + count]
        return ids if self.awaited is None or len(ids) == count else [*ids, -1 - self.awaited]

    def append(self, token_id: int) -> str:
        """Add a sampled token, set `finish_reason` if it is the last, and return the text that is now certain.

        The order of checks is SGLang's: stop string, stop token, length, complete grammar. Raises GrammarError for a
        token that the sequence's grammar forbids.
        """
        complete = self.matcher is not None and self.matcher.accept(token_id)
        self.token_ids.append(token_id)
        stops = token_id in self.stop_token_ids and not self.params.ignore_eos
        ends = stops or (complete and token_id in self.stop_token_ids)
        hidden = ends and not self.params.no_stop_trim
        text = self.stop_strings.append("" if hidden else self._text_of(token_id))
        text += "" if ends else self._end_left_out(token_id)
        if stops:
            self.finish_reason = FinishReason(type="stop", matched=token_id)
        elif self.num_output >= self.budget:
            incomplete = self.matcher is not None and not complete and not self.matcher.may_end
            self.finish_reason = FinishReason(type="length", length=self.budget, incomplete=incomplete)
        elif complete:
            self.finish_reason = FinishReason(type="stop", matched=token_id)
        text += self.flush() if self.finish_reason else ""
        if self.stop_strings.matched is not None:  # also in text that only `flush` let out
            self.finish_reason = FinishReason(type="stop", matched=self.stop_strings.matched)
        text, self.prefix_text = self.prefix_text + text, ""
        return text

    def _text_of(self, token_id: int) -> str:
        """The text that this token makes certain; also the whole characters held back, if these complete a stop."""
        text = self.detokenizer.append(token_id)
        return text if self.stop_strings.find(self.detokenizer.ahead) is None else text + self.detokenizer.ahead

    def _end_left_out(self, token_id: int) -> str:
        """Match a stop that ends in the spelling of a token left out of the text; the text held back until then."""
        unseen = self.left_out.get(token_id, "")
        stop = self.stop_strings.find(unseen)
        if stop is None or self.stop_strings.matched is not None:
            self.stop_strings.pass_over(unseen)
            return ""
        text = self.flush()
        self.stop_strings.matched = stop
        return text

    @property
    def why_no_token(self) -> str:
        """The error message where no token can follow."""
        if self.fault is not None:
            return self.fault
        if self.matcher is not None:
            return (
                "no token is allowed here: what the grammar allows, other options (min_new_tokens, logit_bias, "
                "bad_words, custom_logit_processor) forbid"
            )
        who = "the model" if self.logit_processor is None else "the model, or else custom_logit_processor,"
        return f"{who} produced no finite score: no token is allowed here"

    def flush(self) -> str:
        """The text held back, once no token follows. After a matched stop string there is none."""
        if self.stop_strings.matched is not None:
            return ""
        return self.stop_strings.append(self.detokenizer.flush()) + self.stop_strings.flush()

    def rest(self) -> str:
        """The text that an ended sequence has not output yet; "" if the tokenizer fails."""
        try:
            return self.prefix_text + self.flush()
        except Exception:  # a tokenizer may raise anything
            log.exception("request %s: the end of its text", self.rid)
            return ""

    @property
    def _is_cut(self) -> bool:
        """Whether its answer was cut off, by the limit of its length or an abort."""
        return self.finish_reason is not None and self.finish_reason.type in ("length", "abort")

    def output(self, text: str, token_ids: list[int]) -> GenerateOutput:
        """The output for `token_ids`, which are appended already and gave `text`."""
        begins, self._told = not self._told, True
        return GenerateOutput(
            rid=self.rid,
            index=self.index,
            text=text,
            parts=self.parser and self.parser.feed(text, last=bool(self.finish_reason), cut=self._is_cut),
            token_ids=tuple(token_ids),
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_output,
            cached_tokens=self.cached_tokens,
            ran_seconds=time.monotonic() - self.started if begins and self.started is not None else 0.0,
            media_tokens=self.media.tokens if self.media else {},
            finish_reason=self.finish_reason,
            prompt_logprobs=self.prompt_logprobs if begins else (),
            prompt_text=self.prompt_text if begins else None,
            prompt_ids=self.prompt_ids if self.shows_prompt_ids and begins else (),
        )


class Withdrawn(NamedTuple):
    """An engine's sequences: all by request id, those whose grammar is still being compiled, the others in order."""

    requests: dict[str, list[Sequence]]
    preparing: set[Sequence]
    waiting: list[Sequence]
