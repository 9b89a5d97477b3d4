"""Captures once what a model's towers make of images and sounds for its decoder, and gives it to that in every step.

transformers' own model runs on its processor's output, and is stopped at its decoder: the arguments that arrive there
(merged embeddings, positions in several axes, deep features, masks) are all that is needed, for any model. In a step of
packed tokens these arguments replace the decoder's own, row by row.
"""

import inspect
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine import memory
from nbgen.engine.media_prompt import MediaPrompt
from nbgen.engine.prefix_cache import COMMON, Namespace
from nbgen.engine.scheduler import ScheduledSequence, packed
from nbgen.engine.tower_cache import TowerCache
from nbgen.errors import InvalidRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

#: The decoder's arguments whose rows are `[visual tokens, width]` for each of its first layers (Qwen3-VL).
DEEP, DEEP_MASK = "deepstack_visual_embeds", "visual_pos_masks"
HANDLED = {"inputs_embeds", "position_ids", "attention_mask", DEEP, DEEP_MASK}
#: Names of the argument for the type of each token, where a model's forward takes one.
TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")
TYPE_NUMBERS = {"image": 1, "video": 2, "audio": 3}
#: What a configuration calls that of a type's tower, which a model may lack.
TOWERS = {"image": "vision_config", "video": "vision_config", "audio": "audio_config"}
#: The refusal where a decoder takes arguments, or masks, that no step here could give it.
UNKNOWN = InvalidRequest("this model reads media in a way that is not served; it takes text", field="image_data")
#: The refusal of media of which a tower, or whoever computed embeddings, makes NaN or infinity.
NOT_FINITE = InvalidRequest(
    "the model makes no finite numbers of these media: they hold NaN, infinity, or far larger numbers than it takes",
    field="image_data",
)


@dataclass
class Encoded:
    """A prompt as the decoder takes it: `embeds` `[T, width]`, `positions` `[axes, T]` where they are not its indices.

    `visual` `[T]` says which tokens have `deep` features, `[visual tokens, width]` each; `rows` are other arguments
    `[T, ...]` by name.
    """

    embeds: torch.Tensor
    positions: torch.Tensor | None = None
    visual: torch.Tensor | None = None
    deep: list[torch.Tensor] = field(default_factory=list)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are. If not, keys and values would not be either, of words before the media too."""
        numbers = [self.embeds, *self.deep, *self.rows.values()]
        return all(bool(each.isfinite().all()) for each in numbers if each.is_floating_point())


class _Reached(Exception):
    """The decoder was about to run with `arguments`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


def begins(item: ScheduledSequence) -> bool:
    """Whether the item's first token is one of a prompt with media."""
    media = item.sequence.media
    return media is not None and item.sequence.num_computed < len(media.ids)


