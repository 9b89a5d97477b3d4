"""Clients' own processors: each request's own, in SGLang's wire format, failing alone."""

import json
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import ModuleType

import dill
import msgspec
import pytest
import torch

from nbgen.engine.assembly import Assembly
from nbgen.engine.logit_processors import LogitProcessors
from nbgen.errors import InvalidRequest
from nbgen.logit_processor import (
    SGLANG_MODULE,
    CustomLogitProcessor,
    DisallowedTokensLogitsProcessor,
    Named,
    WrongParams,
)
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import PATIENCE
from tests.engine.conftest import build, generate, ids

FORCE = """
    def __call__(self, logits, custom_param_list):
        for row, params in enumerate(custom_param_list):
            token = params["token_id"] + len(params["__req__"].output_ids)
            logits[row] = float("-inf")
            logits[row, token] = 0.0
        return logits
"""
FAULTS = {
    "raises": "    def __call__(self, logits, params):\n        raise KeyError('secret')",
    "returns the wrong shape": "    def __call__(self, logits, params):\n        return logits[:, :3]",
    "returns nothing": "    def __call__(self, logits, params):\n        pass",
    "sleeps": "    def __call__(self, logits, params):\n        import time; time.sleep(30)",
    "returns NaN": "    def __call__(self, logits, params):\n        return logits * float('nan')",
    "leaves": "    def __call__(self, logits, params):\n        raise SystemExit",
}


def wire(body: str, base: str = "nbgen.logit_processor") -> str:
    """A processor as a client's script would send it; the class is defined in `__main__`."""
    scope = {"__name__": "__main__"}
    exec(f"from {base} import CustomLogitProcessor\nclass Mine(CustomLogitProcessor):\n{body}", scope)
    return json.dumps({"callable": dill.dumps(scope["Mine"], recurse=True).hex()})


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Assembly:
    return build(tiny_model, enable_custom_logit_processor=True)


def ask(rid: str, processor: str | None, **options: object) -> GenerateRequest:
    params = SamplingParams.parse({"max_new_tokens": 5, "temperature": 0, "ignore_eos": True, **options})
    return GenerateRequest(rid=rid, input_ids=[10, 20, 30], logit_processor=processor, params=params)


def test_forty_eight_requests_each_get_their_own(engine: Assembly) -> None:
    processor = wire(textwrap.dedent(FORCE).replace("\n", "\n    "))
    requests = [ask(f"p{i}", processor, custom_params={"token_id": 50 + i}) for i in range(32)]
    free = [ask(f"f{i}", None) for i in range(16)]
    outputs = generate(engine, [*requests, *free])
    for i in range(32):
        assert ids(outputs[f"p{i}"]) == list(range(50 + i, 55 + i))
    alone = ids(generate(engine, [ask("alone", None)])["alone"])
    assert all(ids(outputs[f"f{i}"]) == alone for i in range(16))


def test_what_an_answer_begins_with_is_its_own_to_a_processor(engine: Assembly) -> None:
    processor = wire(textwrap.dedent(FORCE).replace("\n", "\n    "))
    request = msgspec.structs.replace(ask("r", processor, custom_params={"token_id": 50}), prefix_ids=[50, 51])
    assert ids(generate(engine, [request])["r"]) == [52, 53, 54, 55, 56]


def test_a_processor_written_for_sglang_loads_without_sglang(engine: Assembly) -> None:
    """Its base class is pickled by reference to SGLang's module, which only the client has."""
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "sglang"}
    parts = SGLANG_MODULE.split(".")
    theirs = {".".join(parts[: depth + 1]): ModuleType(".".join(parts[: depth + 1])) for depth in range(len(parts))}
    base = type("CustomLogitProcessor", (), {"__module__": SGLANG_MODULE})
    theirs[SGLANG_MODULE].CustomLogitProcessor = base
    sys.modules.update(theirs)
    try:
        processor = wire(textwrap.dedent(FORCE).replace("\n", "\n    "), SGLANG_MODULE)
    finally:
        for name in theirs:
            del sys.modules[name]
        sys.modules.update(ours)
    assert SGLANG_MODULE.encode() in bytes.fromhex(json.loads(processor)["callable"])
    outputs = generate(engine, [ask("r", processor, custom_params={"token_id": 90})])
    assert ids(outputs["r"]) == [90, 91, 92, 93, 94]


def test_the_class_writes_and_reads_itself(engine: Assembly) -> None:
    text = DisallowedTokensLogitsProcessor.to_str()
    assert isinstance(CustomLogitProcessor.from_str(text), DisallowedTokensLogitsProcessor)
    free = ids(generate(engine, [ask("r", None)])["r"])
    barred = ids(generate(engine, [ask("r", text, custom_params={"token_ids": free})])["r"])
    assert not set(barred) & set(free)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_processor_that_fails_ends_its_own_request(engine: Assembly, fault: str) -> None:
    alone = ids(generate(engine, [ask("good", None)])["good"])
    outputs = generate(engine, [ask("bad", wire(FAULTS[fault])), ask("good", None)])
    assert ids(outputs["good"]) == alone
    reason = outputs["bad"][-1].finish_reason
    assert (reason.type, reason.status) == ("error", 400)
    assert "secret" not in reason.message


