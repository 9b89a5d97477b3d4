"""Grammars are compiled beside the loop, once, within limits of time and memory; a lost process is no outage."""

import json
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from transformers import AutoTokenizer

from nbgen.engine import grammar_compiler, grammar_xgrammar, worker_process
from nbgen.engine.grammar import Compiled, Grammar
from nbgen.engine.grammar_compiler import GrammarCompiler
from nbgen.engine.grammar_xgrammar import XGrammarBackend
from nbgen.errors import InvalidRequest, Unavailable
from tests.conftest import PATIENCE
from tests.engine.conftest import suspend, wait_until_asked, workers

#: Minutes to compile, on any machine.
SLOW = Grammar("regex", "(" + "|".join(f"a{{0,{9000 - i}}}b{{0,{9000 - i}}}" for i in range(300)) + ")*")


@pytest.fixture(scope="module")
def compiler(tiny_model: Path) -> Iterator[GrammarCompiler]:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    compiler = GrammarCompiler("xgrammar", lambda: XGrammarBackend.from_tokenizer(tokenizer, 264, {0}), seconds=1.5)
    yield compiler
    refused = compiler.submit(Grammar("regex", "(")).exception()
    compiler.close()
    assert not children(), "closing leaves no process, also where an error that is kept saw one"
    assert refused


def children() -> list[psutil.Process]:
    return workers("nbgen.engine.grammar_worker")


def test_a_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.submit(Grammar("regex", "ab"))
    assert first.result().matcher() is not first.result().matcher()
    assert compiler.submit(Grammar("regex", "ab")) is first
    bad = compiler.submit(Grammar("regex", "("))
    assert bad.exception()
    assert compiler.submit(Grammar("regex", "(")) is bad


@pytest.mark.usefixtures("shared_processors")
def test_what_takes_too_long_is_given_up_and_the_next_is_served(compiler: GrammarCompiler) -> None:
    compiler.submit(Grammar("regex", "a")).result()
    started = time.monotonic()
    slow = compiler.submit(SLOW)
    with pytest.raises(InvalidRequest, match=r"longer than 1\.5 s|too much memory"):
        slow.result()
    assert time.monotonic() - started < PATIENCE
    assert compiler.submit(Grammar("regex", "b")).result()