class MediaEncoder:
    """Runs the towers of one model. `placeholders` are the ids that media's embeddings replace, with their types."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._names = inspect.signature(model.forward).parameters
        self.placeholders = placeholders(model.config)
        self.towers = TowerCache(model)

    @torch.inference_mode()
    def encode(self, prompt: MediaPrompt, namespace: Namespace = COMMON) -> None:
        """Run the towers and fill in the prompt's missing fields. Raises InvalidRequest.

        The towers' results are kept for other prompts with the same media and the same `namespace`.
        """
        ids = torch.tensor([prompt.ids], device=self._device)
        try:
            with self.towers.used(namespace):
                arguments = self._arguments(ids, prompt)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            if memory.ran_out(error):
                raise
            log.warning("the model does not accept what was made of a prompt's media", exc_info=True)
            raise InvalidRequest(
                "the model does not accept these media: the placeholders and the tensors do not fit each other",
                field="image_data",
            ) from error
        length = len(prompt.ids)
        if arguments.get("inputs_embeds") is None:
            raise UNKNOWN
        encoded = Encoded(arguments["inputs_embeds"][0], rows=_rows(arguments, length))
        if arguments.get(DEEP):
            encoded.visual, encoded.deep = arguments[DEEP_MASK][0], list(arguments[DEEP])
        for kind, feature in prompt.features.items():
            self._place(encoded, ids[0], kind, feature)
        if not encoded.is_finite:
            raise NOT_FINITE
        positions = arguments.get("position_ids")
        if positions is not None:
            positions = positions.flatten(0, -2)[-3:]
            prompt.shift = int(positions.max()) + 1 - length
            if not bool((positions == torch.arange(length, device=self._device)).all()):
                encoded.positions = positions
        prompt.blocks, prompt.windowed = _blocks_of(arguments.get("attention_mask"), self._model.config)
        if any(prompt.ids[i] not in self.placeholders for block in prompt.blocks for i in range(*block)):
            raise UNKNOWN
        prompt.encoded, prompt.inputs, prompt.features = encoded, {}, {}

    def overlay(self, items: list[ScheduledSequence]) -> AbstractContextManager[Any]:
        """Hold this around a forward of packed `items`: from the call on, the decoder gets the encoded media."""

        def replace(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, **_merged(items, kwargs)}

        if not any(map(begins, items)):
            return nullcontext()
        return self._model.get_decoder().register_forward_pre_hook(replace, with_kwargs=True, prepend=True)

    def _arguments(self, ids: torch.Tensor, prompt: MediaPrompt) -> dict[str, Any]:
        """The decoder's arguments for the whole prompt."""
        inputs = {name: self._moved(value) for name, value in prompt.inputs.items() if name in self._names}
        for name in TOKEN_TYPES:
            if name in self._names and name not in inputs:
                inputs[name] = self._token_types(ids)

        def stop(_: torch.nn.Module, __: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(kwargs)

        text = self._model.config.get_text_config()
        implementation, text._attn_implementation = text._attn_implementation, "sdpa"  # sdpa gets masks to look at
        try:
            with self._model.get_decoder().register_forward_pre_hook(stop, with_kwargs=True, prepend=True):
                self._model(input_ids=ids, use_cache=False, **inputs)
        except _Reached as reached:
            return reached.arguments
        finally:
            text._attn_implementation = implementation
            self._forget()
        raise ValueError("the model ran without its decoder")

    def _forget(self) -> None:
        """What a model remembers of one prompt's positions must not reach another's."""
        for module in self._model.modules():
            if getattr(module, "rope_deltas", None) is not None:
                module.rope_deltas = None  # type: ignore[assignment]

    def _token_types(self, ids: torch.Tensor) -> torch.Tensor:
        types = torch.zeros_like(ids)
        for token, kind in self.placeholders.items():
            types[ids == token] = TYPE_NUMBERS[kind]
        return types

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, self._model.dtype if tensor.is_floating_point() else None)

    def _place(self, encoded: Encoded, ids: torch.Tensor, kind: str, feature: torch.Tensor) -> None:
        """Put precomputed embeddings into their places; wider rows hold deep features after the embedding."""
        width = encoded.embeds.shape[1]
        if feature.shape[1] % width:
            raise InvalidRequest(
                f"the feature has rows of {feature.shape[1]} numbers; the embeddings of this model have {width}",
                field=f"{kind}_data",
            )
        tokens = torch.tensor([token for token, of in self.placeholders.items() if of == kind], device=self._device)
        mask = torch.isin(ids, tokens)
        first, *deep = self._moved(feature).split(width, dim=1)
        encoded.embeds = encoded.embeds.clone()
        encoded.embeds[mask] = first
        if deep:
            encoded.visual, encoded.deep = mask, deep


def placeholders(config: Any) -> dict[int, str]:
    """The ids that media's embeddings replace in a model of this configuration, with the type of the media.

    Where a video has the same as an image, it is the image's.
    """
    kinds = [kind for kind in TYPE_NUMBERS if getattr(config, TOWERS[kind], config) is not None]
    names = [(f"{kind}_token_{end}", kind) for kind in kinds for end in ("id", "index")]
    found = {getattr(config, name, None): kind for name, kind in reversed(names)}
    return {token: kind for token, kind in found.items() if isinstance(token, int)}


def _rows(arguments: dict[str, Any], length: int) -> dict[str, torch.Tensor]:
    """Other arguments that have a row for each token. Raises InvalidRequest for any other tensor."""
    others = {name: value for name, value in arguments.items() if name not in HANDLED}
    tensors = {name: value for name, value in others.items() if isinstance(value, torch.Tensor) and value.dim() > 1}
    if any(value.shape[:2] != (1, length) for value in tensors.values()):
        raise UNKNOWN
    return {name: value[0] for name, value in tensors.items()}