def test_of_those_that_share_a_processor_only_the_one_at_fault_ends(engine: Assembly) -> None:
    processor = wire(textwrap.dedent(FORCE).replace("\n", "\n    "))
    requests = [ask("bad", processor, custom_params={}), ask("good", processor, custom_params={"token_id": 60})]
    outputs = generate(engine, requests)
    assert outputs["bad"][-1].finish_reason.type == "error"
    assert ids(outputs["good"]) == [60, 61, 62, 63, 64]


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"callable": 5}', '{"callable": "zz"}', '{"callable": "00ff"}', "[" * 200_000]
)
def test_what_is_no_processor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be loaded"):
        LogitProcessors().load(text)


def test_a_pickle_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="TypeError"):
        LogitProcessors().load(json.dumps({"callable": dill.dumps(len).hex()}))


def test_without_the_owners_word_nothing_is_loaded(tiny_engine: Assembly, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Canary:
        def __reduce__(self) -> tuple:
            return (Path.touch, (canary,))

    hostile = json.dumps({"callable": dill.dumps(Canary()).hex()})
    with pytest.raises(InvalidRequest, match="not configured to enable custom logit processor"):
        tiny_engine.admission.sequences(ask("r", hostile))
    assert not canary.exists()


def test_custom_params_without_a_processor_are_ignored(tiny_engine: Assembly) -> None:
    plain = ids(generate(tiny_engine, [ask("r", None)])["r"])
    assert ids(generate(tiny_engine, [ask("r", None, custom_params=[1, {"a": 2}])])["r"]) == plain


def test_their_threads_end_with_the_engine(tiny_model: Path) -> None:
    made = build(tiny_model, enable_custom_logit_processor=True)
    before = set(threading.enumerate())
    generate(made, [ask("a", wire(FAULTS["returns NaN"]))])
    own = [thread for thread in {*threading.enumerate()} - before if thread.name == "logit-processors"]
    assert own
    made.close()
    for thread in own:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in own)


def named(name: str, **args: object) -> str:
    return json.dumps({"name": name, "args": args})


def test_processors_by_name_need_no_owners_word(tiny_engine: Assembly) -> None:
    only = ask("only", named("allowed_tokens", token_ids=[70]))
    others = ask("others", named("disallowed_tokens"), custom_params={"token_ids": [i for i in range(260) if i != 80]})
    outputs = generate(tiny_engine, [only, others, ask("free", None)])
    assert set(ids(outputs["only"])) == {70}
    assert set(ids(outputs["others"])) == {80}
    assert ids(outputs["free"]) == ids(generate(tiny_engine, [ask("free", None)])["free"])


@pytest.mark.parametrize("told", ["args", "custom_params"])
def test_a_long_list_of_ids_is_read_once(told: str) -> None:
    given = {"token_ids": [5, 7] * 2**20}
    processor = Named("disallowed_tokens", given if told == "args" else {})
    params = [None if told == "args" else given]
    scores, seconds = torch.zeros(1, 260), []
    for _ in range(5):
        began = time.thread_time()
        processor(scores, params)
        seconds.append(time.thread_time() - began)
    assert scores[0].isinf().nonzero().flatten().tolist() == [5, 7]
    assert min(seconds[1:]) < seconds[0] / 5


def test_ids_are_read_again_for_another_vocabulary() -> None:
    processor = Named("disallowed_tokens", {"token_ids": [5, 7]})
    processor(torch.zeros(1, 260), [None])
    with pytest.raises(WrongParams, match="from 0 to 6"):
        processor(torch.zeros(1, 7), [None])


@pytest.mark.parametrize("token_ids", [[10**6], [-1], ["a"], 5, [True]])
def test_ids_outside_the_vocabulary_end_their_request_alone(
    token_ids: object, tiny_engine: Assembly, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = generate(tiny_engine, [ask("bad", named("disallowed_tokens", token_ids=token_ids)), ask("good", None)])
    message = outputs["bad"][-1].finish_reason.message
    assert message.startswith("custom_logit_processor: token_ids must be a list of integers from 0 to")
    assert not caplog.records, "which is its sender's mistake"
    assert outputs["good"][-1].finish_reason.type != "error"


@pytest.mark.parametrize("options", [{}, {"regex": "[0-9]+"}])
def test_a_processor_that_leaves_no_token_is_named(options: dict[str, str], tiny_engine: Assembly) -> None:
    outputs = generate(tiny_engine, [ask("bad", named("allowed_tokens", token_ids=[]), **options)])
    assert "custom_logit_processor" in outputs["bad"][-1].finish_reason.message


@pytest.mark.parametrize("told", ["zzz", 5, [{"token_ids": [1]}]])
def test_named_processors_are_told_objects(told: object, tiny_engine: Assembly) -> None:
    outputs = generate(tiny_engine, [ask("bad", named("disallowed_tokens"), custom_params=told), ask("good", None)])
    assert "must be an object" in outputs["bad"][-1].finish_reason.message
    assert outputs["good"][-1].finish_reason.type != "error"


@pytest.mark.parametrize("text", ['{"name": "os.system"}', '{"name": 5}', '{"name": "allowed_tokens", "args": 3}'])
def test_what_has_no_name_here_is_refused(text: str, tiny_engine: Assembly) -> None:
    with pytest.raises(InvalidRequest, match="cannot be loaded"):
        tiny_engine.admission.sequences(ask("r", text))
