"""One forward for a scheduled batch: tokens in, logits (`scores`) out. Tier A: packed tokens, paged cache.

Each step is computed by the fastest implementation that suits it (`forward`). Knows nothing of sampling or text.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nbgen.engine import attention, lora
from nbgen.engine.backends import attention_for
from nbgen.engine.block_manager import Copies, Copy
from nbgen.engine.cuda_graphs import DecodeGraphs
from nbgen.engine.decode_row import DecodeRow
from nbgen.engine.forward import Decoded, Forward, Replay, is_ids_only
from nbgen.engine.guess import Guess
from nbgen.engine.hidden_states import HiddenStates
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.media_encoder import MediaEncoder
from nbgen.engine.native_model import NativeModel
from nbgen.engine.rotary import LongRotary
from nbgen.engine.routed_experts import RoutedExperts, Routes, asks
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.scheduler import ScheduledSequence, packed
from nbgen.engine.sequence import Sequence
from nbgen.engine.stock_model import StockModel
from nbgen.engine.upload import upload

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nbgen.engine.fused_model import FusedModel


class PromptScores(NamedTuple):
    """A prompt's logits `[rows, vocab]` from `position` on, and its hidden states `[rows, hidden]` if asked for."""

    sequence: Sequence
    position: int
    scores: torch.Tensor
    hidden: torch.Tensor | None = None


class RunOutput(NamedTuple):
    """The sequences that sample now, their logits `scores` `[rows, vocab]`, and the prompt scores that were asked for.

    `hidden` holds the hidden states `[hidden]` behind those scores, if any sequence asked. `experts` holds, for each
    sequence that asked, the first position computed and the experts `[tokens, layers, experts per token]` from it on.
    `best` are the tokens `[rows]` with the greatest scores, if a CUDA graph has found them.
    """

    sampled: list[Sequence]
    scores: torch.Tensor
    prompt: list[PromptScores]
    hidden: dict[Sequence, torch.Tensor]
    experts: dict[Sequence, tuple[int, torch.Tensor]]
    best: torch.Tensor | None = None

    def over(self, vocab_size: int) -> "RunOutput":
        """With scores padded to `vocab_size`: a token that the model has no score for is never sampled."""
        if self.scores.shape[-1] >= vocab_size:
            return self
        prompt = [each._replace(scores=_filled(each.scores, vocab_size)) for each in self.prompt]
        return self._replace(scores=_filled(self.scores, vocab_size), prompt=prompt)

    def wide(self) -> "RunOutput":
        """With scores in float32."""
        return self._replace(scores=self.scores.float())

    def living(self) -> "RunOutput":
        """Only the results of sequences that have not ended since."""
        rows = [row for row, sequence in enumerate(self.sampled) if not sequence.finish_reason]
        decoded = Decoded(self.scores, self.best)
        if len(rows) < len(self.sampled):
            decoded = decoded.of(upload(rows, self.scores.device, torch.long))
        return RunOutput(
            [self.sampled[row] for row in rows],
            decoded.scores,
            [prompt for prompt in self.prompt if not prompt.sequence.finish_reason],
            self.hidden,
            {sequence: found for sequence, found in self.experts.items() if not sequence.finish_reason},
            decoded.best,
        )