def _blocks_of(mask: Any, config: Any) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Tokens that see each other in both directions, and whether they do so only in layers with a sliding window."""
    if not isinstance(mask, dict):
        return _blocks(mask), False
    found = _blocks(mask.get("full_attention", next(iter(mask.values()), None)))
    if found or mask.get("sliding_attention") is None:
        return found, False
    found = _blocks(mask["sliding_attention"], config.get_text_config().sliding_window)
    return found, bool(found)


def _blocks(mask: Any, window: int | None = None) -> tuple[tuple[int, int], ...]:
    """`start` and `stop` of each bidirectional block in a mask, which a `window` may bound. Raises InvalidRequest."""
    if mask is None or mask.dim() != 4:
        return ()
    seen = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
    length = seen.shape[0]
    last = (length - 1 - seen.flip(-1).int().argmax(dim=-1)).tolist()
    blocks: list[tuple[int, int]] = []
    for index, reach in enumerate(last):
        if reach > index and (not blocks or index >= blocks[-1][1]):
            blocks.append((index, reach + 1))
    expected = torch.ones_like(seen, dtype=torch.bool).tril()
    for start, stop in blocks:
        expected[start:stop, start:stop] = True
    if window is not None:
        expected = expected.triu(1 - window)
    if not torch.equal(expected, seen):
        raise UNKNOWN
    return tuple(blocks)


def _merged(items: list[ScheduledSequence], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments to replace among the decoder's `kwargs`, for `[B, T]`, with the rows of prompts with media."""
    parts = list(_parts(items))
    embeds = kwargs["inputs_embeds"].clone()
    merged: dict[str, Any] = {"inputs_embeds": embeds}
    for rows, tokens, encoded in parts:
        embeds.flatten(0, 1)[rows] = encoded.embeds[tokens].to(embeds)
    for name in {name for *_, encoded in parts for name in encoded.rows}:
        like = next(encoded.rows[name] for *_, encoded in parts if name in encoded.rows)
        plain = kwargs.get(name)
        merged[name] = like.new_zeros(*embeds.shape[:2], *like.shape[1:]) if plain is None else plain.clone()
        for rows, tokens, encoded in parts:
            if name in encoded.rows:
                merged[name].flatten(0, 1)[rows] = encoded.rows[name][tokens].to(merged[name])
    return {**merged, **_positions(parts, kwargs), **_deep(parts, embeds)}


def _parts(items: list[ScheduledSequence]) -> Iterator[tuple[slice, slice, Encoded]]:
    """For each item with media: its packed rows, its tokens of the prompt, and what was encoded of the prompt."""
    for start, item in packed(items):
        if begins(item):
            media, first = item.sequence.media, item.sequence.num_computed
            tokens = slice(first, min(first + item.num_tokens, len(media.ids)))
            yield slice(start, start + tokens.stop - first), tokens, media.encoded


def _positions(parts: list[tuple[slice, slice, Encoded]], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    axes = max((len(encoded.positions) for *_, encoded in parts if encoded.positions is not None), default=0)
    if not axes:
        return {}
    plain = kwargs["position_ids"]
    positions = (plain[None] if plain.dim() == 2 else plain[-axes:]).expand(axes, *plain.shape[-2:]).clone()
    for rows, tokens, encoded in parts:
        if encoded.positions is not None:
            positions.flatten(1)[:, rows] = encoded.positions[:, tokens]
    return {"position_ids": positions[0] if axes == 1 else positions}


def _deep(parts: list[tuple[slice, slice, Encoded]], embeds: torch.Tensor) -> dict[str, Any]:
    """Deep features of the visual tokens among the packed ones."""
    deep = [(rows, tokens, encoded, encoded.visual) for rows, tokens, encoded in parts if encoded.visual is not None]
    if not deep:
        return {}
    mask = torch.zeros(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
    features: list[list[torch.Tensor]] = [[] for _ in deep[0][2].deep]
    for rows, tokens, encoded, visual in deep:
        mask.flatten()[rows] = visual[tokens]
        before = int(visual[: tokens.start].sum())
        count = int(visual[tokens].sum())
        for layer, each in zip(features, encoded.deep, strict=True):
            layer.append(each[before : before + count])
    return {DEEP_MASK: mask, DEEP: [torch.cat(layer) for layer in features]}
