"""Every family with eyes or ears that is tried: a small random checkpoint, model and processor, as a user's folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.video_processing_utils import BaseVideoProcessor

from nbgen.engine import processor_folder
from tests.conftest import SIZES, edit, made_once
from tests.engine import gemma4, torchvision_families
from tests.engine.family import NORMALIZED, TEMPLATE, VISION, Family, model_of, tokenizer

#: What a folder says of videos, which no class here can write without torchvision.
QWEN_VIDEO = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3}
QWEN2_VIDEO = {**QWEN_VIDEO, "video_processor_type": "Qwen2VLVideoProcessor"}
QWEN3_VIDEO = {**QWEN_VIDEO, "video_processor_type": "Qwen3VLVideoProcessor"}
QWEN2_VIDEO["size"] = {"shortest_edge": 56 * 56, "longest_edge": 84 * 84}
QWEN3_VIDEO["size"] = {"shortest_edge": 4 * 56 * 56, "longest_edge": 4 * 84 * 84}
VIDEOS = {"qwen2_vl": QWEN2_VIDEO, "qwen2_5_vl": QWEN2_VIDEO, "qwen3_vl": QWEN3_VIDEO, "qwen3_5": QWEN3_VIDEO}
VIDEOS |= {"gemma4_e2b": gemma4.FRAMES, "gemma4_31b": gemma4.FRAMES}

DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def save(folder: Path, name: str) -> Path:
    """The family's checkpoint. The same every time."""
    return made_once(folder, ("multimodal", name), lambda place: _make(place, name))


def _make(folder: Path, name: str) -> None:
    family = MULTIMODAL[name]
    torch.manual_seed(0)
    model, processor = family.make(tokenizer(family))
    model = model.float()
    # Larger weights than an initializer's, so that the scores have clear winners, which what is seen decides.
    words = 0.05 if model.get_output_embeddings().weight is model.get_input_embeddings().weight else 0.3
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15 if "embed" not in key else words)
    model.save_pretrained(folder)
    processor.chat_template = TEMPLATE.format(family.video, family.placeholder)
    processor.save_pretrained(folder)
    if of_videos := (VIDEOS | torchvision_families.OF_VIDEOS).get(name):
        edit(folder / "processor_config.json", video_processor=of_videos)


def _qwen(kind: str) -> Callable[[PreTrainedTokenizerFast], tuple[Any, Any]]:
    def make(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
        rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
        text = {**SIZES, "vocab_size": len(tokens), "rope_parameters": rope}
        vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
        if kind == "qwen2_vl":
            vision = {"depth": 2, "embed_dim": 32, "mlp_ratio": 2, "num_heads": 2, "hidden_size": 64}
        if kind == "qwen2_5_vl":
            vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
        if kind == "qwen3_vl":
            text |= {"head_dim": 16}
            vision |= {"patch_size": 14, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
        if kind == "qwen3_5":
            text |= {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"], **DELTA}
            vision |= {"patch_size": 14, "num_position_embeddings": 64}
        names = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>"}
        names |= {"vision_end": "<|vision_end|>"}
        ids = {f"{key}_token_id": tokens.convert_tokens_to_ids(token) for key, token in names.items()}
        config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=vision, **ids)
        pixels = transformers.Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112})
        name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "qwen3_5": "Qwen3VL"}[kind]
        with processor_folder.without_videos():
            processor = getattr(transformers, f"{name}Processor")(pixels, tokens, BaseVideoProcessor())
        return model_of(config), processor

    return make


def _gemma3(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
    text["layer_types"] = ["sliding_attention", "full_attention"]
    vision = {**VISION, "image_size": 56, "patch_size": 14}
    ids = {
        "image_token_id": tokens.convert_tokens_to_ids("<image_soft_token>"),
        "boi_token_id": tokens.convert_tokens_to_ids("<start_of_image>"),
        "eoi_token_id": tokens.convert_tokens_to_ids("<end_of_image>"),
    }
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **ids)
    pixels = transformers.Gemma3ImageProcessorPil(size={"height": 56, "width": 56}, **NORMALIZED)
    return model_of(config), transformers.Gemma3Processor(pixels, tokens, image_seq_length=4)


