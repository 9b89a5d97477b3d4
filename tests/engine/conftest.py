"""Engines in this process, for tests that look inside."""

import fcntl
import gc
import multiprocessing
import subprocess
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nbgen.engine import worker_process
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine.grammar import Grammar
from nbgen.engine.lean_imports import import_leanly
from nbgen.engine.sequence import Sequence
from nbgen.engine.shape_functions import import_shape_functions
from nbgen.engine.tokenizer import Tokenizer
from nbgen.engine_config import EngineConfig
from nbgen.messages import GenerateOutput, GenerateRequest
from tests.conftest import CHAT_TEMPLATE, continuation, save_tokenizer, wait_for

Outputs = dict[str, list[GenerateOutput]]


def workers(module: str) -> list[psutil.Process]:
    """The processes of such work that run."""
    return [child for child in psutil.Process().children() if _runs(child, module)]


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and module in process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False


def suspend(worker: subprocess.Popen[bytes]) -> None:
    """From now on it reads nothing."""
    process = psutil.Process(worker.pid)
    process.suspend()
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "it has been stopped")


def wait_until_asked(worker: subprocess.Popen[bytes]) -> None:
    """Return once one that reads nothing has been given something."""
    nothing = bytes(4)
    wait_for(lambda: fcntl.ioctl(worker.stdin, termios.FIONREAD, nothing) != nothing, "it is asked")


def build(folder: Path, **changes: object) -> Assembly:
    """A float32 engine of the folder's model."""
    return assemble(EngineConfig(model=str(folder), **{"dtype": "float32", **changes}), lambda *_: None)


def generate(assembly: Assembly, requests: list[GenerateRequest]) -> Outputs:
    """Run the requests to their ends, all at once; each one's outputs in order."""
    outputs: Outputs = {request.rid: [] for request in requests}
    for request in requests:
        for output in assembly.engine.add(assembly.admission.sequences(request)):
            outputs[output.rid].append(output)
    while assembly.engine.has_work:
        for output in assembly.engine.step():
            outputs[output.rid].append(output)
    return outputs


def constrain(assembly: Assembly, sequences: list[Sequence]) -> None:
    """Give them their grammar's matchers."""
    if grammar := sequences[0].params.grammar:
        compiled = assembly.grammars.submit(Grammar(*grammar)).result()
        for sequence in sequences:
            sequence.constrain(compiled.matcher())


def greedy(
    folder: Path, prompts: list[list[int]], new_tokens: int, found: list[list[int]] | None = None
) -> list[list[int]]:
    """transformers' own greedy continuations in float32, one prompt at a time. `found` as in `continuation`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if model.config.model_type == "xlstm":
        model.generation_config.use_cache = False
    pairs = zip(prompts, found or [None] * len(prompts), strict=True)
    return [continuation(model, prompt, new_tokens, tokens) for prompt, tokens in pairs]


def tokenizer_of(folder: Path, chat_template: Any = CHAT_TEMPLATE, max_length: int = 512) -> Tokenizer:
    """One of bytes, with this template."""
    save_tokenizer(folder)
    pretrained = AutoTokenizer.from_pretrained(folder)
    pretrained.chat_template = chat_template
    return Tokenizer(pretrained, {0}, max_length)


def ids(outputs: list[GenerateOutput], index: int = 0) -> list[int]:
    return [token for output in outputs if output.index == index for token in output.token_ids]


def timeless(outputs: list[GenerateOutput]) -> list[GenerateOutput]:
    """The same without how long they took."""
    return [msgspec.structs.replace(output, ran_seconds=0.0) for output in outputs]


def text(outputs: list[GenerateOutput], index: int = 0) -> str:
    return "".join(output.text for output in outputs if output.index == index)


@pytest.fixture(scope="module")
def tiny_engine(tiny_model: Path) -> Assembly:
    """An engine of the random two-layer Llama."""
    return build(tiny_model)


@pytest.fixture(scope="module")
def little_garbage() -> None:
    """What other files' tests have left is out of the way of tests where garbage is looked for again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def shared_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what takes a process of ours too long nothing is blamed on how little of the processors it got."""
    monkeypatch.setattr(worker_process, "LEAST_SHARE", 0.0)


@pytest.fixture
def idle(tiny_engine: Assembly) -> Callable[[], None]:
    """A check that every block is free and nothing waits or runs."""

    def check() -> None:
        status = tiny_engine.engine.status()
        assert (status.running, status.waiting) == (0, 0)
        assert status.blocks_free == status.blocks_total, "blocks leaked"

    return check


def _in_a_process(begin: Callable[[], object], **environment: str) -> Iterator[ProcessPoolExecutor]:
    """One fresh process, which sees the environment from its start and has begun with `begin`.

    It has imported transformers as an engine's does, in half the time.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=_import)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        pool.submit(begin).result()
    with pool:
        yield pool


def _read_once() -> None:
    """Have triton's interpreter put itself in place of its language once, for all kernels.

    It does so anew at every call of one of their functions, which takes longer than to run it. And at each sum of
    whole numbers it works out whether it overflows, which it tells nobody as long as nothing is debugged.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    done = type(interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core})))
    interpreter._patch_lang = lambda _: done()
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _import() -> None:
    """As an engine does that has asked how large a model of any family would be."""
    import_leanly("nbgen.engine.attention")
    import_shape_functions()


@pytest.fixture(scope="package")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A process where triton interprets: it decides at its import."""
    yield from _in_a_process(_read_once, TRITON_INTERPRET="1")


@pytest.fixture(scope="package")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """One where it compiles, for a GPU that need not be there."""
    yield from _in_a_process(torch.get_num_threads, TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))
