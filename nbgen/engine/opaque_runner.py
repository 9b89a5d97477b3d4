"""Tier C: any causal LM, one sequence at a time, through the cache that transformers itself makes for it.

Correct first: this runs the models that the paged path cannot. With `cached=False`, for a model that gives other scores
with its cache than without, each step computes every token again.
"""

import inspect
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine import prompt_embeds
from nbgen.engine.block_manager import Copies
from nbgen.engine.cache_argument import cache_argument, is_recurrent
from nbgen.engine.hidden_states import HiddenStates
from nbgen.engine.lora import LoraLayers
from nbgen.engine.model_runner import PromptScores, RunOutput
from nbgen.engine.routed_experts import RoutedExperts, asks
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.sequence import Sequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class OpaqueRunner:
    """Runs a transformers causal LM with one transformers cache for each sequence."""

    tier = "C"
    layers_in = "transformers"
    chunks_prefill = False
    looks_ahead = takes_guesses = False
    #: The bytes of a sequence's cache for each token, and those that do not depend on its length.
    bytes_per_token = bytes_per_state = 0
    long_after = None

    def __init__(self, model: "PreTrainedModel", *, cached: bool = True) -> None:
        self.model = model
        self.cached = cached
        self.device = next(model.parameters()).device
        names = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in names
        self._cache_name = cache_argument(names)
        # A recurrent model's mask covers only the new tokens, of which none is masked: it needs none.
        self._takes_mask = "attention_mask" in names and not is_recurrent(names)
        self._hidden_states = HiddenStates(model)
        self._routed_experts = RoutedExperts(model)
        self.lora = LoraLayers(model)
        self._caches: dict[Sequence, Any] = {}

    @torch.inference_mode()
    def run(
        self, batch: list[ScheduledSequence], copies: Copies = (), newest: SampledTokens | None = None
    ) -> RunOutput:
        """Compute the batch's tokens, each whole prompt at once. `copies` and `newest` are not used in this tier.

        A sequence that starts over after a preemption has lost its cache with its blocks.
        """
        self._caches = {sequence: cache for sequence, cache in self._caches.items() if sequence.num_computed}
        last, prompt = [], []
        last_hidden: dict[Sequence, torch.Tensor] = {}
        experts: dict[Sequence, Any] = {}
        for item in batch:
            sequence = item.sequence
            known, end = sequence.num_computed if self.cached else 0, len(sequence)
            first = _first_wanted(sequence, known)
            alone = item._replace(num_tokens=1)  # adapters need one row of their mask, which then holds for all rows
            adapted, routed = self.lora.of([alone]), self._routed_experts.of([item])
            with self._hidden_states.of(batch) as hidden, adapted, routed as routes:
                scores = self._scores(sequence, known, first)
            if asks(item) and (rows := routes.rows(0, end - known)) is not None:
                experts[sequence] = (known, rows)
            states = hidden.rows(range(first - known, end - known), picked=self._keeps_logits)
            last.append(scores[-1])
            last_hidden |= {} if states is None else {sequence: states[-1]}
            if (count := sequence.num_prompt - 1 - first) > 0:
                prompt.append(PromptScores(sequence, first, scores[:count], None if states is None else states[:count]))
        return RunOutput([item.sequence for item in batch], torch.stack(last).float(), prompt, last_hidden, experts)

    def release(self, sequence: Sequence) -> None:
        """Drop the sequence's cache."""
        self._caches.pop(sequence, None)

    def weigh(self, shorter: Sequence, longer: Sequence) -> None:
        """Measure the size of caches by computing two sequences for this purpose alone."""
        if not self.cached:
            return
        pair = (shorter, longer)
        self.run([ScheduledSequence(sequence, sequence.num_uncomputed) for sequence in pair])
        less, more = (_bytes(self._caches.pop(sequence)) for sequence in pair)
        self.bytes_per_token = -(-(more - less) // (len(longer) - len(shorter)))
        self.bytes_per_state = max(0, more - self.bytes_per_token * len(longer))

    def vacate(self) -> None:
        """Nothing to release: caches belong to sequences, and there are none now."""

    def _scores(self, sequence: Sequence, known: int, first: int) -> torch.Tensor:
        """Scores `[tokens, vocab]` from position `first` on; the first `known` tokens are in the cache.

        The wanted rows are copied, so that the others are freed: nothing that a step makes is larger than these.
        """
        rows = len(sequence) - first
        inputs: dict[str, Any] = {**self._tokens(sequence, known), "use_cache": self.cached}
        if self._keeps_logits:
            inputs["logits_to_keep"] = rows
        if self._takes_mask:
            inputs["attention_mask"] = self._row([1] * len(sequence))
        if known:
            inputs[self._cache_name] = self._caches[sequence]
        output = self.model(**inputs)
        if self.cached:
            self._caches[sequence] = output[self._cache_name]
        scores = output.logits[0]
        return scores if len(scores) == rows else scores[-rows:].clone()

    def _tokens(self, sequence: Sequence, known: int) -> dict[str, torch.Tensor]:
        """All tokens but the first `known`: ids, or embeddings if the prompt was given as embeddings."""
        ids = self._row(sequence.token_ids[known:])
        if sequence.embeds is None or known >= sequence.num_prompt:
            return {"input_ids": ids}
        return {"inputs_embeds": prompt_embeds.fill(self.model, ids, sequence.embeds, known)}

    def _row(self, values: list[int]) -> torch.Tensor:
        return torch.tensor([values], dtype=torch.long, device=self.device)


def _first_wanted(sequence: Sequence, known: int) -> int:
    """The first new position whose scores are wanted: one in the prompt, or else the last position."""
    row = max(known, sequence.next_prompt_row)
    return row if row < sequence.num_prompt - 1 else len(sequence) - 1


def _bytes(cache: Any) -> int:
    """The bytes of memory of all tensors in a cache, however deeply nested."""
    found, seen, storages = [cache], set[int](), dict[int, int]()
    while found:
        held = found.pop()
        if id(held) in seen or isinstance(held, torch.nn.Module | type):
            continue
        seen.add(id(held))
        if isinstance(held, torch.Tensor):
            storages[held.untyped_storage().data_ptr()] = held.untyped_storage().nbytes()
        elif isinstance(held, list | tuple):
            found += held
        else:
            found += (held if isinstance(held, dict) else getattr(held, "__dict__", {})).values()
    return sum(storages.values())