def _llava(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "llama"}
    vision = {**VISION, "image_size": 28, "patch_size": 14, "projection_dim": 32, "model_type": "clip_vision_model"}
    place = tokens.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_id=place, vision_feature_layer=-1
    )
    size = {"height": 28, "width": 28}
    pixels = transformers.CLIPImageProcessorPil(size=size, crop_size=size)
    processor = transformers.LlavaProcessor(
        pixels, tokens, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return model_of(config), processor


def _idefics3(kind: str) -> Callable[[PreTrainedTokenizerFast], tuple[Any, Any]]:
    def make(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
        text = {**SIZES, "vocab_size": len(tokens), "model_type": "llama"}
        vision = {**VISION, "image_size": 56, "patch_size": 14}
        place = tokens.convert_tokens_to_ids("<image>")
        config = getattr(transformers, f"{kind}Config")(
            text_config=text, vision_config=vision, image_token_id=place, scale_factor=2, pad_token_id=0
        )
        pixels = getattr(transformers, f"{kind}ImageProcessorPil")(
            size={"longest_edge": 112}, max_image_size={"longest_edge": 56}, **NORMALIZED
        )
        videos = [BaseVideoProcessor()] if kind == "SmolVLM" else []
        with processor_folder.without_videos():
            processor = getattr(transformers, f"{kind}Processor")(pixels, tokens, *videos, image_seq_len=4)
        return model_of(config), processor

    return make


def _internvl(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "qwen2"}
    vision = {**VISION, "image_size": [56, 56], "patch_size": [14, 14]}
    place = tokens.convert_tokens_to_ids("<IMG_CONTEXT>")
    config = transformers.InternVLConfig(text_config=text, vision_config=vision, image_token_id=place)
    pixels = transformers.GotOcr2ImageProcessorPil(
        size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4
    )
    with processor_folder.without_videos():
        processor = transformers.InternVLProcessor(pixels, tokens, BaseVideoProcessor(), image_seq_length=4)
    return model_of(config), processor


def _llava_next(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "mistral"}
    vision = {**VISION, "image_size": 28, "patch_size": 14, "projection_dim": 32, "model_type": "clip_vision_model"}
    place, grid = tokens.convert_tokens_to_ids("<image>"), [[28, 56], [56, 28], [56, 56]]
    config = transformers.LlavaNextConfig(
        text_config=text, vision_config=vision, image_token_index=place, image_grid_pinpoints=grid
    )
    size = {"height": 28, "width": 28}
    pixels = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": 28}, crop_size=size, image_grid_pinpoints=grid
    )
    processor = transformers.LlavaNextProcessor(
        pixels, tokens, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return model_of(config), processor


def _mistral3(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "head_dim": 16, "model_type": "mistral"}
    vision = {**VISION, "image_size": 112, "patch_size": 14, "head_dim": 16, "model_type": "pixtral"}
    config = transformers.Mistral3Config(
        text_config=text, vision_config=vision, image_token_id=tokens.convert_tokens_to_ids("[IMG]")
    )
    return model_of(config), _pixtral_processor(tokens, spatial_merge_size=2)


def _pixtral(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "mistral"}
    vision = {**VISION, "image_size": 112, "patch_size": 14, "head_dim": 16, "model_type": "pixtral"}
    place = tokens.convert_tokens_to_ids("[IMG]")
    chosen = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_id=place, **chosen)
    return model_of(config), _pixtral_processor(tokens, spatial_merge_size=1)


def _pixtral_processor(tokens: PreTrainedTokenizerFast, spatial_merge_size: int) -> Any:
    pixels = transformers.PixtralImageProcessorPil(size={"longest_edge": 84}, patch_size=14)
    made = processor_folder.pixtral_class()
    return made(pixels, tokens, patch_size=14, spatial_merge_size=spatial_merge_size)


def _hearing(chunk: int = 1) -> Any:
    """Spectrograms of sounds of up to `chunk` seconds, with few bins."""
    return transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=chunk)


