"""A model's scores, hidden states and experts for requests that ask for them (`TensorOptions`), cut into pieces.

Holds no tensor longer than a step; knows neither wires nor text.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import torch

from nbgen.engine.model_runner import PromptScores, RunOutput
from nbgen.engine.sequence import Sequence
from nbgen.messages import GenerateOutput, TensorPiece
from nbgen.pieces import PIECE_BYTES


class Row(NamedTuple):
    """The `scores` `[vocab]` that a token is chosen from, before options change them, and the hidden state if asked."""

    scores: torch.Tensor
    hidden: torch.Tensor | None


def raw_rows(output: RunOutput) -> list[Row | None]:
    """Copies of the rows that are asked for, taken before sampling writes into them.

    They are still on their way to the host, but arrive before any tensor that is copied later.
    """
    hidden = {sequence: _sent(state) for sequence, state in output.hidden.items() if sequence.tensors}
    return [
        Row(_sent(output.scores[row]), hidden.get(sequence)) if sequence.tensors else None
        for row, sequence in enumerate(output.sampled)
    ]


def _sent(row: torch.Tensor) -> torch.Tensor:
    return row.to("cpu", non_blocking=True, copy=True)


class TensorOutputs:
    """Turns rows into outputs of their requests."""

    def prompt(self, prompt: PromptScores) -> list[GenerateOutput]:
        """Outputs for prompt tokens from which nothing is sampled."""
        sequence, options = prompt.sequence, prompt.sequence.tensors
        if options is None or not options.of_prompt:
            return []
        new = max(0, sequence.num_described - prompt.position)
        sequence.num_described = max(sequence.num_described, prompt.position + len(prompt.scores))
        return self._of_prompt(sequence, prompt.scores[new:], None if prompt.hidden is None else prompt.hidden[new:])

    def routed(self, sequence: Sequence, position: int, experts: torch.Tensor) -> Iterator[GenerateOutput]:
        """Outputs with the experts `[tokens, layers, experts per token]` of the tokens from `position` on."""
        new = max(0, sequence.num_routed - position)
        sequence.num_routed = max(sequence.num_routed, position + len(experts))
        return _pieces(sequence, "routed_experts", experts[new:].flatten(1))

    def sampled(self, sequence: Sequence, row: Row | None, token: int) -> list[GenerateOutput]:
        """Outputs for the row that `token` was chosen from. For the first token, that is the prompt's last row."""
        options = sequence.tensors
        if row is None or options is None:
            return []
        outputs = []
        if not sequence.num_output:
            state = None if row.hidden is None else row.hidden[None]
            outputs += self._of_prompt(sequence, row.scores[None], state)
            outputs += _pooled(sequence, row.hidden)
        elif row.hidden is not None:
            for name in ("generation_hidden_states", "last_hidden_state"):
                outputs += _pieces(sequence, name, row.hidden[None]) if getattr(options, name) else ()
        if sequence.budget and options.generation_logits:
            outputs += _pieces(sequence, "generation_logits", row.scores[None])
        if sequence.budget and options.logprobs and token >= 0:
            outputs += _pieces(sequence, "logprobs", torch.log_softmax(row.scores, dim=-1)[token].view(1, 1))
        return outputs

    def _of_prompt(self, sequence: Sequence, scores: torch.Tensor, hidden: torch.Tensor | None) -> list[GenerateOutput]:
        options = sequence.tensors
        outputs: list[GenerateOutput] = []
        assert options is not None
        if options.logits:
            outputs += _pieces(sequence, "logits", scores)
        if options.hidden_states and hidden is not None:
            outputs += _pieces(sequence, "hidden_states", hidden)
        if options.pooled == "mean" and hidden is not None and len(hidden):
            new = hidden.sum(dim=0, dtype=torch.double).cpu()
            sequence.state_sum = new if sequence.state_sum is None else sequence.state_sum + new
        return outputs


def _pooled(sequence: Sequence, last: torch.Tensor | None) -> list[GenerateOutput]:
    """The output that pools the states of the whole prompt into one, if asked for; `last` is the last one."""
    options = sequence.tensors
    if options is None or not options.pooled or last is None:
        return []
    vector = last if options.pooled == "last" else sequence.state_sum / sequence.num_prompt
    (output,) = _pieces(sequence, "pooled", vector[None])
    return [msgspec.structs.replace(output, prompt_tokens=sequence.num_prompt)]


def _pieces(sequence: Sequence, name: str, rows: torch.Tensor) -> Iterator[GenerateOutput]:
    """Outputs with the float32 or int32 bytes of `rows` `[rows, width]`, in pieces of whole rows."""
    if not len(rows):
        return
    step = max(1, PIECE_BYTES // (4 * rows.shape[-1]))
    for part in (rows.float() if rows.is_floating_point() else rows.int()).cpu().contiguous().split(step):
        piece = TensorPiece(rid=sequence.rid, name=name, data=memoryview(part.numpy()).cast("B"))
        yield GenerateOutput(rid=sequence.rid, index=sequence.index, tensors=[piece])
