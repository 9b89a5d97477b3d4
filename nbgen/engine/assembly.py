"""From a configuration to a running engine: load, probe, size the KV cache, wire the parts."""

from typing import NamedTuple

import torch

from nbgen.engine import loader, memory
from nbgen.engine.admission import Admission
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.checkpoint import Report
from nbgen.engine.engine import Engine
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.logprobs import Logprobs
from nbgen.engine.model_runner import ModelRunner
from nbgen.engine.probe import Runner, choose_runner
from nbgen.engine.sampler import Sampler
from nbgen.engine.scheduler import Scheduler
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from nbgen.messages import ModelInfo


class Assembly(NamedTuple):
    """What serves requests: the engine, and the admission in front of it."""

    engine: Engine
    admission: Admission
    model: ModelInfo
    device: torch.device


def assemble(config: EngineConfig, report: Report) -> Assembly:
    """Build everything for `config.model`. Raises ModelError."""
    loaded = loader.load(config, report)
    report("trying the model", 0, 0)
    runner = choose_runner(loaded.model, config.block_size)
    num_blocks = _size_cache(runner, loaded, config)
    model = _info(loaded, runner, config)
    scheduler = Scheduler(
        BlockManager(num_blocks, config.block_size, caches_prefixes=runner.caches_prefixes),
        max_running=config.max_running,
        prefill_chunk=config.prefill_chunk if runner.chunks_prefill else None,
        long_after=runner.long_after,
    )
    sampler, logprobs = Sampler(loaded.tokenizer.eos_ids), Logprobs(loaded.tokenizer.token_text)
    engine = Engine(runner, sampler, scheduler, logprobs, max_waiting=config.max_waiting)
    return Assembly(engine, Admission(loaded.tokenizer, model, num_blocks * config.block_size), model, runner.device)


def _size_cache(runner: Runner, loaded: loader.LoadedModel, config: EngineConfig) -> int:
    """Give the runner its KV cache; the number of blocks, no more than all running sequences could fill."""
    most = config.max_running * -(-loaded.context_length // config.block_size)
    if not isinstance(runner, ModelRunner):
        return most
    budget = memory.kv_cache_budget(runner.device, config.kv_cache_bytes)
    blocks = min(most, budget // max(1, runner.cache.bytes_per_block))
    if blocks < 1:
        raise ModelError(
            f"the KV cache may take {budget} bytes, and one block of {config.model} takes "
            f"{runner.cache.bytes_per_block}: raise kv_cache_bytes or free memory"
        )
    runner.cache = KVCache(blocks, config.block_size)
    return blocks


def _info(loaded: loader.LoadedModel, runner: Runner, config: EngineConfig) -> ModelInfo:
    architecture = loaded.model.config
    return ModelInfo(
        name=config.model,
        model_type=architecture.model_type,
        architectures=architecture.architectures or [type(loaded.model).__name__],
        vocab_size=architecture.get_text_config().vocab_size,
        context_length=loaded.context_length,
        device=str(runner.device),
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        tier=runner.tier,
        has_chat_template=loaded.tokenizer.has_chat_template,
        sampling_defaults=loaded.sampling_defaults,
        parameters=loaded.parameters,
        weight_bytes=loaded.weight_bytes,
    )