def _qwen2_audio(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "qwen2"}
    ears = {"num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2}
    ears |= {"encoder_ffn_dim": 64, "max_source_positions": 50}
    place = tokens.convert_tokens_to_ids("<|AUDIO|>")
    config = transformers.Qwen2AudioConfig(text_config=text, audio_config=ears, audio_token_index=place)
    return model_of(config), transformers.Qwen2AudioProcessor(_hearing(), tokens)


def _glmasr(tokens: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    text = {**SIZES, "vocab_size": len(tokens), "model_type": "llama"}
    ears = {**VISION, "num_key_value_heads": 2, "intermediate_size": 128, "num_mel_bins": 16}
    ears |= {"max_position_embeddings": 100}
    place = tokens.convert_tokens_to_ids("<|pad|>")
    config = transformers.GlmAsrConfig(text_config=text, audio_config=ears, audio_token_id=place)
    return model_of(config), transformers.GlmAsrProcessor(_hearing(2), tokens)


def _gemma4(medium: str, text: Mapping[str, Any]) -> Family:
    special, named = [*gemma4.NAMED.values(), gemma4.VIDEO], gemma4.NAMED
    return Family(
        medium,
        f"<|{medium}|>",
        special,
        gemma4.made(text),
        named=named,
        video=gemma4.VIDEO,
        since="5.24",
        kind="gemma4",
    )


VL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
TILES = [f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)]
MULTIMODAL: dict[str, Family] = {
    "qwen2_vl": Family("image", QWEN, VL, _qwen("qwen2_vl")),
    "qwen2_5_vl": Family("image", QWEN, VL, _qwen("qwen2_5_vl")),
    "qwen3_vl": Family("image", QWEN, VL, _qwen("qwen3_vl")),
    "gemma3": Family(
        "image",
        "<start_of_image>",
        ["<start_of_image>", "<end_of_image>", "<image_soft_token>"],
        _gemma3,
        named={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    ),
    "gemma4_e2b": _gemma4("image", gemma4.E2B),
    "gemma4_31b": _gemma4("image", gemma4.B31),
    "mistral3": Family("image", "[IMG]", ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], _mistral3),
    "pixtral": Family("image", "[IMG]", ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], _pixtral),
    "llava": Family("image", "<image>", ["<image>"], _llava),
    "idefics3": Family(
        "image",
        "<image>",
        ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *TILES],
        _idefics3("Idefics3"),
        reads_typed=False,
        since="5.18",
    ),
    "smolvlm": Family(
        "image",
        "<image>",
        ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>", *TILES],
        _idefics3("SmolVLM"),
        video="<video>",
        since="5.18",
    ),
    "qwen3_5": Family("image", QWEN, VL, _qwen("qwen3_5"), tier="B"),
    "internvl": Family(
        "image",
        "<IMG_CONTEXT>",
        ["<IMG_CONTEXT>", "<img>", "</img>", "<video>"],
        _internvl,
        video="<video>",
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        reads_typed=False,
    ),
    "llava_next": Family("image", "<image>", ["<image>"], _llava_next),
    "qwen2_audio": Family(
        "audio", "<|audio_bos|><|AUDIO|><|audio_eos|>", ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"], _qwen2_audio
    ),
    "gemma4_sounds": _gemma4("audio", gemma4.E2B),
    "glmasr": Family("audio", "<|pad|>", ["<|pad|>"], _glmasr, several=False),
    **torchvision_families.IMAGES,
    **torchvision_families.VIDEOS,
}
