"""Builds a running engine from a configuration: load the model, probe it, size the KV cache, wire the parts.

Knows neither requests nor channels.
"""

from importlib.util import find_spec
from typing import NamedTuple

import torch

from nbgen.engine import cache_dtype, loader, memory, prompt_embeds, quantization
from nbgen.engine.adapters import Adapters
from nbgen.engine.admission import Admission
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.cache_size import CacheSize
from nbgen.engine.checkpoint import Report
from nbgen.engine.deadlines import Deadlines
from nbgen.engine.engine import Engine
from nbgen.engine.grammar import Backend
from nbgen.engine.grammar_compiler import GrammarCompiler
from nbgen.engine.grammar_worker import BACKENDS, backend_class
from nbgen.engine.hidden_states import HiddenStates
from nbgen.engine.hybrid_runner import HybridRunner
from nbgen.engine.idle_release import IdleRelease
from nbgen.engine.known_scores import KnownScores
from nbgen.engine.live_model import LiveModel
from nbgen.engine.logit_processors import LogitProcessors
from nbgen.engine.logprobs import Logprobs
from nbgen.engine.mixed_chunk import MixedChunk
from nbgen.engine.model_runner import ModelRunner
from nbgen.engine.native import tell_of_build
from nbgen.engine.native_draws import NativeDraws
from nbgen.engine.occupation import Occupation
from nbgen.engine.probe import Runner, choose_runner, compile
from nbgen.engine.routed_experts import RoutedExperts
from nbgen.engine.sampler import Sampler
from nbgen.engine.scheduler import Scheduler
from nbgen.engine.stateful_blocks import StatefulBlocks
from nbgen.engine.tokenizer import Tokenizer
from nbgen.engine_config import BLOCK_SIZE, EngineConfig
from nbgen.engine_state import ModelInfo
from nbgen.errors import ModelError

#: Seconds that second tokens may wait while many prompts arrive at once: the first tokens of 32 came in half the time.
PATIENCE = 1.0
#: On a CPU: one prompt token for each decode of the step, and as many more as compute while the weights are read. Such
#: a step takes at most about twice as long as one without them: streams slow down but do not stall. 1.5 prompt tokens
#: a decode gave first tokens a fifth sooner, but raised the 99th percentile between tokens to 2.2 times the median.
FAIR = MixedChunk(least=8, most=128, for_each=1.0, patience=PATIENCE)
#: The same where the processor multiplies in tiles (AMX), five times as fast from the same memory. Four prompt tokens a
#: decode gave first tokens no sooner, and raised the 99th percentile between tokens to 2.05 times the median.
FAIR_IN_TILES = MixedChunk(least=60, most=256, for_each=2, patience=PATIENCE)
#: The same where each prompt needs a forward of its own, which reads the weights once more.
FORWARD = MixedChunk(least=128, most=128, patience=PATIENCE)
#: Draft tokens a step by default, where drafts change no bit of an answer. With the newest token they are as many rows
#: as a product computes from one read of the weights. A mixture gets none: each row reads its own experts' weights.
DRAFT_TOKENS = 7
#: At least so many blocks for each snapshot of a state; and these take at least three times the state's bytes.
BLOCKS_PER_SNAPSHOT = 8


class Assembly(NamedTuple):
    """The parts that serve requests: the engine, the admission in front of it, and the owner of its memory."""

    engine: Engine
    admission: Admission
    model: ModelInfo
    occupation: Occupation
    idle_release: IdleRelease
    #: None where no answer can be constrained.
    grammars: GrammarCompiler | None
    adapters: Adapters
    #: Longest run of a request, in seconds; None: no limit.
    run_seconds: float | None

    def close(self) -> None:
        """Free everything: caches, states, weights, and the processes that compile grammars or decode files."""
        if self.grammars is not None:
            self.grammars.close()
        self.admission.close()
        self.engine.close()
        self.occupation.release({"kv_cache", "weights"})


def assemble(config: EngineConfig, report: Report, live: LiveModel | None = None) -> Assembly:
    """Build everything for `config.model`, or for the `live` model of this process. Raises ModelError."""
    _check_grammar_backend(config.grammar_backend)
    processors = _processors(config)
    loaded, runner = _load(config, report, live)
    size = CacheSize(config)
    scheduler = _provide(runner, loaded.context_length, size.anew(runner.device))
    model = _info(loaded, runner, config, scheduler)
    native = NativeDraws.of(runner.model.dtype) if runner.device.type == "cpu" else None
    sampler, logprobs = Sampler(loaded.tokenizer.eos_ids, processors, native), Logprobs(loaded.tokenizer)
    deadlines = Deadlines(config.queue_seconds, config.run_seconds)
    engine = Engine(
        runner,
        sampler,
        scheduler,
        logprobs,
        max_waiting=config.max_waiting,
        deadlines=deadlines,
        lookahead=runner.device.type == "cuda" and live is None,  # a live model's weights are locked only during a step
    )
    adapters = Adapters(loaded.model, runner.lora.unsuited)
    media_reader = loaded.media_reader if model.media else loaded.media_reader._replace(processor=None)
    admission = Admission(loaded.tokenizer, model, processors, adapters, *media_reader)
    grammars = _grammars(config.grammar_backend, loaded.tokenizer, model.vocab_size, admission)
    occupation = Occupation(
        engine,
        admission,
        runner,
        load=lambda: _known(*_load(config, report, live), model),
        provide=lambda runner: _provide(runner, model.context_length, size.anew(runner.device)),
        restore=lambda runner: _provide(runner, model.context_length, size.again(runner.device)),
    )
    idle_release = IdleRelease(engine, occupation, config.idle_release_seconds)
    return Assembly(engine, admission, model, occupation, idle_release, grammars, adapters, config.run_seconds)


