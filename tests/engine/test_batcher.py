"""Dynamic batching without torch: who is computed with whom, and that every request gets an answer."""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from nbgen.engine import batcher
from nbgen.engine.batcher import Batcher, Computed
from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor
from nbgen.tensor_messages import InferOutput, InferRequest
from nbgen.tensor_spec import ModelSpec
from tests.conftest import PATIENCE, wait_for


class Recorder:
    """A module that notes its batches; `gate` holds it up, a request for `fail` fails, one for `refuse` is refused, one
    for `exit` ends all. After one for `last` it is of no use any more.
    """

    def __init__(self, most: int, delay_us: int = 0, **limits: float) -> None:
        self.spec = ModelSpec(name="m", inputs=(), outputs=(), max_batch_size=most, max_queue_delay_us=delay_us)
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.computing = threading.Event()
        self.answers: queue.Queue[InferOutput] = queue.Queue()
        self.lost, self.released = threading.Event(), threading.Event()
        self.batcher = Batcher(self, self.answers.put, self.lost.set, **limits)

    def compute(self, requests: list[InferRequest]) -> Computed:
        self.computing.set()
        self.gate.wait(PATIENCE)
        self.batches.append([request.rid for request in requests])
        if any(request.rid in ("fail", "last") for request in requests):
            raise ValueError("no")
        if any(request.rid == "refuse" for request in requests):
            raise InvalidRequest("not with me")
        if any(request.rid == "exit" for request in requests):
            sys.exit("the module's own words")
        return Computed([[] for _ in requests], 1, 2, 3)

    def usable(self) -> bool:
        return not any("last" in batch for batch in self.batches)

    def release(self) -> None:
        self.released.set()

    def add(self, rid: str, entries: int = 1, width: int = 2, timeout_us: int = 0) -> None:
        tensor = Tensor(name="x", datatype="FP32", shape=(entries, width))
        self.batcher.add(InferRequest(rid=rid, model="m", inputs=[tensor], outputs=[], timeout_us=timeout_us))

    def take(self, count: int) -> dict[str, InferOutput]:
        found = [self.answers.get(timeout=PATIENCE) for _ in range(count)]
        return {output.rid: output for output in found}


@pytest.fixture
def held() -> Iterator[Recorder]:
    """A module busy with a first request, so that others wait."""
    module = Recorder(4, delay_us=20_000)
    module.gate.clear()
    module.add("first", entries=4)
    assert module.computing.wait(PATIENCE)
    yield module
    module.gate.set()
    module.batcher.close()


def test_those_that_wait_are_computed_together_up_to_the_batch_size(held: Recorder) -> None:
    for rid in "abcdef":
        held.add(rid)
    held.gate.set()
    answers = held.take(7)
    assert held.batches == [["first"], ["a", "b", "c", "d"], ["e", "f"]]
    assert [answers[rid].leads for rid in "abcdef"] == [True, False, False, False, True, False]
    assert {answers[rid].executed for rid in "abcd"} == {4}


def test_other_shapes_and_what_does_not_fit_wait_for_the_next(held: Recorder) -> None:
    held.add("a", entries=2)
    held.add("b", entries=3)
    held.add("c", width=5)
    held.add("d", width=5)
    held.gate.set()
    held.take(5)
    assert held.batches == [["first"], ["a"], ["b"], ["c", "d"]]


def test_a_fault_is_its_requests_alone(held: Recorder) -> None:
    for rid in ("a", "fail", "b"):
        held.add(rid)
    held.gate.set()
    answers = held.take(4)
    assert {rid for rid, output in answers.items() if output.error} == {"fail"}
    assert (answers["fail"].status, "ValueError" in answers["fail"].error) == (500, True)


def test_requests_are_tried_alone_once_what_their_batch_computed_is_let_go(
    held: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher.log, "disabled", True)  # pytest keeps what is logged, with its frames
    layers: list[weakref.ref] = []
    alive, compute = [], held.compute

    def look(requests: list[InferRequest]) -> Computed:
        alive.append(sum(layer() is not None for layer in layers))
        layer = {str(requests)}
        layers.append(weakref.ref(layer))
        return compute(requests)

    held.compute = look  # type: ignore[method-assign]
    for rid in ("a", "fail", "b"):
        held.add(rid)
    held.gate.set()
    held.take(4)
    assert alive == [0, 0, 0, 0]


def test_the_dropped_and_the_late_are_not_computed(held: Recorder) -> None:
    held.add("dropped")
    held.add("late", timeout_us=1)
    held.add("kept", timeout_us=60_000_000)
    held.batcher.drop("dropped")
    held.batcher.drop("unknown")
    held.gate.set()
    answers = held.take(4)
    assert (answers["dropped"].status, answers["late"].status, answers["kept"].error) == (400, 503, None)
    assert "Request timeout expired" in answers["late"].error
    assert held.batches == [["first"], ["kept"]]


