"""A checkpoint as the GGUF file that llama.cpp reads: Llama and Qwen3, weights as BF16 or Q8_0. Needs no torch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}


def converted(folder: Path, weights: str) -> Path:
    """The file of a checkpoint beside it, written if it is not there."""
    file = folder.with_name(f"{folder.name}-{weights}.gguf")
    if not file.is_file():
        unfinished = file.with_suffix(".unfinished")
        write(folder, unfinished, weights)
        unfinished.rename(file)
    return file


def write(folder: Path, file: Path, weights: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    _write_shape(writer, config)
    _write_vocabulary(writer, folder, config)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    kind = gguf.GGMLQuantizationType[weights]
    for name, values in _tensors(folder / "model.safetensors"):
        if architecture is gguf.MODEL_ARCH.LLAMA:
            values = _interleaved(name, values, config)
        kept = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(
            names.get_name(name, try_suffixes=(".weight",)), gguf.quants.quantize(values, kept), raw_dtype=kept
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])


def _tensors(file: Path) -> Iterator[tuple[str, numpy.ndarray]]:
    """Name and float32 values of each bfloat16 tensor, whose bits are the upper half of a float32's."""
    content = numpy.memmap(file, dtype=numpy.uint8, mode="r")
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:start].tobytes())
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}; only BF16 checkpoints are converted")
        first, last = entry["data_offsets"]
        halves = content[start + first : start + last].view(numpy.uint16)
        yield name, (halves.astype(numpy.uint32) << 16).view(numpy.float32).reshape(entry["shape"])


def _interleaved(name: str, values: numpy.ndarray, config: dict[str, Any]) -> numpy.ndarray:
    """Llama's queries and keys, whose rotary pairs stand side by side in GGUF."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = next((count for part, count in heads.items() if part in name), None)
    if count is None:
        return values
    return values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