def _load(config: EngineConfig, report: Report, live: LiveModel | None) -> tuple[loader.LoadedModel, Runner]:
    tell_of_build.set(lambda: report("compiling C++, once for this machine", 0, 0))
    loaded = loader.load(config, report) if live is None else live.load(config, report)
    if config.quantization is not None:
        if live is not None:
            raise ModelError("a live model is served with the weights that it has: leave out quantization")
        loaded.weight_bytes = quantization.quantize(loaded.model, config.quantization, report)
    report("trying the model", 0, 0)
    keeps = live is None and loaded.model.device.type == "cpu"
    known = KnownScores.of(config, loaded.model) if keeps else None
    runner = choose_runner(loaded.model, copies_weights=live is None, known=known)
    if config.compile:
        report("compiling the model", 0, 0)
        compile(runner)
    return loaded, runner


def _known(loaded: loader.LoadedModel, runner: Runner, model: ModelInfo) -> Runner:
    """The runner of a model that was loaded again. Raises ModelError if it is another than `model`.

    Tokenizer, limits and what clients were told stay, and the model would read ids and positions that it does not have.
    """
    config = loaded.model.config
    now = {
        "model_type": config.model_type,
        "vocab_size": config.get_text_config().vocab_size,
        "context_length": loaded.context_length,
    }
    if other := next((name for name, value in now.items() if value != getattr(model, name)), None):
        raise ModelError(
            f"{model.name} is another model now than when it was loaded (its {other} is {now[other]}, and was "
            f"{getattr(model, other)}): load it anew"
        )
    return runner


def _provide(runner: Runner, context_length: int, config: EngineConfig) -> Scheduler:
    """Give the runner its KV cache and prepare its CUDA graphs; returns a scheduler over the cache's blocks."""
    kept = cache_dtype.chosen(config.kv_cache_dtype, runner.model, paged=isinstance(runner, ModelRunner))
    if isinstance(runner, ModelRunner):
        runner.cache.keep_in(kept)
    max_running = _max_running(runner, config)
    blocks = _blocks(runner, context_length, config, max_running)
    blocks.may_grow = memory.Plenty(runner.device)
    if isinstance(runner, ModelRunner) and config.cuda_graphs:
        runner.capture(max_running, context_length)
    return Scheduler(
        blocks,
        max_running=max_running,
        prefill_chunk=config.chunk_on(runner.device.type) if runner.chunks_prefill else None,
        mixed_chunk=_mixed_chunk(runner, config),
        long_after=runner.long_after,
        draft_tokens=_draft_tokens(runner, config),
    )


def _draft_tokens(runner: Runner, config: EngineConfig) -> int:
    """Raises ModelError if the configuration asks for drafts that this runner cannot make."""
    wanted = config.draft_tokens
    if wanted is None:
        native = runner.native_model if isinstance(runner, ModelRunner) else None
        return 0 if native is None or native.has_experts else DRAFT_TOKENS
    if wanted and not (runner.takes_guesses and runner.device.type == "cpu"):
        raise ModelError(
            f"draft_tokens is {wanted}, and this model runs in tier {runner.tier} on {runner.device.type}, its layers "
            f"in {runner.layers_in}: drafts are for a CPU and tier A, or tier B in C++; leave draft_tokens out"
        )
    return wanted


def _mixed_chunk(runner: Runner, config: EngineConfig) -> MixedChunk:
    usual, wanted = _usual_chunk(runner), config.mixed_chunk
    return usual if wanted is None else usual._replace(least=wanted, most=wanted)


def _usual_chunk(runner: Runner) -> MixedChunk:
    if runner.device.type != "cpu":
        return MixedChunk()
    if runner.tier != "A":
        return FORWARD
    in_tiles = runner.model.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return FAIR_IN_TILES if in_tiles else FAIR


def _check_grammar_backend(name: str) -> None:
    if name not in {*BACKENDS, "none"}:
        raise ModelError(f"grammar_backend is {name!r}; it must be one of {', '.join(BACKENDS)} or none")
    if name != "none" and find_spec(name) is None:
        raise ModelError(f"grammar_backend {name!r} is not installed: pip install 'nbgen[{name}]'")


