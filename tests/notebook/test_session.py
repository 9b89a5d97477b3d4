"""The helpers against a real server: answers, streams that stop when left, loading, errors."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nbgen
from nbgen.errors import InvalidRequest, NotFound, ServerNotFound, Unauthorized
from nbgen.notebook.client import Client
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.result import Result
from tests.conftest import PATIENCE, wait_for

HELPERS = sorted(set(dir(nbgen)) - {"__version__"})


def idle() -> None:
    wait_for(lambda: not nbgen.status().raw["status"].get("running"), "the engine is idle")


def test_import_is_light() -> None:
    check = (
        "import sys, time; start = time.process_time(); import nbgen; seconds = time.process_time() - start;"
        "assert seconds < 0.3, seconds; assert not {'httpx', 'anywidget', 'torch'} & set(sys.modules);"
        "nbgen.generate; nbgen.Chat; nbgen.errors; nbgen.logit_processor\n"
        "try: nbgen.serve(5)\n"
        "except nbgen.errors.InvalidRequest as error: assert str(error).endswith('model of transformers, got int')\n"
        "assert not {'torch', 'tornado.web', 'nbgen.server'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_every_helper_is_there_and_documented() -> None:
    assert all(getattr(nbgen, name).__doc__ for name in HELPERS)


def test_help_of_the_package_shows_how_to_begin() -> None:
    shown = re.findall(r"nbgen\.(\w+)", nbgen.__doc__ or "")
    assert {"generate", "stream", "Chat", "map", "load"} <= set(shown) <= set(dir(nbgen))


def test_an_answer_has_text_and_numbers(connected: PrivateServer) -> None:
    result = nbgen.generate("hi", max_new_tokens=8, temperature=0)
    assert result.text
    assert result.usage["completion_tokens"] == 8
    assert result.finish_reason == "length"
    assert result.ttft_s is not None
    assert result.messages == [{"role": "user", "content": "hi"}]


def test_a_stream_brings_the_same_text_in_pieces(connected: PrivateServer) -> None:
    options = {"max_new_tokens": 200, "temperature": 0, "ignore_eos": True}
    whole = nbgen.generate("count", **options)
    stream = nbgen.stream("count", **options)
    assert "".join(stream) == stream.result.text == whole.text
    assert stream.result.usage == {**whole.usage, "cached_tokens": stream.result.usage["cached_tokens"]}


def test_pieces_come_before_the_end(connected: PrivateServer) -> None:
    with nbgen.stream("count", max_new_tokens=15_000, ignore_eos=True) as stream:
        begun = [next(stream), next(stream)]
    assert stream.result.finish_reason == "abort"
    assert stream.result.text.startswith("".join(begun))


async def test_a_stream_can_be_awaited(connected: PrivateServer) -> None:
    options = {"max_new_tokens": 12, "temperature": 0}
    answers = await asyncio.gather(*(nbgen.stream(f"count {i}", **options) for i in range(3)))
    assert [answer.usage["completion_tokens"] for answer in answers] == [12, 12, 12]
    stream = nbgen.stream("count 1", **options)
    assert "".join([text async for text in stream]) == stream.result.text == answers[1].text


async def test_a_cancelled_task_stops_its_run(connected: PrivateServer) -> None:
    stream = nbgen.stream("hi", max_new_tokens=15_000, ignore_eos=True)

    async def ask() -> Result:
        return await stream

    task = asyncio.create_task(ask())
    async with asyncio.timeout(PATIENCE):
        while not stream.result.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.result.finish_reason == "abort"
    idle()


def test_a_conversation_remembers(connected: PrivateServer) -> None:
    talk = nbgen.chat("be short", temperature=0, max_new_tokens=4)
    first = talk("hi")
    second = talk("and?", max_new_tokens=2)
    assert [turn["role"] for turn in talk.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert second.messages == [*talk.messages[:3], {"role": "user", "content": "and?"}]
    assert (first.usage["completion_tokens"], second.usage["completion_tokens"]) == (4, 2)
    assert "and?" in talk._repr_mimebundle_()["text/markdown"]
    assert list(talk.to_df().columns) == ["role", "content"]
    talk.undo()
    assert len(talk) == 3
    stream = talk.stream("more", ignore_eos=True, max_new_tokens=15_000)
    next(stream)
    stream.close()
    assert talk.messages[-1] == {"role": "assistant", "content": stream.result.text}


def test_the_same_seed_gives_the_same_answer(connected: PrivateServer) -> None:
    options = {"complete": True, "max_new_tokens": 12, "temperature": 1, "sampling_seed": 5}
    first, second = (nbgen.generate("x", **options) for _ in range(2))
    assert first.text == second.text


def test_leaving_a_stream_stops_the_run(connected: PrivateServer) -> None:
    stream = nbgen.stream("hi", max_new_tokens=15_000, ignore_eos=True)
    for _ in stream:
        break
    stream.close()
    assert stream.result.finish_reason == "abort"
    assert stream.result.text
    idle()


def test_an_interrupt_keeps_the_partial_answer(connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Client):
        def run(self, body):
            events = super().run(body)
            for name, data in events:
                yield name, data
                if data.get("text"):
                    events.close()
                    raise KeyboardInterrupt

    client = Interrupted(connected.url)
    client._http.headers.update(connected.client._http.headers)
    monkeypatch.setattr("nbgen.notebook.session._client", client)
    with pytest.raises(KeyboardInterrupt) as caught:
        nbgen.generate("hi", max_new_tokens=15_000, ignore_eos=True)
    assert caught.value.result.finish_reason == "abort"
    assert caught.value.result.text
    client.close()


def test_errors_have_the_servers_words(connected: PrivateServer) -> None:
    client = connected.client
    with pytest.raises(InvalidRequest, match="top_p"):
        next(client.run({"prompt": "x", "params": {"top_p": 5}}))
    with pytest.raises(NotFound, match="no run"):
        client.cancel("nobody")
    assert client.chat("nobody")["messages"] == []


def test_a_wrong_token_and_a_dead_server_are_told_apart(connected: PrivateServer) -> None:
    with pytest.raises(Unauthorized):
        nbgen.connect(connected.url, "wrong")
    with pytest.raises(ServerNotFound, match="nothing answers"):
        nbgen.connect("http://127.0.0.1:9/")


def test_an_interrupted_load_says_that_it_goes_on(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object):
        yield "progress", {"stage": "loading", "done": 1, "total": 2}
        raise KeyboardInterrupt

    monkeypatch.setattr(connected.client, "load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        nbgen.load()
    shown = capsys.readouterr()
    assert "%nbgen unload" in shown.out
    assert f"{Path(connected.client.model()['name']).name}: loading · 50%" in shown.err


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: nbgen.generate("a\ud800"), r"'\\ud800', half of a surrogate pair"),
        (lambda: nbgen.generate("a", stop="\ud800"), "half of a surrogate pair"),
        (lambda: nbgen.tokenize("a\ud800"), "half of a surrogate pair"),
        (lambda: nbgen.tokenize(["a", "b"]), r"got 2 texts: .*nbgen\.map"),
        (lambda: nbgen.logprobs(["a", "b"]), r"got 2 texts: .*nbgen\.map"),
        (lambda: nbgen.logprobs(5), "got int"),
        (lambda: nbgen.detokenize(["a"]), "a list of integers"),
        (lambda: nbgen.detokenize(5), "a list of integers"),
        (lambda: nbgen.load(5), "a model is a folder"),
        (lambda: nbgen.load(quantization="int3"), "quantization is one of int8, int4, none, got 'int3'"),
        (lambda: nbgen.logprobs("a", top=-1), "top must be 0 to"),
        (lambda: nbgen.generate("a", adapter="nope"), "adapter: the adapter 'nope' has never been loaded"),
        (lambda: nbgen.generate("a", json_schema={"type": "object"}), "json_schema is a text; schema=… takes a dict"),
        (lambda: nbgen.Chat(5), "a chat's name is a text, got int"),
        (lambda: nbgen.infer("m", [1.0]), "arrays by their names"),
        (lambda: nbgen.generate("a", template_options={"a": object()}), "template_options cannot be sent as JSON"),
        (lambda: nbgen.generate("a", template_options=["a"]), r"template_options are a dict, .* got list"),
        (lambda: nbgen.generate("a", template_options={"1": 2}), r"^template_options\.1 is not an option"),
        (lambda: nbgen.generate("a", tool_choice=object()), "tool_choice cannot be sent as JSON"),
        (lambda: nbgen.generate("a", custom_params={"a": object()}), "custom_params cannot be sent as JSON"),
        (lambda: nbgen.infer("m", {}, temperature=float("nan")), "parameters cannot be sent as JSON"),
        (lambda: nbgen.generate("a", images="~nobody-here/a.png"), "there is no file '~nobody-here/a.png'"),
    ],
)
def test_values_of_a_wrong_type_are_refused_in_a_sentence(
    connected: PrivateServer, mistake: Callable[[], Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        mistake()


@pytest.mark.parametrize("wrong", [{"temprature": 1}, {"temperature": "hot"}, {"top_k": 1.5}, {"stop": 5}])
def test_a_wrong_option_is_an_error_of_the_public_name(wrong: dict[str, Any]) -> None:
    for helper in (nbgen.generate, nbgen.stream, nbgen.Chat, nbgen.compare):
        with pytest.raises(InvalidRequest) as refused:
            helper("hi", **wrong)
        assert type(refused.value) is InvalidRequest


def test_several_answers_are_told_of_and_refused_where_one_has_place(connected: PrivateServer) -> None:
    result = nbgen.generate("hi", n=3, max_new_tokens=2, ignore_eos=True)
    assert len(result.texts) == 3
    assert result.caption.endswith("2 more in .texts")
    for helper in (nbgen.Chat, nbgen.Stream, partial(nbgen.compare, "hi"), partial(nbgen.logprobs, "hi")):
        with pytest.raises(InvalidRequest, match="one answer has place here"):
            helper(n=2)
    with pytest.raises(InvalidRequest, match="one answer has place here"):
        nbgen.map(["hi"], n=2)