def test_what_takes_too_much_memory_is_refused_without_a_trace(
    tiny_model: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = worker_process.WorkerProcess
    monkeypatch.setattr(grammar_compiler, "WorkerProcess", lambda _, name: own("tests.engine.cramped_compiler", name))
    levels = {
        f"a{level}": {"type": "object", "properties": {f"p{i}": {"$ref": f"#/$defs/a{level + 1}"} for i in range(100)}}
        for level in range(60)
    }
    schema = {"$ref": "#/$defs/a0", "$defs": levels | {"a60": {"type": "string"}}}
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    compiler = GrammarCompiler(
        "xgrammar", lambda: XGrammarBackend.from_tokenizer(tokenizer, 264, {0}), seconds=PATIENCE
    )
    with pytest.raises(InvalidRequest, match=r"MiB|too much memory"):
        compiler.submit(Grammar("json_schema", json.dumps(schema))).result()
    compiler.close()
    assert capfd.readouterr().err == ""


def test_c_s_word_for_no_memory_is_not_shown(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """xgrammar raises it or ends its process, as the place where memory runs out has it."""
    backend = XGrammarBackend.from_tokenizer(AutoTokenizer.from_pretrained(tiny_model), 264, {0})

    def compile_json_schema(schema: str, **options: Any) -> None:
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(backend, "_compiler", SimpleNamespace(compile_json_schema=compile_json_schema))
    with pytest.raises(MemoryError):
        backend.compile(Grammar("json_schema", "{}"))


@pytest.mark.parametrize("quick", [0, PATIENCE])
def test_a_grammar_is_sent_as_it_was_compiled_or_to_be_compiled_again(
    quick: float, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_xgrammar, "QUICK", quick)
    backend = XGrammarBackend.from_tokenizer(AutoTokenizer.from_pretrained(tiny_model), 264, {0})
    properties = {f"p{i}": {"type": "string", "maxLength": 40 + i} for i in range(3)}
    grammar = Grammar("json_schema", json.dumps({"type": "object", "properties": properties}))
    sent = backend.compile(grammar)
    assert (len(sent) < 1000) is bool(quick), "which says all of itself for each of its rules"
    assert backend.load(sent).matcher().allows_any()


def test_what_a_library_wonders_at_in_a_grammar_is_in_no_log(
    tiny_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    compiler = GrammarCompiler("xgrammar", lambda: XGrammarBackend.from_tokenizer(tokenizer, 264, {0}))
    assert compiler.submit(Grammar("regex", r"\ \~" * 1000)).result()
    compiler.close()
    assert capfd.readouterr().err == ""


def test_a_process_needs_neither_torch_nor_transformers(compiler: GrammarCompiler) -> None:
    compiler.submit(Grammar("regex", "ab")).result()
    maps = [mapped.path for child in children() for mapped in child.memory_maps()]
    assert any("xgrammar" in path for path in maps)
    assert not any("torch" in Path(path).name for path in maps)


def test_what_nobody_wants_any_more_is_not_compiled(compiler: GrammarCompiler) -> None:
    busy = [compiler.submit(Grammar("regex", SLOW.text + letter)) for letter in "ab"]
    dropped = compiler.submit(SLOW._replace(text=SLOW.text + "c"), wanted=lambda: False)
    shared = [compiler.submit(Grammar("regex", "shared"), wanted=lambda kept=kept: kept) for kept in (False, True)]
    assert isinstance(dropped.exception(), Unavailable)
    assert shared[0].result() is shared[1].result()
    assert all(future.exception() for future in busy)
    assert compiler.submit(SLOW._replace(text=SLOW.text + "c"), wanted=lambda: False) is not dropped


def test_who_asks_again_for_what_nobody_wanted_is_not_forgotten_with_it(tiny_model: Path) -> None:
    """Again before those who hear that it was not compiled have heard."""
    grammar, again, heard = Grammar("regex", "ab"), [], threading.Event()

    class AskedAgain(GrammarCompiler):
        def _check_wanted(self, grammar: Grammar) -> None:
            try:
                super()._check_wanted(grammar)
            except Unavailable:
                again.append(self.submit(grammar))
                raise

        def _remember(self, grammar: Grammar, done: Future[Compiled]) -> None:
            super()._remember(grammar, done)
            heard.set()

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    compiler = AskedAgain("xgrammar", lambda: XGrammarBackend.from_tokenizer(tokenizer, 264, {0}))
    assert isinstance(compiler.submit(grammar, wanted=lambda: False).exception(), Unavailable)
    assert heard.wait(PATIENCE)
    assert compiler.submit(grammar) is again[0]
    assert again[0].result().matcher()
    compiler.close()


def test_a_process_that_dies_is_started_again(compiler: GrammarCompiler) -> None:
    compiler.submit(Grammar("regex", "a")).result()
    for child in children():
        child.kill()
        child.wait(PATIENCE)
    assert all(compiler.submit(Grammar("regex", f"b{i}")).result() for i in range(3))


@pytest.fixture
def single(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarCompiler]:
    """One with one process, which has begun."""
    monkeypatch.setattr(grammar_compiler, "WORKERS", 1)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    compiler = GrammarCompiler("xgrammar", lambda: XGrammarBackend.from_tokenizer(tokenizer, 264, {0}), seconds=1.0)
    assert compiler.submit(Grammar("regex", "a")).result()
    yield compiler
    compiler.close()


def process_of(compiler: GrammarCompiler) -> psutil.Process:
    return psutil.Process(compiler._processes[0]._process._process.pid)


def once_asked(compiler: GrammarCompiler, grammar: Grammar, then: Callable[[psutil.Process], None]) -> Future[Compiled]:
    """What becomes of a grammar to whose process this happens before it has begun on it."""
    worker = compiler._processes[0]._process._process
    suspend(worker)
    future = compiler.submit(grammar)
    wait_until_asked(worker)
    then(psutil.Process(worker.pid))
    return future


@pytest.mark.parametrize("end", [psutil.Process.suspend, psutil.Process.kill, psutil.Process.terminate])
def test_what_something_else_ends_or_halts_is_compiled_once_more(
    single: GrammarCompiler, end: Callable[[psutil.Process], None]
) -> None:
    def then(process: psutil.Process) -> None:
        end(process)
        if end == psutil.Process.terminate:
            process.resume()

    before = process_of(single)
    assert once_asked(single, Grammar("regex", "ab"), then).result().matcher()
    assert process_of(single) != before


@pytest.mark.parametrize(
    ("end", "words"), [(psutil.Process.suspend, "machine is busy, or was suspended"), (psutil.Process.kill, "signal 9")]
)
def test_what_is_ended_or_halted_twice_is_no_fault_of_the_grammar(
    single: GrammarCompiler, end: Callable[[psutil.Process], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux ends it where memory is short, or a suspended machine halts it."""
    monkeypatch.setattr(worker_process, "START_SECONDS", 1.0)
    future = single.submit(SLOW)
    while not future.done():
        for child in children():
            with suppress(psutil.Error):  # it has ended meanwhile
                end(child)
        time.sleep(0.02)
    with pytest.raises(Unavailable, match=words):
        future.result()
    assert single.submit(SLOW) is not future, "and may be sent again"


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGABRT])
def test_a_process_that_a_grammar_ends_is_its_own_fault(single: GrammarCompiler, number: int) -> None:
    def crash(process: psutil.Process) -> None:
        process.send_signal(number)
        process.resume()

    with pytest.raises(InvalidRequest, match="too much memory, or is too deep"):
        once_asked(single, Grammar("regex", "ab"), crash).result()


def test_a_process_that_cannot_be_started_is_no_fault_of_the_grammar(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    compiler = GrammarCompiler("xgrammar", lambda: XGrammarBackend.from_tokenizer(tokenizer, 264, {0}))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        refused = compiler.submit(Grammar("regex", "a")).exception()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(refused, Unavailable)
    assert "cannot be started: Too many open files" in refused.message
    assert compiler.submit(Grammar("regex", "a")).result(), "and is tried again"
    compiler.close()


def test_a_back_end_that_cannot_be_loaded_is_no_fault_of_the_grammar(tiny_model: Path) -> None:
    tokenizer, tries = AutoTokenizer.from_pretrained(tiny_model), []

    def make() -> XGrammarBackend:
        tries.append(1)
        if len(tries) == 1:
            raise ImportError("a library of its own is missing")
        return XGrammarBackend.from_tokenizer(tokenizer, 264, {0})

    compiler = GrammarCompiler("xgrammar", make)
    with pytest.raises(Unavailable, match="xgrammar cannot be loaded"):
        compiler.submit(Grammar("regex", "a")).result()
    assert compiler.submit(Grammar("regex", "a")).result(), "and is tried again"
    compiler.close()


def test_memory_that_is_short_while_a_grammar_is_read_back_is_no_fault_of_it(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("std::bad_alloc")

    with monkeypatch.context() as patched:
        patched.setattr("xgrammar.GrammarCompiler.compile_regex", fail)
        with pytest.raises(Unavailable, match="no memory is left for this regex grammar"):
            compiler.submit(Grammar("regex", "short of memory")).result()
    assert compiler.submit(Grammar("regex", "short of memory")).result(), "and is tried again"


def test_the_least_recently_used_is_forgotten(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "CACHE_BYTES", 60_000)
    first = compiler.submit(Grammar("regex", "a"))
    first.result()
    for i in range(30):
        compiler.submit(Grammar("regex", f"b{i}")).result()
    assert compiler.num_bytes <= 60_000
    assert compiler.submit(Grammar("regex", "a")) is not first
