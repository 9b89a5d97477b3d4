"""The loop over its channel: what goes wrong with one request, one adapter, one message ends nobody else's answer."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from nbgen import frames, pieces
from nbgen.commands import AdapterState, LoadAdapter, UnloadAdapter
from nbgen.engine import loop, pulse, slow_lane
from nbgen.engine.adapter_folder import Adapter
from nbgen.engine.assembly import Assembly
from nbgen.engine.channel import Channel
from nbgen.engine.detokenizer import Detokenizer
from nbgen.engine.embedding_loop import EmbeddingLoop
from nbgen.engine.grammar import Grammar
from nbgen.engine.loop import Loop
from nbgen.engine.lora import LoraLinear
from nbgen.engine.sequence import Sequence
from nbgen.engine_state import EngineStatus, LoadProgress
from nbgen.frames import FromEngine, ToEngine, encode_frame, frame_length, from_engine_decoder
from nbgen.messages import AbortRequest, ChatMessage, GenerateOutput, GenerateRequest, LogprobOptions, StepOutputs
from nbgen.sampling_params import SamplingParams
from nbgen.tokenizer_messages import DetokenizeRequest, TokenizerAnswer
from tests.adapters import save_adapter
from tests.conftest import PATIENCE
from tests.engine.conftest import build, generate, ids

PROMPT = list(range(10, 40))
NEW_TOKENS = 100

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
]


class Served:
    """A loop over an engine of this process, and the server's end of its channel."""

    def __init__(self, made: Callable[[Channel], Loop | EmbeddingLoop]) -> None:
        self.socket, engine = socket.socketpair()
        self.socket.settimeout(PATIENCE)
        self._stream = self.socket.makefile("rb")
        self.channel = Channel(engine.detach(), on_lost=lambda: None)
        self.thread = threading.Thread(target=made(self.channel).run, args=(self.channel.messages(),))
        self.thread.start()

    def send(self, *messages: ToEngine) -> None:
        self.socket.sendall(b"".join(map(encode_frame, messages)))

    def receive(self) -> FromEngine:
        return from_engine_decoder.decode(self._stream.read(frame_length(self._stream.read(4))))

    def until(self, enough: Callable[[FromEngine], bool]) -> list[FromEngine]:
        """What is said, up to where it is enough."""
        messages = [self.receive()]
        while not enough(messages[-1]):
            messages.append(self.receive())
        return messages

    def outputs(self, *rids: str, said: Iterable[FromEngine] = ()) -> dict[str, list[GenerateOutput]]:
        """Those of requests that have been sent, of one sample each, to their ends; the first were `said` already."""
        found: dict[str, list[GenerateOutput]] = {rid: [] for rid in rids}
        before = iter(said)
        while not all(outputs and outputs[-1].finish_reason for outputs in found.values()):
            message = next(before, None) or self.receive()
            for output in message.outputs if isinstance(message, StepOutputs) else ():
                found[output.rid].append(output)
        return found

    def close(self) -> None:
        self._stream.close()
        self.socket.close()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.channel.close()


@pytest.fixture(scope="module")
def assembly(tiny_model: Path) -> Iterator[Assembly]:
    assembly = build(tiny_model)
    yield assembly
    assembly.close()


@pytest.fixture
def served(assembly: Assembly) -> Iterator[Served]:
    served = Served(partial(Loop, assembly=assembly))
    yield served
    served.close()
    status = assembly.engine.status()
    assert (status.running, status.waiting, status.blocks_free) == (0, 0, status.blocks_total)


def request(rid: str, **changes: object) -> GenerateRequest:
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, n=int(changes.pop("n", 1)))
    return GenerateRequest(rid=rid, input_ids=PROMPT, **{"params": params, **changes})


@pytest.fixture(scope="module")
def expected(assembly: Assembly) -> list[int]:
    """What a request's answer is."""
    return ids(generate(assembly, [request("r")])["r"])


# --- one request's trouble


def fails(outputs: list[GenerateOutput], words: str) -> bool:
    reason = outputs[-1].finish_reason
    return reason.type == "error" and words in (reason.message or "")


