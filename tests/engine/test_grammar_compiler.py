"""Grammars are compiled beside the loop, once, within limits of time and memory; a lost process is no outage."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from transformers import AutoTokenizer

from nbgen.engine import grammar_compiler
from nbgen.engine.grammar import Grammar
from nbgen.engine.grammar_compiler import GrammarCompiler
from nbgen.engine.grammar_xgrammar import XGrammarBackend
from nbgen.errors import InvalidRequest

SLOW = Grammar("regex", ".{0,9000}")


@pytest.fixture(scope="module")
def compiler(tiny_model: Path) -> Iterator[GrammarCompiler]:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    compiler = GrammarCompiler("xgrammar", lambda: XGrammarBackend.from_tokenizer(tokenizer, 264, {0}), seconds=0.5)
    yield compiler
    compiler.close()
    assert not children(), "closing leaves no process"


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "nbgen.engine.grammar_worker" in p.cmdline()]


def test_a_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.submit(Grammar("regex", "ab"))
    assert first.result().matcher() is not first.result().matcher()
    assert compiler.submit(Grammar("regex", "ab")) is first
    bad = compiler.submit(Grammar("regex", "("))
    assert bad.exception()
    assert compiler.submit(Grammar("regex", "(")) is bad


def test_what_takes_too_long_is_given_up_and_the_next_is_served(compiler: GrammarCompiler) -> None:
    compiler.submit(Grammar("regex", "a")).result()
    started = time.monotonic()
    slow = compiler.submit(SLOW)
    with pytest.raises(InvalidRequest, match=r"longer than 0\.5 s|too much memory"):
        slow.result()
    assert time.monotonic() - started < 5
    assert compiler.submit(Grammar("regex", "b")).result()


def test_a_process_that_dies_is_started_again(compiler: GrammarCompiler) -> None:
    compiler.submit(Grammar("regex", "a")).result()
    for child in children():
        child.kill()
        child.wait(5)
    refusals = [compiler.submit(Grammar("regex", f"b{i}")).exception() for i in range(3)]
    assert all(isinstance(refusal, InvalidRequest | None) for refusal in refusals)
    assert refusals[-1] is None


def test_the_least_recently_used_is_forgotten(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "CACHE_BYTES", 60_000)
    first = compiler.submit(Grammar("regex", "a"))
    first.result()
    for i in range(30):
        compiler.submit(Grammar("regex", f"b{i}")).result()
    assert compiler.num_bytes <= 60_000
    assert compiler.submit(Grammar("regex", "a")) is not first
