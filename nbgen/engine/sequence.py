"""One prompt being continued: its tokens, its blocks, how far it is computed. Plain Python, no tensors."""

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

#: Prompt tokens of one step whose scores are looked at: 64 rows of 150,000 scores are 38 MB in float32.
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
    every random choice. `prefix_text` is what the answer begins with; it comes with the first token. Sequences of one
    `namespace` may share cached blocks. `rank` orders them: the least is served first; the scheduler sets it. `arrived`
    and `started` are monotonic seconds.
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
    #: Tokens that its text leaves out, which the matcher knows as text like any.
    unsaid: frozenset[int] = frozenset()
    #: What tokens that its text leaves out are written as: a stop may be in that.
    left_out: Mapping[int, str] = field(default_factory=dict)
    logit_processor: str | None = None
    custom_params: Any = None
    #: Why no token may follow, where something else than the scores says so.
    fault: str | None = None
    namespace: Namespace = COMMON
    #: The LoRA adapter (`adapter_folder.Adapter`) that it goes through, if any.
    adapter: Any = None
    prefix_text: str = ""
    #: The prompt's last tokens that the answer begins with: given, and taken as if they had been sampled.
    num_given: int = 0
    #: What finds the parts of its answer (`answer_parser.AnswerParser`), if that is more than text.
    parser: Any = None
    logprobs: LogprobOptions | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    tensors: TensorOptions | None = None
    #: Prompt tokens whose tensors have been given.
    num_described: int = 0
    #: The sum of the hidden states of those, float64 `[hidden]`, where their mean is asked for.
    state_sum: Any = None
    #: Tokens whose experts have been given, those before the first that is asked for included.
    num_routed: int = 0
    #: Words of tokens that the answer must not have.
    bad_words: tuple[tuple[int, ...], ...] = ()
    #: What stands in place of the prompt's embeddings, FP32 `[tokens, width]`: such a prompt shares nothing.
    embeds: Tensor | None = None
    #: The prompt's media (`media_prompt.MediaPrompt`), if it has any.
    media: Any = None
    prompt_text: str | None = None
    #: Whether somebody reads its tokens as they come.
    streamed: bool = False
    #: Whether the first output has the prompt's ids.
    shows_prompt_ids: bool = False
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    #: Where its recurrent state is while it runs, if the model has any.
    state_slot: int | None = None
    #: Numbers of computed tokens at which that state is to be kept for others.
    snapshots_at: list[int] = field(default_factory=list)
    #: The row of its next token among the newest sampled ones, while these are known to the device alone.
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
        #: What finds guesses at its next tokens.
        self.drafts = Drafts()
        #: Its last tokens, as far as they are such guesses.
        self.guessed: list[int] = []
        #: Whether it has given an output.
        self._told = False

    def __len__(self) -> int:
        """Its tokens, an awaited one among them."""
        return len(self.token_ids) + (self.awaited is not None)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        """Its answer's tokens, with those that were given."""
        return self.token_ids[self.answer_start :]

    @property
    def output_counts(self) -> TokenCounts:
        """How often each token of its answer came: counted as it grows, where somebody asks."""
        self._counts.add(self.token_ids[self.answer_start + self._counts.total :])
        return self._counts

    def last_output(self, count: int) -> list[int]:
        """The last `count` tokens of its answer, or all that there are."""
        return self.token_ids[max(self.answer_start, len(self.token_ids) - count) :]

    @property
    def answer_start(self) -> int:
        """Where its answer begins, with what is given of it."""
        return self.num_prompt - self.num_given

    def constrain(self, matcher: Matcher, *, knows_given: bool = True) -> None:
        """Hold the answer to a grammar, at whose beginning `matcher` is; to the rest of it where it `knows_given`.

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
        """Its tokens as the prefix cache tells them apart: their ids, and the contents of media."""
        if self.media is None:
            return self.token_ids
        return self.media.keys + self.token_ids[len(self.media.keys) :]

    @property
    def shift(self) -> int:
        """What a token's position differs from its index by, where no medium stands."""
        return 0 if self.media is None else self.media.shift

    def chunk_end(self, end: int) -> int:
        """Where a prefill chunk up to `end` must stop: at a snapshot, and not inside tokens that all see each other."""
        end = min([end, *(at for at in self.snapshots_at if at > self.num_computed)])
        for start, stop in () if self.media is None else self.media.blocks:
            if start < end < stop:
                return start if start > self.num_computed else stop
        return end

    @property
    def num_cacheable(self) -> int:
        """Tokens that may come from the cache: not the last, nor those whose scores or experts are asked for."""
        if self.embeds is not None:
            return 0
        routed = self.num_routed if self.tensors and self.tensors.routed_experts is not None else len(self)
        scored = self.next_prompt_row if self._wants_prompt_rows else len(self)
        return min(len(self.token_ids) - 1, scored, routed)

    @property
    def next_prompt_row(self) -> int:
        """The next position of the prompt whose scores are asked for; none is left at the last one."""
        described = self.num_described if self.tensors and self.tensors.of_prompt else self.num_prompt
        return min(described, self.next_logprob_row)

    @property
    def _wants_prompt_rows(self) -> bool:
        return self.next_prompt_row < self.num_prompt - 1

    @property
    def next_logprob_row(self) -> int:
        """The same of log-probabilities alone. Their first token has none, so its successor's is the first."""
        start = self.logprobs.start if self.logprobs else None
        return self.num_prompt if start is None else start + max(0, len(self.prompt_logprobs) - 1)

    @property
    def max_chunk(self) -> int:
        """The most tokens of one step: few whose scores over the vocabulary are wanted, after all before them."""
        before = max(0, self.next_prompt_row - self.num_computed)
        return before + LOGPROB_CHUNK if self._wants_prompt_rows else len(self)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are still to be computed: 1 while decoding."""
        return len(self) - self.num_computed

    def start(self, now: float) -> None:
        """It runs; what it does again after it had to give way is no second start."""
        if self.started is None:
            self.started = now

    def next_ids(self, count: int) -> list[int]:
        """The next `count` uncomputed tokens; in place of an awaited one -1 less its row."""
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
        if self.stop_strings.matched is not None:  # in what was held back, too
            self.finish_reason = FinishReason(type="stop", matched=self.stop_strings.matched)
        text, self.prefix_text = self.prefix_text + text, ""
        return text

    def _text_of(self, token_id: int) -> str:
        """What is certain with this token; where a stop ends it, all but half a character that waits for its rest."""
        text = self.detokenizer.append(token_id)
        return text if self.stop_strings.find(self.detokenizer.ahead) is None else text + self.detokenizer.ahead

    def _end_left_out(self, token_id: int) -> str:
        """The text that was held back, where a stop ends it that is whole in what a token is written as, unseen."""
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
        """In words, where none can follow."""
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
        """The text held back, once nothing more comes. Nothing follows a matched stop string."""
        if self.stop_strings.matched is not None:
            return ""
        return self.stop_strings.append(self.detokenizer.flush()) + self.stop_strings.flush()

    def rest(self) -> str:
        """All text of one that is ended that is still to come, if a tokenizer can tell it."""
        try:
            return self.prefix_text + self.flush()
        except Exception:  # whatever that raises
            log.exception("request %s: the end of its text", self.rid)
            return ""

    @property
    def _is_cut(self) -> bool:
        """Whether it ended before it was over."""
        return self.finish_reason is not None and self.finish_reason.type in ("length", "abort")

    def output(self, text: str, token_ids: list[int]) -> GenerateOutput:
        """What it gained by these tokens, which are appended already."""
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
    """All sequences by their request, those of them whose grammar is not compiled yet, and the others in order."""

    requests: dict[str, list[Sequence]]
    preparing: set[Sequence]
    waiting: list[Sequence]
