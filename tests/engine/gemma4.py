"""Gemma 4 with eyes and ears: small random models like those of 2 and 31 billion parameters, and their processor."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import transformers
from transformers import PreTrainedTokenizerFast
from transformers.video_processing_utils import BaseVideoProcessor

from nbgen.engine import processor_folder
from tests.engine.family import model_of

#: What its tokenizer calls its special tokens.
NAMED: Mapping[str, str] = MappingProxyType(
    {
        **{"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"},
        **{"boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>"},
    }
)
VIDEO = "<|video|>"
#: What a folder says of videos, which no class here can write without torchvision.
FRAMES = {"video_processor_type": "Gemma4VideoProcessor", "patch_size": 4, "max_soft_tokens": 70, "num_frames": 4}
TEXT = {
    **{"bos_token_id": None, "pad_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 1024},
    **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "final_logit_softcapping": 30.0},
}
#: Layers have inputs of their own, and the last two the keys and values of those before them.
E2B = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
}
#: Values are keys in some layers, and in the others an image's tokens see those that follow.
B31 = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "use_bidirectional_attention": "vision",
}
VISION = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "position_embedding_size": 256},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4},
}
BINS = 16
AUDIO = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "output_proj_dims": 32},
    "subsampling_conv_channels": [BINS, 4],
}


def made(text: Mapping[str, Any]) -> Callable[[PreTrainedTokenizerFast], tuple[Any, Any]]:
    """Model and processor, whose layers are like these. Those like 31B's have no ears, though their processor has."""

    def make(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
        names = {key.removesuffix("_token"): token for key, token in {**NAMED, "video_token": VIDEO}.items()}
        ids = {f"{key}_token_id": tokens.convert_tokens_to_ids(token) for key, token in names.items()}
        ids["eoa_token_index"] = ids.pop("eoa_token_id")
        sizes = {"vocab_size": len(tokens), "vocab_size_per_layer_input": len(tokens)}
        config = transformers.Gemma4Config(
            text_config={**TEXT, **sizes, **text},
            vision_config=VISION,
            audio_config=AUDIO if text["hidden_size_per_layer_input"] else None,
            **ids,
        )
        images = transformers.Gemma4ImageProcessorPil(patch_size=VISION["patch_size"], max_soft_tokens=70)
        sounds = transformers.Gemma4AudioFeatureExtractor(feature_size=BINS)
        with processor_folder.without_videos():
            processor = transformers.Gemma4Processor(sounds, images, tokens, BaseVideoProcessor())
        return model_of(config), processor

    return make
