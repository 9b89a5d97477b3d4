"""Answers what SGLang's clients ask about a server: `/model_info`, `/server_info`. Names follow SGLang 0.5.23.

Every feature flag is truthful: an absent feature is false. No secret is shown, and no path except the model's name.
Knows neither HTTP nor the engine process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from nbgen import sampling_params
from nbgen.engine_config import BLOCK_SIZE, EngineConfig
from nbgen.engine_state import EngineStatus, ModelInfo
from nbgen.identifiers import IDENTIFIER
from nbgen.media_types import MAX_BYTES, MAX_MEDIA
from nbgen.protocols import json_body, openai, sglang, sglang_logprobs
from nbgen.protocols.sample import WEIGHT_VERSION

LIMITS: dict[str, Any] = {
    "prompts": sglang.MAX_PROMPTS,
    "n": sampling_params.MAX_N,
    "text_bytes": json_body.MAX_TEXT_BYTES,
    "json_depth": json_body.MAX_DEPTH,
    "json_keys": json_body.MAX_KEYS,
    "stop_strings": sampling_params.MAX_STOP_STRINGS,
    "stop_bytes": sampling_params.MAX_STOP_BYTES,
    "stop_token_ids": sampling_params.MAX_STOP_TOKEN_IDS,
    "logit_bias": sampling_params.MAX_LOGIT_BIAS,
    "top_logprobs_num": sglang_logprobs.MAX_TOP,
    "token_ids_logprob": sglang_logprobs.MAX_TOKEN_IDS,
    "openai_top_logprobs": openai.MAX_TOP_LOGPROBS,
    "rid": IDENTIFIER.pattern,
    "media": MAX_MEDIA,
    "media_bytes": MAX_BYTES,
}


class ServerOptions(NamedTuple):
    """What the server's owner decides about `/generate`, unless a request says otherwise.

    Chunks of a stream come every `interval` tokens and are cumulative unless `incremental`. `preferred` are sampling
    parameters. `truncate` cuts prompts and max_new_tokens that the context does not hold: of OpenAI's dialect, too,
    but for the prompts of its responses, which say themselves whether they may be cut.
    """

    interval: int = 1
    incremental: bool = False
    preferred: dict[str, Any] = {}  # noqa: RUF012
    truncate: bool = False


def model_info(config: EngineConfig, model: ModelInfo | None, options: ServerOptions) -> bytes:
    """`/model_info`: the configuration, and the model's properties once it is loaded."""
    return msgspec.json.encode(
        _served(config, model)
        | {
            "is_generation": model is None or not model.is_embedding,
            "preferred_sampling_params": options.preferred or None,
            "has_image_understanding": model is not None and "image" in model.media,
            "has_audio_understanding": model is not None and "audio" in model.media,
            "model_type": model.model_type if model else None,
            "architectures": model.architectures if model else None,
        }
    )


def server_info(
    config: EngineConfig,
    model: ModelInfo | None,
    status: EngineStatus | None,
    *,
    version: str,
    state: str,
    options: ServerOptions,
    limits: dict[str, Any],
    started: float,
    command: str | None,
) -> bytes:
    """`/server_info`: options, features, limits and the engine's status. Loads nothing.

    `started` is in seconds since 1970; `command` is the one that starts such a server, None inside Jupyter.
    """
    fields: dict[str, Any] = {
        "status": state,
        "version": version,
        "startup_time": started,
        "launch_command": command,
        "preferred_sampling_params": options.preferred or None,
        "allow_auto_truncate": options.truncate,
        "stream_interval": options.interval,
        "incremental_streaming_output": options.incremental,
        "limits": {**LIMITS, **limits, "queue_seconds": config.queue_seconds, "run_seconds": config.run_seconds},
        "internal_states": [_internal_state(config, status or EngineStatus(), model)],
    }
    fields |= _served(config, model) | _sizes(config, model, status) | _features(config, model)
    return msgspec.json.encode(fields)


