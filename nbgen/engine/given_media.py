"""Media that come as tensors: the output of a model's processor, or the embeddings of their placeholders."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

import torch

from nbgen.engine.media_prompt import MediaPrompt
from nbgen.engine.tensor_module import DTYPES, as_torch
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, Media, Tensor
from nbgen.tensor_spec import ELEMENT_BYTES

#: How the names of tensors end that tell how many patches media are cut into, by time, height and width.
GRIDS = ("grid_thw", "grid_thws", "grid_hw", "spatial_shapes")
#: The most patches that a token stands for: models join 4, or 16 with those of other frames.
PATCHES = 64


def prompt(
    request: GenerateRequest, encode: Callable[[str], list[int]], placeholders: Mapping[int, str]
) -> MediaPrompt:
    """The prompt, in which the client has expanded placeholders; `encode` makes ids of text. Raises InvalidRequest."""
    media = request.media
    _check(request)
    inputs: dict[str, torch.Tensor] = {}
    features: dict[str, torch.Tensor] = {}
    for each in media:
        tensors = {tensor.name: _tensor(tensor) for tensor in each.tensors}
        if each.format == "precomputed_embedding":
            features[each.type] = _feature(tensors.pop("feature", None), each)
        inputs |= tensors
    own = inputs.pop("input_ids", None)
    inputs.pop("attention_mask", None)
    if own is not None and own.is_floating_point():
        raise InvalidRequest("the input_ids that came with media must be whole numbers", field=f"{media[0].type}_data")
    if request.input_ids is not None:
        ids = request.input_ids
    else:
        ids = encode(request.text or "") if own is None else own.flatten().tolist()
    _check_grids(inputs, len(ids), f"{media[0].type}_data")
    counts = Counter(map(placeholders.get, ids))
    for kind, feature in features.items():
        if len(feature) != counts[kind]:
            raise InvalidRequest(
                f"the feature has {len(feature)} rows; the prompt has {counts[kind]} placeholders of type {kind}",
                field=f"{kind}_data",
            )
    return MediaPrompt.of(ids, media, placeholders.get, inputs, features)


def _check(request: GenerateRequest) -> None:
    counts = Counter(each.type for each in request.media)
    if max(counts.values()) > 1 or any(not each.tensors for each in request.media):
        raise InvalidRequest(
            "processor_output and precomputed_embedding stand for all media of their type: send one item, "
            f"not {len(request.media)}",
            field=f"{request.media[0].type}_data",
        )
    if request.messages is not None:
        raise InvalidRequest("media given as tensors need a prompt given as input_ids or text", field="messages")


def _check_grids(inputs: Mapping[str, torch.Tensor], tokens: int, field: str) -> None:
    """Raise InvalidRequest for a grid of more patches than so many tokens can stand for.

    Towers first make positions of all patches that a grid tells of, however few numbers came with it.
    """
    for name, grid in inputs.items():
        if name.endswith(GRIDS) and not grid.double().abs().clamp(min=1).prod(-1).sum() <= PATCHES * tokens:
            raise InvalidRequest(
                f"{name} tells of more patches than the prompt's {tokens} tokens stand for, at most {PATCHES} each: "
                "send it as the processor made it for this prompt",
                field=field,
            )


def _tensor(tensor: Tensor) -> torch.Tensor:
    size = math.prod(tensor.shape) * ELEMENT_BYTES.get(tensor.datatype, 0)
    if tensor.datatype not in DTYPES or size != len(tensor.data):
        raise InvalidRequest(
            f"{tensor.name} of {tensor.datatype} and shape {list(tensor.shape)} has {len(tensor.data)} bytes",
            field="image_data",
        )
    return as_torch(tensor)


def _feature(feature: torch.Tensor | None, media: Media) -> torch.Tensor:
    if feature is None or feature.dim() < 2 or not feature.is_floating_point():
        raise InvalidRequest(
            "a precomputed_embedding needs a feature, numbers of the shape [tokens, width]", field=f"{media.type}_data"
        )
    return feature.flatten(0, -2)