class ModelRunner:
    """Runs a transformers causal LM over a paged KV cache."""

    tier = "A"
    chunks_prefill = True
    #: Whether a step may run on token ids that the host does not know yet.
    looks_ahead = True
    #: Whether rows of a step may be guesses (speculative decoding).
    takes_guesses = True
    bytes_per_state = 0

    def __init__(self, model: "PreTrainedModel", cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        self.device = next(model.parameters()).device
        self.attention = attention_for(self.device)
        self.graphs: DecodeGraphs | None = None
        self.fused: FusedModel | None = None
        self.native_model: NativeModel | None = None
        self._rotary = LongRotary(model)
        self._hidden_states = HiddenStates(model)
        self._routed_experts = RoutedExperts(model)
        self.lora = lora.LoraLayers(model)
        self.media = MediaEncoder(model)
        self.stock = StockModel(model, self.lora)

    @property
    def layers_in(self) -> str:
        """Whose code runs the model's layers (`ModelInfo`)."""
        return self._forwards[0].layers_in

    @property
    def long_after(self) -> int | None:
        """The length beyond which a sequence's keys are rotated otherwise (LongRoPE), or None if there is none."""
        return self._rotary.long_after

    @torch.inference_mode()
    def run(
        self, batch: list[ScheduledSequence], copies: Copies = (), newest: SampledTokens | None = None
    ) -> RunOutput:
        """Do the `copies` of cached tokens, then compute the batch; ids that the host lacks come from `newest`."""
        for copy in copies:
            assert isinstance(copy, Copy)
            self.cache.copy(copy.source, copy.target, copy.num_tokens)
        items = sorted(batch, key=lambda item: item.num_tokens > 1)
        sampled, prompt_rows = _rows(items)
        wanted = list(sampled) + [row for rows in prompt_rows.values() for row in rows]
        experts: dict[Any, Any] = {}
        decoded, states = self._replay(items, wanted, newest), None
        if decoded is None:
            scores, states, experts = self._compute(items, wanted, newest)
            decoded = Decoded(scores)
        end, prompt = len(sampled), []
        for (sequence, position), rows in prompt_rows.items():
            part = slice(end, end + len(rows))
            hidden = None if states is None else states[part]
            prompt.append(PromptScores(sequence, position, decoded.scores[part], hidden))
            end += len(rows)
        last = {} if states is None else dict(zip(sampled.values(), states, strict=False))
        scores, best = decoded.of(slice(len(sampled)))
        return RunOutput(list(sampled.values()), scores, prompt, last, experts, best)

    def encode(self, sequence: Sequence) -> None:
        """Run the media towers on the sequence's media, with its adapter. Raises InvalidRequest."""
        with self.lora.of([ScheduledSequence(sequence, 1)]):  # a mask of one row, which applies to all rows
            self.media.encode(sequence.media, sequence.namespace)

    def release(self, sequence: Sequence) -> None:
        """Nothing to do: the scheduler itself takes back what the sequence holds."""

    def accept(self, guesses: list[Guess]) -> None:
        """Keep the results of guesses that came true. Nothing to do: their keys and values are in the cache."""

    def capture(self, max_running: int, context_length: int) -> None:
        """Let decodes of up to `max_running` sequences run as CUDA graphs over the present cache.

        A model with other rotary frequencies beyond some length, or with states beside the cache, runs without graphs.
        """
        if self.attention.graphs and self.long_after is None and self.tier == "A":
            blocks = min(-(-context_length // self.cache.block_size), self.cache.num_blocks)
            if self.fused:
                self.fused.reach(blocks * self.cache.block_size)
            self.graphs = DecodeGraphs(self.decode, self.cache, self.attention, most=max_running, blocks=blocks)
            self.graphs.prepare()

    def vacate(self) -> None:
        """Wait for launched work, then free the cache's memory and the graphs that read it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.graphs = None
        self.media.towers.clear()
        self.cache.resize(0)

    def decode(self, step: attention.Step, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits `[B, vocab]` for one token each, `ids` and `positions` `[B, 1]`, without any work on the host."""
        if self.fused:
            return self.fused.decode(step, ids[:, 0], positions[:, 0])
        return self.stock.decode(step, ids, positions)

    @property
    def _forwards(self) -> list[Forward]:
        """The implementations that compute steps, fastest first; the last one takes any step."""
        return [each for each in (self.fused, self.native_model, self.stock) if each]

    def _compute(
        self, items: list[ScheduledSequence], rows: list[int], newest: SampledTokens | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, dict[Sequence, tuple[int, torch.Tensor]]]:
        """Logits of packed `rows`, hidden states if any sequence asks, and experts for each sequence that asks."""
        step, ids, positions = self._step(items), self._ids(items, newest), _positions(items)
        forward = next(each for each in self._forwards if each.suits(step, items))
        picked = forward.selects(items)
        lengths, adapted = self._rotary.lengths(items), self.lora.of(items, rows if picked else None)
        watched, routed = self._hidden_states.of(items), self._routed_experts.of(items)
        with lengths, adapted, self.media.overlay(items), watched as hidden, routed as routes:
            scores = forward.scores(step, items, ids, positions, rows)
        return scores, hidden.rows(rows, picked=picked), _experts(items, routes)

    def _replay(self, items: list[ScheduledSequence], rows: list[int], newest: SampledTokens | None) -> Decoded | None:
        """The rows' logits if all are plain decodes that a CUDA graph or the C++ can replay, else None."""
        again: Replay | None = self.graphs or self.native_model
        if again is None or any(item.num_tokens > 1 for item in items) or not is_ids_only(items):
            return None
        if self._hidden_states.wanted(items) or lora.concerns(items):
            return None
        decodes = [DecodeRow(s.next_ids(1)[0], s.num_computed, s.shift, s.block_table, s.state_slot) for s, _ in items]
        decoded = again.decode(decodes, newest)
        return decoded if decoded is None or rows == list(range(len(items))) else decoded.of(self._tensor(rows))

    def _ids(self, items: list[ScheduledSequence], newest: SampledTokens | None) -> torch.Tensor:
        """`[T]`"""
        ids = self._tensor([token for sequence, count in items for token in sequence.next_ids(count)])
        return ids if newest is None else newest.fill(ids)

    def _step(self, items: list[ScheduledSequence]) -> attention.Step:
        spans, slots = [], []
        for start, (sequence, count) in packed(items):
            computed = sequence.num_computed
            blocks, windowed = (media.blocks, media.windowed) if (media := sequence.media) else ((), False)
            end = start + count, computed + count
            spans.append(attention.Span(start, *end, sequence.block_table, blocks, sequence.state_slot, windowed))
            slots += _slots(sequence.block_table, computed, computed + count, self.cache.block_size)
        decodes = sum(count == 1 for _, count in items)
        return attention.Step(self.cache, self.attention, self._tensor(slots), spans[:decodes], spans[decodes:])

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return upload(values, self.device, torch.long)


def _filled(scores: torch.Tensor, width: int) -> torch.Tensor:
    """`[rows, width]`"""
    return torch.nn.functional.pad(scores, (0, width - scores.shape[-1]), value=float("-inf"))


def _rows(items: list[ScheduledSequence]) -> tuple[dict[int, Sequence], dict[tuple[Sequence, int], range]]:
    """Packed rows whose logits are wanted: sequences that sample, by row; prompts' rows, by sequence and position."""
    sampled, prompts = {}, {}
    for start, item in packed(items):
        sequence, count = item
        if item.samples:
            sampled[start + count - 1] = sequence
        first = max(sequence.num_computed, sequence.next_prompt_row)
        stop = min(sequence.num_computed + count, sequence.num_prompt - 1)
        if first < stop:
            offset = start - sequence.num_computed
            prompts[sequence, first] = range(offset + first, offset + stop)
    return sampled, prompts


def _experts(items: list[ScheduledSequence], routes: Routes) -> dict[Sequence, tuple[int, torch.Tensor]]:
    """For each sequence that asks: its first position computed in this step, and the experts from there on."""
    found = {}
    for start, item in packed(items):
        if asks(item) and (rows := routes.rows(start, start + item.num_tokens)) is not None:
            found[item.sequence] = (item.sequence.num_computed, rows)
    return found


def _positions(items: list[ScheduledSequence]) -> list[int]:
    return [
        position
        for sequence, count in items
        for first in (sequence.num_computed + sequence.shift,)
        for position in range(first, first + count)
    ]


def _slots(block_table: list[int], start: int, stop: int, block_size: int) -> list[int]:
    """Slots of positions `start` to `stop`."""
    return [block_table[p // block_size] * block_size + p % block_size for p in range(start, stop)]