@pytest.mark.parametrize(
    ("limits", "timeout_us", "late", "words"),
    [
        ({}, 1, "second", "Request timeout expired: it waited over 1 microseconds"),
        ({"queue_seconds": 0.01}, 0, "second", "waited 0.01 seconds for its turn"),
        ({"run_seconds": 0.01}, 0, "first", "ran 0.01 seconds, as long as a request may"),
    ],
)
def test_a_module_that_does_not_come_back_leaves_nobody_waiting(
    limits: dict[str, float], timeout_us: int, late: str, words: str
) -> None:
    stuck = Recorder(4, **limits)
    stuck.gate.clear()
    stuck.add("first", entries=4)
    assert stuck.computing.wait(PATIENCE)
    stuck.add("second", timeout_us=timeout_us)
    (refused,) = stuck.take(1).values()
    assert (refused.rid, refused.status, words in refused.error) == (late, 503, True)
    stuck.batcher.close()
    assert late == "second" or stuck.take(1)["second"].error == "m was unloaded"
    stuck.gate.set()
    assert stuck.released.wait(PATIENCE)


def test_who_was_answered_as_late_is_not_tried_alone() -> None:
    module = Recorder(4, delay_us=20_000, run_seconds=0.1)
    module.gate.clear()
    module.add("fail", entries=2)
    module.add("other", entries=2)
    assert {output.status for output in module.take(2).values()} == {503}
    module.gate.set()
    module.add("next")
    assert module.take(1)["next"].error is None
    assert module.batches == [["fail", "other"], ["next"]]
    module.batcher.close()


def test_who_is_kept_for_the_next_batch_may_still_be_dropped(held: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = held.compute

    def dropping(requests: list[InferRequest]) -> Computed:
        held.batcher.drop("wide")
        return compute(requests)

    monkeypatch.setattr(held, "compute", dropping)
    held.add("a")
    held.add("wide", width=3)
    held.gate.set()
    answers = held.take(3)
    assert (answers["a"].error, answers["wide"].status) == (None, 400)
    assert held.batches == [["first"], ["a"]]


def test_any_number_of_dropped_and_late_ones_is_answered(held: Recorder) -> None:
    many = sys.getrecursionlimit()
    for number in range(many):
        held.add(f"dropped {number}")
        held.batcher.drop(f"dropped {number}")
        held.add(f"late {number}", timeout_us=1)
    held.add("kept")
    held.gate.set()
    answers = held.take(2 * many + 2)
    assert [rid for rid, output in answers.items() if output.error is None] == ["first", "kept"]


def test_a_modules_own_refusal_keeps_its_words_and_status(held: Recorder) -> None:
    held.add("refuse")
    held.gate.set()
    refused = held.take(2)["refuse"]
    assert (refused.status, refused.error) == (400, "not with me")


def test_more_than_may_wait_are_refused_at_once(held: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_WAITING", 2)
    for rid in "abc":
        held.add(rid)
    (refused,) = held.take(1).values()
    assert (refused.rid, refused.status) == ("c", 503)
    assert "the queue of m is full (2 waiting)" in refused.error
    held.gate.set()
    assert all(output.error is None for output in held.take(3).values())


def test_a_request_without_inputs_is_one_entry(held: Recorder) -> None:
    held.batcher.add(InferRequest(rid="empty", model="m", inputs=[], outputs=[]))
    held.gate.set()
    assert held.take(2)["empty"].executed == 1


def test_where_nothing_is_batched_a_request_is_one_entry_whatever_its_shape() -> None:
    alone = Recorder(0, delay_us=20_000)
    alone.gate.clear()
    alone.add("first")
    assert alone.computing.wait(PATIENCE)
    for rid, entries in (("many", 50), ("none", 0), ("two", 2)):
        alone.add(rid, entries)
    alone.gate.set()
    answers = alone.take(4)
    assert alone.batches == [["first"], ["many"], ["none"], ["two"]]
    assert {(output.executed, output.leads) for output in answers.values()} == {(1, True)}
    alone.batcher.close()


def test_answers_say_where_the_time_went(held: Recorder) -> None:
    held.gate.set()
    (first,) = held.take(1).values()
    assert (first.input_ns, first.infer_ns, first.output_ns) == (1, 2, 3)


def test_a_module_that_exits_fails_its_request_and_goes_on(held: Recorder) -> None:
    held.add("exit")
    held.add("other", width=5)
    held.gate.set()
    answers = held.take(3)
    assert (answers["exit"].status, "SystemExit" in answers["exit"].error) == (500, True)
    assert answers["other"].error is None
    assert not held.lost.is_set()


def test_a_failure_that_leaves_a_module_of_no_use_is_told_once_it_is_answered(held: Recorder) -> None:
    held.add("last")
    held.gate.set()
    assert held.take(2)["last"].status == 500
    assert held.lost.wait(PATIENCE)


def test_who_is_replaced_computes_what_waits_and_ends(held: Recorder) -> None:
    for rid in "abc":
        held.add(rid, entries=2)
    held.batcher.retire()
    held.add("late")
    assert held.take(1)["late"].status == 503
    held.gate.set()
    assert [output.error for output in held.take(4).values()] == [None] * 4
    assert held.released.wait(PATIENCE)
    wait_for(lambda: held.batcher.over, "the thread ends")


def test_closing_answers_everybody_and_ends_the_thread(held: Recorder) -> None:
    for rid in "abc":
        held.add(rid)
    held.batcher.close()
    held.gate.set()
    answers = held.take(4)
    assert all(answers[rid].status == 503 and answers[rid].error for rid in "abc")
    wait_for(lambda: all(thread.name != "module-m" for thread in threading.enumerate()), "the thread ends")
    assert held.released.is_set()
    held.add("late")
    assert held.take(1)["late"].status == 503