def _grammars(name: str, tokenizer: Tokenizer, vocab_size: int, admission: Admission) -> GrammarCompiler | None:
    """None if grammars are switched off."""
    if name == "none":
        return None

    def backend() -> Backend:
        ends = tokenizer.eos_ids | admission.turn_ends
        return backend_class(name).from_tokenizer(tokenizer.pretrained, vocab_size, ends)

    return GrammarCompiler(name, backend)


def _processors(config: EngineConfig) -> LogitProcessors:
    if config.enable_custom_logit_processor and find_spec("dill") is None:
        raise ModelError("enable_custom_logit_processor needs dill: pip install 'nbgen[processors]'")
    return LogitProcessors(code=config.enable_custom_logit_processor)


def _max_running(runner: Runner, config: EngineConfig) -> int:
    """Limit on sequences that decode together: their states may take at most half of the KV cache's bytes."""
    if not runner.bytes_per_state:
        return config.max_running
    room = memory.kv_cache_budget(runner.device, config.kv_cache_bytes) // 2
    return max(1, min(config.max_running, room // runner.bytes_per_state))


def _blocks(runner: Runner, context_length: int, config: EngineConfig, max_running: int) -> BlockManager:
    """Give the runner its KV cache; returns the manager of its blocks, and of state slots if the model has states."""
    most, state = max_running * -(-context_length // BLOCK_SIZE), runner.bytes_per_state
    budget = memory.kv_cache_budget(runner.device, config.kv_cache_bytes) - max_running * state
    if not isinstance(runner, ModelRunner):
        blocks = _num_blocks(budget, runner.bytes_per_token * BLOCK_SIZE, most, config)
        return BlockManager(blocks, BLOCK_SIZE, caches_prefixes=False)
    if not isinstance(runner, HybridRunner):
        return BlockManager(_size_cache(runner, budget, most, config), BLOCK_SIZE)
    runner.pool.most_slots = max_running
    beside = max(3 * state, BLOCKS_PER_SNAPSHOT * runner.cache.bytes_per_block)
    room = max(0, budget) // (state + beside)
    snapshots = min(most // BLOCKS_PER_SNAPSHOT, room) if runner.caches_prefixes else 0
    blocks = _size_cache(runner, budget - snapshots * state, most, config, snapshots)
    return StatefulBlocks(blocks, BLOCK_SIZE, num_slots=max_running, num_snapshots=snapshots)


def _size_cache(runner: ModelRunner, budget: int, most: int, config: EngineConfig, snapshots: int = 0) -> int:
    """Give the runner a KV cache of `budget` bytes, but at most `most` blocks; returns the number of blocks.

    The memory of `snapshots` of states is not part of `budget`.
    """
    blocks = _num_blocks(budget, runner.cache.bytes_per_block, most, config)
    try:
        runner.cache.resize(blocks)
        if isinstance(runner, HybridRunner) and snapshots:
            runner.pool.reserve(snapshots)
    except (RuntimeError, MemoryError, OSError) as error:
        if not memory.ran_out(error):
            raise
        raise ModelError(f"{budget} bytes of KV cache do not fit into the free memory: free some") from None
    return blocks


def _num_blocks(budget: int, bytes_per_block: int, most: int, config: EngineConfig) -> int:
    """Number of blocks that fit into `budget` bytes, at most `most`. Raises ModelError if not even one fits."""
    blocks = min(most, budget // max(1, bytes_per_block))
    if blocks < 1:
        raise ModelError(
            f"the KV cache may take {budget} bytes, and one block of {config.model} takes "
            f"{bytes_per_block}: raise kv_cache_bytes or free memory"
        )
    return blocks


def _info(loaded: loader.LoadedModel, runner: Runner, config: EngineConfig, scheduler: Scheduler) -> ModelInfo:
    processor = loaded.media_reader.processor
    blocks = scheduler.blocks
    return loaded.info(
        config.model,
        runner.device,
        quantization=config.quantization or loaded.quantization,
        tier=runner.tier,
        compiled=isinstance(runner, ModelRunner) and runner.stock.compiled is not None,
        layers_in=runner.layers_in,
        has_chat_template=loaded.tokenizer.has_chat_template or bool(processor and processor.has_chat_template),
        kv_tokens=blocks.num_blocks * blocks.block_size,
        kv_cache_dtype=cache_dtype.named(runner.cache.dtype if isinstance(runner, ModelRunner) else None, loaded.model),
        max_running=scheduler.max_running,
        draft_tokens=scheduler.draft_tokens,
        cuts_prompts=scheduler.cuts_prompts,
        caches_prefixes=blocks.caches_prefixes,
        hidden_size=HiddenStates(loaded.model).width,
        embed_size=prompt_embeds.width(loaded.model),
        routed_experts=RoutedExperts(loaded.model).width,
        media=processor.media if processor and isinstance(runner, ModelRunner) else [],
        verdicts=loaded.tokenizer.verdicts,
    )
