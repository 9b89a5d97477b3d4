"""What the server says of itself, before and after a model is loaded."""

import json
from typing import Any

import msgspec

from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineStatus, ModelInfo
from nbgen.protocols import sglang_info
from nbgen.protocols.sglang_info import ServerOptions

MODEL = ModelInfo(
    name="m",
    model_type="llama",
    architectures=["LlamaForCausalLM"],
    vocab_size=10,
    context_length=512,
    device="cpu",
    dtype="float32",
    quantization="gptq (4 bits)",
    tier="A",
    has_chat_template=False,
    kv_tokens=4096,
    kv_cache_dtype="bfloat16",
    threads=2,
)


OPTIONS = ServerOptions(preferred={"temperature": 0.5})


def info(model: ModelInfo | None, status: EngineStatus | None = None) -> dict[str, Any]:
    body = sglang_info.server_info(
        EngineConfig(model="m"),
        model,
        status,
        version="1",
        state="ready",
        options=OPTIONS,
        limits={"reader_seconds": 30},
        started=1.5,
        command=None,
    )
    return json.loads(body)


def test_model_info_answers_before_anything_is_loaded() -> None:
    before = json.loads(sglang_info.model_info(EngineConfig(model="m"), None, OPTIONS))
    assert (before["model_path"], before["model_type"], before["is_generation"]) == ("m", None, True)
    assert json.loads(sglang_info.model_info(EngineConfig(model="m"), MODEL, OPTIONS))["model_type"] == "llama"


def test_server_info_has_its_types_before_and_after_a_load() -> None:
    assert (info(None)["max_total_num_tokens"], info(None)["kv_cache_dtype"]) == (0, "auto")
    loaded = info(MODEL, EngineStatus(running=1, blocks_total=10, blocks_free=7, throughput=5.0))
    assert (loaded["max_total_num_tokens"], loaded["context_length"], loaded["threads"]) == (160, 512, 2)
    assert (loaded["quantization"], loaded["kv_cache_dtype"]) == ("gptq (4 bits)", "bfloat16")
    assert info(MODEL)["max_total_num_tokens"] == 4096, "as the engine said before its first status"
    assert info(MODEL, EngineStatus())["max_total_num_tokens"] == 0, "released"
    assert loaded["preferred_sampling_params"] == {"temperature": 0.5}
    (state,) = loaded["internal_states"]
    assert (state["num_running_reqs"], state["num_used_tokens"], state["last_gen_throughput"]) == (1, 48, 5.0)
    assert state["memory_usage"]["token_capacity"] == 160
    assert [loaded[name] for name in ("tp_size", "pp_size", "dp_size", "load_format")] == [1, 1, 1, "auto"]
    assert loaded["limits"]["queue_seconds"] == 60
    assert loaded["limits"]["n"] == 128
    assert (loaded["startup_time"], loaded["launch_command"]) == (1.5, None)


def test_limits_are_those_of_the_model_that_is_loaded() -> None:
    names = ("max_req_input_len", "chunked_prefill_size")
    assert [info(MODEL)[name] for name in names] == [511, 512]
    cramped = info(msgspec.structs.replace(MODEL, tier="C", kv_tokens=96, max_running=2, cuts_prompts=False))
    assert [cramped[name] for name in names] == [95, -1]
    assert cramped["internal_states"][0]["effective_max_running_requests_per_dp"] == 2


def test_guesses_are_told() -> None:
    plain, guessing = info(MODEL), info(msgspec.structs.replace(MODEL, draft_tokens=7))
    names = ("speculative_algorithm", "speculative_num_draft_tokens")
    assert [[found[name] for name in names] for found in (plain, guessing)] == [[None, None], ["NGRAM", 7]]
    assert plain["internal_states"][0]["avg_spec_accept_length"] is None
    status = EngineStatus(drafted_tokens=12, accepted_tokens=6, draft_steps=4)
    assert info(MODEL, status)["internal_states"][0]["avg_spec_accept_length"] == 2.5


def test_features_are_told_as_they_are() -> None:
    loaded = info(MODEL)
    for name in ("enable_return_hidden_states", "enable_return_routed_experts", "disable_radix_cache"):
        assert loaded[name] is False
    assert loaded["page_size"] == 1
    bits = [info(msgspec.structs.replace(MODEL, layers_in=where)) for where in ("transformers", "C++")]
    assert [found["enable_deterministic_inference"] for found in bits] == [False, True]
    assert not any("key" in name or "token" in name.split("_") for name in loaded), "no secret is told"
