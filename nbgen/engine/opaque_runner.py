"""Tier C: any causal LM, one sequence at a time, through the cache that transformers itself makes for it.

Correct first: what the paged path cannot serve is served here. A model whose own cache disagrees with itself
(`cached=False`) computes every token anew at each step.
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
    """Runs a transformers causal LM with one cache of its own kind for each sequence."""

    tier = "C"
    layers_in = "transformers"
    chunks_prefill = False
    looks_ahead = takes_guesses = False
    #: What a sequence's cache takes for each token, and whatever its length.
    bytes_per_token = bytes_per_state = 0
    long_after = None

    def __init__(self, model: "PreTrainedModel", *, cached: bool = True) -> None:
        self.model = model
        self.cached = cached
        self.device = next(model.parameters()).device
        names = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in names
        self._cache_name = cache_argument(names)
        # Recurrent models mask the new tokens alone, and none of them is masked.
        self._takes_mask = "attention_mask" in names and not is_recurrent(names)
        self._hidden_states = HiddenStates(model)
        self._routed_experts = RoutedExperts(model)
        self.lora = LoraLayers(model)
        self._caches: dict[Sequence, Any] = {}

    @torch.inference_mode()
    def run(
        self, batch: list[ScheduledSequence], copies: Copies = (), newest: SampledTokens | None = None
    ) -> RunOutput:
        """Compute the batch's tokens, each sequence's whole prompt at once. There are no copies, nothing is awaited.

        A sequence that begins anew has given its blocks back, and its cache with them.
        """
        self._caches = {sequence: cache for sequence, cache in self._caches.items() if sequence.num_computed}
        last, prompt = [], []
        last_hidden: dict[Sequence, torch.Tensor] = {}
        experts: dict[Sequence, Any] = {}
        for item in batch:
            sequence = item.sequence
            known, end = sequence.num_computed if self.cached else 0, len(sequence)
            first = _first_wanted(sequence, known)
            alone = item._replace(num_tokens=1)  # one row of the mask, which holds for all rows
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
        """Learn what caches take from those of two sequences, which are computed for that alone."""
        if not self.cached:
            return
        pair = (shorter, longer)
        self.run([ScheduledSequence(sequence, sequence.num_uncomputed) for sequence in pair])
        less, more = (_bytes(self._caches.pop(sequence)) for sequence in pair)
        self.bytes_per_token = -(-(more - less) // (len(longer) - len(shorter)))
        self.bytes_per_state = max(0, more - self.bytes_per_token * len(longer))

    def vacate(self) -> None:
        """Caches are the sequences' own: without sequences there are none."""

    def _scores(self, sequence: Sequence, known: int, first: int) -> torch.Tensor:
        """`[tokens, vocab]` of those from position `first` on; the first `known` tokens are in the cache.

        All others' scores are let go: those of a step's prompts are wider than anything else that it makes.
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
        """All but the first `known`, as ids or, where the prompt was given so, as embeddings."""
        ids = self._row(sequence.token_ids[known:])
        if sequence.embeds is None or known >= sequence.num_prompt:
            return {"input_ids": ids}
        return {"inputs_embeds": prompt_embeds.fill(self.model, ids, sequence.embeds, known)}

    def _row(self, values: list[int]) -> torch.Tensor:
        return torch.tensor([values], dtype=torch.long, device=self.device)


def _first_wanted(sequence: Sequence, known: int) -> int:
    """The first new position whose scores anybody wants: one of the prompt's, or the last of all."""
    row = max(known, sequence.next_prompt_row)
    return row if row < sequence.num_prompt - 1 else len(sequence) - 1


def _bytes(cache: Any) -> int:
    """Of the memory behind all tensors in a cache, however deep they are in it."""
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