def _served(config: EngineConfig, model: ModelInfo | None) -> dict[str, Any]:
    """Fields of both routes. No parser is named: the chat template shows how a model writes reasoning and calls."""
    return {
        "model_path": config.model,
        "served_model_name": model.name if model else config.model,
        "tokenizer_path": config.model,
        "weight_version": WEIGHT_VERSION,
        "reasoning_parser": None,
        "tool_call_parser": None,
        "load_format": "auto",
        "disaggregation_mode": "null",
    }


def _sizes(config: EngineConfig, model: ModelInfo | None, status: EngineStatus | None) -> dict[str, Any]:
    """Sizes and limits of the model, and how it is computed."""
    context = model.context_length if model else config.context_length
    longest = min(context, model.kv_tokens) if model and context and model.kv_tokens else context
    device, cuts_prompts = model.device if model else config.device, model is None or model.cuts_prompts
    return {
        "device": device,
        "dtype": model.dtype if model else config.dtype,
        "kv_cache_dtype": (model and model.kv_cache_dtype) or config.kv_cache_dtype,
        "quantization": model.quantization if model else config.quantization,
        "threads": model.threads if model else config.threads,
        "tier": model.tier if model else None,
        "layers_in": model.layers_in if model else None,
        "context_length": context,
        "max_req_input_len": longest and longest - 1,
        "max_total_num_tokens": _kv_tokens(model, status),
        "max_running_requests": config.max_running,
        "max_queued_requests": config.max_waiting,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "chunked_prefill_size": config.chunk_on(device) if cuts_prompts else -1,
        "speculative_algorithm": "NGRAM" if model and model.draft_tokens else None,
        "speculative_num_draft_tokens": (model.draft_tokens if model else config.draft_tokens) or None,
        # Prefixes are shared token by token, whatever the block size.
        "page_size": 1,
        "block_size": BLOCK_SIZE,
    }


def _features(config: EngineConfig, model: ModelInfo | None) -> dict[str, Any]:
    has_states = model is None or (model.hidden_size > 0 and not model.is_embedding)
    return {
        "skip_tokenizer_init": False,
        "is_embedding": model is not None and model.is_embedding,
        "disable_radix_cache": model is not None and not model.caches_prefixes,
        "sampling_defaults": config.sampling_defaults,
        "grammar_backend": config.grammar_backend,
        "enable_metrics": True,
        "enable_priority_scheduling": True,
        "enable_deterministic_inference": model is not None and model.layers_in == "C++",
        "enable_lora": True,
        "enable_torch_compile": model.compiled if model else config.compile,
        "enable_custom_logit_processor": config.enable_custom_logit_processor,
        "enable_return_hidden_states": has_states,
        "return_hidden_states_mode": "full" if has_states else None,
        "enable_return_routed_experts": model is not None and model.routed_experts > 0,
    }


def _kv_tokens(model: ModelInfo | None, status: EngineStatus | None) -> int:
    """Tokens that fit into the KV cache now: 0 while it is released, and perhaps another number once it is resumed."""
    if status is not None:
        return status.kv_tokens
    return model.kv_tokens if model else 0


def _internal_state(config: EngineConfig, status: EngineStatus, model: ModelInfo | None) -> dict[str, Any]:
    return {
        "last_gen_throughput": status.throughput,
        "effective_max_running_requests_per_dp": (model and model.max_running) or config.max_running,
        "num_running_reqs": status.running,
        "num_queue_reqs": status.waiting,
        "num_used_tokens": status.used_tokens,
        "paused": status.paused,
        "num_retractions": status.preemptions,
        "avg_spec_accept_length": status.accept_length or None,
        "memory_usage": {
            "weight": round((model.weight_bytes if model else 0) / 2**30, 3),
            "token_capacity": status.kv_tokens,
            "used": round(status.memory_used / 2**30, 3),
            "total": round(status.memory_total / 2**30, 3),
        },
    }
