"""SGLang's fields that ask for what this server does not do, with the values that ask for nothing and are accepted.

Knows no other field: what has no visible effect on a single server is accepted and passed over elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbgen.protocols.json_body import refuse_unsupported

Table = Mapping[str, tuple[Any, ...]]

FLAG: tuple[Any, ...] = (None, False)
#: A watermark that is not asked for.
NO_WATERMARK: tuple[Any, ...] = (None, False, {"enabled": False})
#: Fields that `/generate` and OpenAI's routes have in common.
IN_COMMON: Table = {
    "session_params": (None,),
    "return_flat_raw_output_top_logprobs": FLAG,
    "return_flat_raw_top_logprobs_b64": FLAG,
    "return_sampling_mask": FLAG,
    "sampling_logprobs_mode": (None,),
    "watermark": NO_WATERMARK,
    "use_audio_in_video": FLAG,
    "video_config": (None, {}),
    "images_config": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "max_dynamic_patch": (None,),
    "min_dynamic_patch": (None,),
}
#: Fields of `/generate`.
IN_GENERATE: Table = {
    **IN_COMMON,
    "return_flat_raw_top_logprobs": FLAG,
    "return_entropy": FLAG,
    "return_bytes": FLAG,
    "return_indexer_topk": FLAG,
    "max_thinking_tokens": (None,),
    "lora_id": (None,),
    "positional_embed_overrides": (None,),
    "multi_item_delimiter_indices": (None,),
    "token_indices_to_pool": (None,),
    "image_max_dynamic_patch": (None,),
    "video_max_dynamic_patch": (None,),
}
IN_SAMPLING: Table = {
    "beam_width": (None, 0, 1),
    "watermark": NO_WATERMARK,
    "choice": (None, []),
}
#: Fields of `/v1/embeddings`.
IN_EMBEDDINGS: Table = {
    "embed_overrides": (None, []),
    "embed_override_token_id": (None,),
}
#: Fields of `/encode` and `/classify`.
IN_ENCODE: Table = {
    "input_embeds": (None,),
    "is_cross_encoder_request": FLAG,
    "lora_path": (None, ""),
    "lora_id": (None,),
    **IN_EMBEDDINGS,
    "positional_embed_overrides": (None,),
    "multi_item_delimiter_indices": (None,),
    "token_indices_to_pool": (None,),
    "decision_layout": (None,),
    "return_pooled_hidden_states": FLAG,
    "return_prompt_token_ids": FLAG,
}


def refuse(fields: Mapping[str, Any], table: Table) -> None:
    """Raise InvalidRequest for a field of the table, whose value may be a list with one for each prompt."""
    for name in table:
        value = fields.get(name)
        given = value if isinstance(value, list) and value not in table[name] else [value]
        for each in given:
            refuse_unsupported({name: each}, table)
