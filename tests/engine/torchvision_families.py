"""Families whose images or videos transformers processes with torchvision alone: small random models and processors."""

from collections.abc import Callable
from typing import Any

import transformers
from transformers import PreTrainedTokenizerFast
from transformers.video_processing_utils import BaseVideoProcessor

from nbgen.engine import processor_folder
from tests.conftest import SIZES
from tests.engine.family import NORMALIZED, VISION, Family, model_of

#: Of an image, and of at least two that are counted together.
SMALL = {"shortest_edge": 56 * 56, "longest_edge": 84 * 84}
SQUARE = {"height": 56, "width": 56}
KIMI_SIZE = {"size": {"max_height": 8, "max_width": 8}, "max_patches": 16}
OF_TWO = {"shortest_edge": 4 * 56 * 56, "longest_edge": 4 * 84 * 84}


def _lfm2_vl(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {
        **SIZES,
        "vocab_size": len(tokens),
        "layer_types": ["conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    }
    vision = {**VISION, "num_patches": 16, "patch_size": 14}
    place = tokens.convert_tokens_to_ids("<image>")
    config = transformers.Lfm2VlConfig(
        text_config=text, vision_config=vision, image_token_id=place, projector_hidden_size=32
    )
    tiles = {"tile_size": 56, "min_image_tokens": 2, "max_image_tokens": 4, "encoder_patch_size": 14}
    pixels = transformers.Lfm2VlImageProcessor(**tiles, max_tiles=4, max_pixels_tolerance=1.0)
    return model_of(config), transformers.Lfm2VlProcessor(pixels, tokens)


def _cohere2_vision(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {
        **SIZES,
        "vocab_size": len(tokens),
        "model_type": "cohere2",
        "sliding_window": 8,
        "sliding_window_pattern": 2,
    }
    vision = {**VISION, "image_size": 56, "patch_size": 14, "model_type": "siglip_vision_model"}
    place = tokens.convert_tokens_to_ids("<|IMG_PATCH|>")
    config = transformers.Cohere2VisionConfig(
        text_config=text, vision_config=vision, image_token_id=place, alignment_intermediate_size=64
    )
    pixels = transformers.Cohere2VisionImageProcessor(size=SQUARE, patch_size=2, max_patches=4)
    return model_of(config), transformers.Cohere2VisionProcessor(pixels, tokens)


def _kimi_k25(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "deepseek_v3", "num_key_value_heads": 4}
    text |= {
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    }
    text |= {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_nope_head_dim": 16}
    text |= {"first_k_dense_replace": 1}
    vision = {**VISION, "pos_emb_height": 8, "pos_emb_width": 8}
    names = {"image": "<|media_pad|>", "video": "<|kimi_k25_video_placeholder|>"}
    names |= {"vision_start": "<|media_begin|>", "vision_end": "<|media_end|>"}
    ids = {f"{name}_token_id": tokens.convert_tokens_to_ids(token) for name, token in names.items()}
    config = transformers.Kimi_K25Config(
        text_config=text, vision_config=vision, projection_hidden_size=32, tie_word_embeddings=False, **ids
    )
    pixels = transformers.Kimi_K25ImageProcessor(**KIMI_SIZE)
    return model_of(config), transformers.Kimi_K25Processor(pixels, tokens, BaseVideoProcessor())


def _minimax_m3_vl(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "head_dim": 16, "rotary_dim": 16, "dense_intermediate_size": 64}
    text |= {"num_experts_per_tok": 2, "num_local_experts": 4, "shared_intermediate_size": 32}
    text |= {"mlp_layer_types": ["dense", "sparse"], "layer_types": ["full_attention"] * 2}
    ids = {f"{kind}_token_index": tokens.convert_tokens_to_ids(f"]<]{kind}[>[") for kind in ("image", "video")}
    config = transformers.MiniMaxM3VLConfig(
        text_config=text, vision_config={**VISION, "image_size": 112}, projector_hidden_size=64, **ids
    )
    pixels = transformers.MiniMaxM3VLImageProcessor(size=OF_TWO)
    return model_of(config), transformers.MiniMaxM3VLProcessor(pixels, tokens, BaseVideoProcessor())


def _step3p7(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "head_dim": 16, "mlp_layer_types": ["dense", "sparse"]}
    text |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "share_expert_dim": 32}
    text |= {"num_experts_per_tok": 2, "n_routed_experts": 4, "moe_intermediate_size": 32}
    vision = {**VISION, "image_size": 112, "mlp_ratio": 2.0, "max_position_embeddings": 64}
    place = tokens.convert_tokens_to_ids("<im_patch>")
    config = transformers.Step3p7Config(text_config=text, vision_config=vision, image_token_id=place)
    pixels = transformers.Step3p7ImageProcessor(size={"height": 112, "width": 112}, patch_size=56)
    return model_of(config), transformers.Step3p7Processor(pixels, tokens)


def _llava_onevision(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "qwen2"}
    vision = {
        **VISION,
        "image_size": 56,
        "patch_size": 14,
        "vision_use_head": False,
        "model_type": "siglip_vision_model",
    }
    ids = {f"{kind}_token_index": tokens.convert_tokens_to_ids(f"<{kind}>") for kind in ("image", "video")}
    grid = [[56, 56], [56, 112], [112, 56], [112, 112]]
    config = transformers.LlavaOnevisionConfig(
        text_config=text, vision_config=vision, image_grid_pinpoints=grid, vision_feature_layer=-1, **ids
    )
    pixels = transformers.LlavaOnevisionImageProcessorPil(size=SQUARE, image_grid_pinpoints=grid, **NORMALIZED)
    with processor_folder.without_videos():
        processor = transformers.LlavaOnevisionProcessor(
            pixels, tokens, BaseVideoProcessor(), num_image_tokens=16, vision_feature_select_strategy="full"
        )
    return model_of(config), processor


def _glm(kind: str) -> Callable[[PreTrainedTokenizerFast], tuple[Any, Any]]:
    def make(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
        rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
        text = {**SIZES, "vocab_size": len(tokens), "rope_parameters": rope}
        vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
        names = {"image": "<|image|>", "video": "<|video|>"}
        for medium in ("image", "video"):
            names |= {f"{medium}_start": f"<|begin_of_{medium}|>", f"{medium}_end": f"<|end_of_{medium}|>"}
        ids = {f"{name}_token_id": tokens.convert_tokens_to_ids(token) for name, token in names.items()}
        kinds = {"text_config": text, "vision_config": vision | {"image_size": 56}}
        if kind == "Glm46V":
            kinds = {
                "text_config": text | {"model_type": "glm4v_text"},
                "vision_config": kinds["vision_config"] | {"model_type": "glm4v_vision"},
            }
        config = getattr(transformers, f"{kind}Config")(**kinds, **ids)
        pixels = getattr(transformers, f"{kind}ImageProcessorPil")(size=OF_TWO)
        with processor_folder.without_videos():
            processor = getattr(transformers, f"{kind}Processor")(pixels, tokens, BaseVideoProcessor())
        return model_of(config), processor

    return make


def _video_llama_3(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "qwen2"}
    ids = {f"{kind}_token_id": tokens.convert_tokens_to_ids(f"<|{kind}_pad|>") for kind in ("image", "video")}
    config = transformers.VideoLlama3Config(text_config=text, vision_config={**VISION, "patch_size": 14}, **ids)
    pixels = transformers.VideoLlama3ImageProcessorPil(size=SMALL)
    with processor_folder.without_videos():
        processor = transformers.VideoLlama3Processor(pixels, tokens, BaseVideoProcessor())
    return model_of(config), processor


TILES = [f"<|img_row_{row}_col_{col}|>" for row in range(1, 5) for col in range(1, 5)]
COHERE = {
    "image_token": "<|IMG_PATCH|>",
    "boi_token": "<|START_OF_IMG|>",
    "eoi_token": "<|END_OF_IMG|>",
    "img_line_break_token": "<|IMG_LINE_BREAK|>",
}
KIMI = ["<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|kimi_k25_video_placeholder|>"]
KIMI_IMAGE = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
MINIMAX = [f"]<]{name}[>[" for name in ("image", "video", "start of image", "end of image")]
STEP = [f"<{name}>" for name in ("im_patch", "patch_start", "patch_end", "patch_newline", "im_start", "im_end")]
GLM = [f"<|{name}{kind}|>" for kind in ("image", "video") for name in ("begin_of_", "", "end_of_")]
GLM_IMAGE, GLM_VIDEO = "".join(GLM[:3]), "".join(GLM[3:])
PADS = ["<|image_pad|>", "<|video_pad|>"]
IMAGES: dict[str, Family] = {
    "lfm2_vl": Family(
        "image",
        "<image>",
        ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *TILES],
        _lfm2_vl,
        tier="B",
        reads_typed=False,
    ),
    "cohere2_vision": Family("image", COHERE["image_token"], [*COHERE.values()], _cohere2_vision, named=COHERE),
    "kimi_k25": Family("image", KIMI_IMAGE, KIMI, _kimi_k25, video=KIMI[-1]),
    "minimax_m3_vl": Family("image", MINIMAX[0], MINIMAX, _minimax_m3_vl, video=MINIMAX[1]),
    "step3p7": Family("image", STEP[0], STEP, _step3p7),
}
VIDEOS: dict[str, Family] = {
    "kimi_k25": IMAGES["kimi_k25"],
    "llava_onevision": Family("image", "<image>", ["<image>", "<video>"], _llava_onevision, video="<video>"),
    "glm4v": Family("image", GLM_IMAGE, GLM, _glm("Glm4v"), video=GLM_VIDEO),
    "glm46v": Family("image", GLM_IMAGE, GLM, _glm("Glm46V"), video=GLM_VIDEO),
    "video_llama_3": Family("image", PADS[0], PADS, _video_llama_3, video=PADS[1]),
}
#: What a folder says of videos.
OF_VIDEOS: dict[str, dict[str, Any]] = {
    "kimi_k25": {"video_processor_type": "Kimi_K25VideoProcessor", **KIMI_SIZE},
    "minimax_m3_vl": {"video_processor_type": "MiniMaxM3VLVideoProcessor", "size": OF_TWO},
    "llava_onevision": {"video_processor_type": "LlavaOnevisionVideoProcessor", "size": SQUARE, **NORMALIZED},
    "glm4v": {"video_processor_type": "Glm4vVideoProcessor", "size": OF_TWO},
    "internvl": {"video_processor_type": "InternVLVideoProcessor", "size": SQUARE},
    "smolvlm": {
        "video_processor_type": "SmolVLMVideoProcessor",
        "size": {"longest_edge": 56},
        "max_image_size": {"longest_edge": 56},
        **NORMALIZED,
    },
    "glm46v": {"video_processor_type": "Glm46VVideoProcessor", "size": OF_TWO},
    "video_llama_3": {"video_processor_type": "VideoLlama3VideoProcessor", "size": SMALL},
}