def test_an_answer_too_large_for_a_message_ends_with_an_error(
    served: Served, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME", 20_000)
    served.send(request("good"), request("large", logprobs=LogprobOptions(start=0, top=100, text=True)))
    outputs = served.outputs("good", "large")
    assert fails(outputs["large"], "cannot be sent")
    assert ids(outputs["good"]) == expected


@pytest.mark.parametrize("long", [slow_lane.LONG, 10], ids=["at once", "in a lane"])
def test_a_text_too_large_for_a_message_fails_alone(
    served: Served, expected: list[int], long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME", 20_000)
    monkeypatch.setattr(slow_lane, "LONG", long)
    for rid, length in (("large", 10_000), ("small", 20)):
        served.send(DetokenizeRequest(rid=rid, token_ids=[[0] * length], skip_special_tokens=False))
    said = served.until(lambda message: isinstance(message, TokenizerAnswer))
    assert fails(served.outputs("large", said=said)["large"], "cannot be sent")
    assert (said[-1].rid, len(said[-1].texts[0])) == ("small", 20 * len("<|end|>"))
    served.send(request("good"))
    assert ids(served.outputs("good")["good"]) == expected


def test_an_option_that_needs_a_grammar_back_end_is_named_where_there_is_none(tiny_model: Path) -> None:
    bare = build(tiny_model, grammar_backend="none")
    served = Served(partial(Loop, assembly=bare))
    served.send(request("r", params=SamplingParams(regex="a")))
    outputs = served.outputs("r")["r"]
    assert fails(outputs, "regex needs a grammar back end")
    assert outputs[-1].finish_reason.field == "regex"
    served.close()
    bare.close()


def test_samples_have_their_prompts_log_probabilities_in_messages_of_their_own(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_LOGPROBS", 60)
    served.send(request("r", n=3, logprobs=LogprobOptions(start=0, top=3, token_ids=[5])))
    ended, alone = set(), []
    while len(ended) < 3:
        message = served.receive()
        outputs = message.outputs if isinstance(message, StepOutputs) else []
        large = [output for output in outputs if output.prompt_logprobs]
        assert not large or len(outputs) == 1
        alone += [(output.index, len(output.prompt_logprobs)) for output in large]
        ended |= {output.index for output in outputs if output.finish_reason}
    assert sorted(alone) == [(index, rows) for index in range(3) for rows in (6, 12, 12)]


def test_what_cannot_be_read_of_one_answer_ends_that_one(
    served: Served, assembly: Assembly, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = assembly.engine._logprobs.output

    def output(sequence: Sequence, *given: object) -> object:
        if sequence.rid == "bad" and sequence.num_output == 3:
            raise torch.OutOfMemoryError
        return describe(sequence, *given)

    monkeypatch.setattr(assembly.engine._logprobs, "output", output)
    served.send(request("good"), request("bad"))
    outputs = served.outputs("good", "bad")
    assert fails(outputs["bad"], "could not be completed")
    assert len(ids(outputs["bad"])) == 3
    assert ids(outputs["good"]) == expected


def test_what_cannot_be_read_of_one_prompt_ends_that_one(
    served: Served, assembly: Assembly, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt(*given: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(assembly.engine._logprobs, "prompt", prompt)
    served.send(request("good"), request("bad", logprobs=LogprobOptions(start=0)))
    outputs = served.outputs("good", "bad")
    assert fails(outputs["bad"], "could not be completed")
    assert ids(outputs["good"]) == expected


def test_an_abort_ends_what_a_tokenizer_fails_at(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(_: Detokenizer) -> str:
        raise RuntimeError

    monkeypatch.setattr(Detokenizer, "flush", flush)
    served.send(request("r"), AbortRequest(rid="r"))
    assert served.outputs("r")["r"][-1].finish_reason.type == "abort"


def test_a_grammar_that_makes_no_matcher_is_refused(
    served: Served, assembly: Assembly, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = assembly.grammars.submit(Grammar("regex", "a+")).result()

    def matcher(_: object) -> None:
        raise KeyError

    monkeypatch.setattr(type(compiled), "matcher", matcher)
    served.send(request("good"), request("bad", params=SamplingParams(regex="a+")))
    outputs = served.outputs("good", "bad")
    assert fails(outputs["bad"], "grammar")
    assert ids(outputs["good"]) == expected


def test_a_loop_that_cannot_hear_ends(assembly: Assembly) -> None:
    served = Served(partial(Loop, assembly=assembly))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)
        served.socket.sendall((1).to_bytes(4, "big") + b"\xc1")
        served.thread.join(PATIENCE)
        assert not served.thread.is_alive()
    served.close()


# --- one adapter's


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("adapters")
    kinds = {"r": 4}, {"r": 3, "target_modules": ["q_proj", "lm_head"]}
    return [str(save_adapter(place / str(i), tiny_model, i, **kind)) for i, kind in enumerate(kinds)]


def state(served: Served) -> AdapterState:
    return served.until(lambda message: isinstance(message, AdapterState))[-1]


def test_an_adapter_that_does_not_fit_leaves_the_others_as_they_are(
    served: Served, assembly: Assembly, folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.send(LoadAdapter(rid="0", name="first", folder=folders[0]))
    assert state(served).error is None
    served.send(request("r", adapter="first"))
    first = ids(served.outputs("r")["r"])
    stacked, modules = LoraLinear.stacked, set(assembly.engine._runner.model.modules())

    def full(layer: LoraLinear, path: str, adapters: list[Adapter], *where: object) -> object:
        if "down_proj" in path:
            raise torch.OutOfMemoryError
        return stacked(layer, path, adapters, *where)

    with monkeypatch.context() as patch:
        patch.setattr(LoraLinear, "stacked", full)
        adapted, late = request("r", adapter="first"), request("late", adapter="second")
        served.send(adapted, LoadAdapter(rid="1", name="second", folder=folders[1]), late)
        *said, refused = served.until(lambda message: isinstance(message, AdapterState))
        assert (refused.name, refused.status) == ("second", 503)
        assert "does not fit" in refused.error
        outputs = served.outputs("r", "late", said=said)
        assert fails(outputs["late"], "'second'")
        assert ids(outputs["r"]) == first
        assert set(assembly.engine._runner.model.modules()) == modules
    served.send(LoadAdapter(rid="2", name="second", folder=folders[1]))
    assert state(served).error is None
    with monkeypatch.context() as patch:
        patch.setattr(LoraLinear, "stacked", full)
        served.send(UnloadAdapter(rid="3", name="second"))
        assert state(served).error is None
        served.send(request("r", adapter="first"))
        assert ids(served.outputs("r")["r"]) == first
    served.send(UnloadAdapter(rid="4", name="first"))
    assert state(served).error is None
    assert not assembly.engine._runner.lora.wraps, "what was left of the second went with the first"


# --- a step that lasts


class Lasting:
    """What is in the place of a computation: it goes on until the server has heard of it while it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pulse, "LOOK_SECONDS", 0.01)
        monkeypatch.setattr(pulse, "USED_SECONDS", 0.001)
        self.served: Served | None = None
        self._heard = threading.Event()

    def __call__(self) -> None:
        self.served.channel.send(LoadProgress(stage="begun"))
        while not self._heard.is_set():
            pass

    def is_heard(self) -> None:
        self.served.until(lambda message: isinstance(message, LoadProgress))
        self.served.until(lambda message: isinstance(message, EngineStatus))
        self._heard.set()


def test_a_step_that_lasts_is_no_silence(
    assembly: Assembly, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting, run = Lasting(monkeypatch), assembly.engine._runner.run

    def runs_long(*given: object) -> object:
        lasting()
        return run(*given)

    monkeypatch.setattr(assembly.engine._runner, "run", runs_long)
    lasting.served = served = Served(partial(Loop, assembly=assembly))
    served.send(request("r"))
    lasting.is_heard()
    outputs = served.outputs("r")
    assert ids(outputs["r"]) == expected
    served.close()


@pytest.mark.parametrize("kind", ["text", "media"])
def test_an_admission_that_does_not_end_silences_the_engine(
    kind: str, assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the server ends it; a status that had been on its way may still come."""
    template = "{% for a in range(500) %}{% for b in range(99999) %}{% endfor %}{% endfor %}a"
    monkeypatch.setattr(loop, "ADMISSION_SECONDS" if kind == "text" else "MEDIA_SECONDS", 0.1)
    monkeypatch.setattr(assembly.admission._tokenizer._tokenizer, "chat_template", template)
    if kind == "media":
        monkeypatch.setattr(Loop, "_hear", lambda loop, message: loop._lanes.media.put(message))
    served = Served(partial(Loop, assembly=assembly))
    chat = [ChatMessage(role="user", content="hi")]
    served.send(GenerateRequest(rid="r", messages=chat, params=SamplingParams(max_new_tokens=1, ignore_eos=True)))
    said = served.until(lambda message: isinstance(message, StepOutputs))
    assert sum(isinstance(message, EngineStatus) for message in said) <= 2
    served.close()
