"""Steps that fail, for want of memory or by the model's own fault, end nobody's answer but whose fault it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nbgen.messages import LogprobOptions
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids
from tests.engine.test_launcher import PROMPT, UNINSTALLED, answers, check_idle, request

pytestmark = pytest.mark.usefixtures("little_garbage")


@pytest.mark.filterwarnings(*UNINSTALLED)
@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "falcon_h1"])
def test_steps_for_which_there_is_no_memory_are_made_smaller(
    lookahead: bool, model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's text changes; cached prefixes that were never computed are not believed."""
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    requests = [request(str(i), list(range(10 + i, 210 + i)), logprobs=LogprobOptions()) for i in range(3)]
    requests.append(request("part", list(range(10, 150))))
    expected = answers(generate(build(folder), requests))
    assembly = build(folder, prefill_chunk=512, draft_tokens=0)
    assembly.engine._launcher.lookahead = lookahead
    runner, seen = assembly.engine._runner, []
    keep = runner.run

    def run(batch: list, *rest: Any) -> Any:
        seen.append(sum(item.num_tokens for item in batch))
        if seen[-1] > 140 or len(seen) == 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return keep(batch, *rest)

    generate(assembly, [request("before", list(range(10, 140)))])
    monkeypatch.setattr(runner, "run", run)
    assert answers(generate(assembly, requests)) == expected
    assert max(seen) > 256, "no step was too large: nothing was tested"
    assert len(seen) > 20
    status = assembly.engine.status()
    assert status.blocks_free == status.blocks_total


def gpu_full() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def machine_full() -> None:
    torch.empty(2**50)


@pytest.mark.parametrize("full", [gpu_full, machine_full])
def test_a_request_for_which_there_is_never_memory_ends_alone(
    full: Callable[[], None], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = build(tiny_model, prefill_chunk=64, max_running=3)
    runner, keep = assembly.engine._runner, assembly.engine._runner.run
    fits = generate(assembly, [request("fits")])

    def run(batch: list, *rest: Any) -> Any:
        if any(item.sequence.rid == "large" for item in batch):
            full()
        return keep(batch, *rest)

    monkeypatch.setattr(runner, "run", run)
    later = [request(f"later{i}") for i in range(4)]
    found = generate(assembly, [request("fits"), request("large"), *later])
    assert {rid: ids(outputs) for rid, outputs in found.items() if rid != "large"} == dict.fromkeys(
        ("fits", *(each.rid for each in later)), ids(fits["fits"])
    )
    reason = found["large"][-1].finish_reason
    assert (reason.type, reason.status, "memory" in reason.message) == ("error", 503, True)


@pytest.mark.filterwarnings(*UNINSTALLED)
@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("model_type", ["bitnet", "mamba2", "bloom"])
def test_who_makes_the_model_fail_ends_alone(lookahead: bool, model_type: str, tmp_path: Path) -> None:
    """One of each tier. By their prompts, or by a token that comes in the middle of an answer."""
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    sampled = {"temperature": 1.0, "sampling_seed": 1}
    others = [request("good", n=2, **sampled), request("long", PROMPT * 4, **sampled)]
    late = request("late", [7, 8, 9], **sampled)
    assembly = build(folder, prefill_chunk=64)
    expected = answers(generate(assembly, [*others, late]))
    written = expected.pop(("late", 0))[0]
    theirs = {*PROMPT, *(token for tokens, *_ in expected.values() for token in tokens)}
    at = max(written.index(token) for token in written if token not in theirs)
    alien = next(token for token in range(100, 256) if token not in {*theirs, *written})
    bad = request("bad", [*range(60, 90), alien, 5, 6])
    fails = []

    def look(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if {alien, written[at]} & set(arguments[0].flatten().tolist()):
            fails.append(arguments[0].numel())
            raise IndexError("no such expert")

    assembly.engine.flush_cache()
    assembly.engine._launcher.lookahead = lookahead
    assembly.engine._runner.model.get_input_embeddings().register_forward_pre_hook(look)
    found = answers(outputs := generate(assembly, [*others, late, bad]))
    for rid in ("bad", "late"):
        reason = outputs[rid][-1].finish_reason
        assert (reason.type, reason.status, "the model fails" in reason.message) == ("error", 500, True)
    assert [found.pop((rid, 0))[0] for rid in ("bad", "late")] == [[], written[: at + 1]]
    assert found == expected
    assert len(fails) >= 4, "nobody failed with others and then alone"
    check_idle(assembly)


def test_a_model_that_fails_at_everybody_answers_everybody(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assembly = build(tiny_model)
    keep = assembly.engine._runner.run

    def run(*_: Any) -> None:
        raise KeyError("layers")

    with monkeypatch.context() as patch:
        patch.setattr(assembly.engine._runner, "run", run)
        outputs = generate(assembly, [request(str(i), list(range(10, 20 + i))) for i in range(3)])
    assert [output.finish_reason.status for each in outputs.values() for output in each] == [500] * 3
    assert assembly.engine._runner.run == keep
    assert len(ids(generate(assembly, [request("then")])["then"])) == 24
    check_idle(assembly)
