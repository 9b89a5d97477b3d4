"""Functions that the panel's answers call: who calls them, when, once, and what becomes of the conversation."""

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal

import nbformat
import pytest
from nbclient import NotebookClient

import nbgen
from nbgen.errors import InvalidRequest, Unavailable
from nbgen.notebook import session
from nbgen.notebook.chat import Chat
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.rounds import GONE_ON, INTERRUPTED, STOPPED, TOO_MANY, Rounds
from nbgen.notebook.tools import MAX_ROUNDS, Tools
from nbgen.notebook.turns import NO_RESULT, answered, openai_call
from tests.conftest import wait_for

QUESTION = {"role": "user", "content": "What is the weather?"}


def calling(*names: str) -> dict[str, Any]:
    calls = [openai_call({"id": name, "name": name, "arguments": '{"city": "Oslo"}'}) for name in names]
    return {"role": "assistant", "content": "", "tool_calls": calls}


class Table:
    """Rounds over a conversation that is given."""

    def __init__(self, *tools: Any, turns: tuple[dict[str, Any], ...] = (QUESTION, calling("forecast"))) -> None:
        self.turns: list[dict[str, Any]] | None = list(turns)
        self.begun: list[list[dict[str, Any]]] = []
        self.sent: list[dict[str, Any]] = []
        self.rounds = Rounds(Tools(tools), lambda run: self.turns, self._go_on, self.sent.append)
        self.run = self.rounds.new_id()

    def _go_on(self, messages: list[dict[str, Any]], after: str) -> str:
        self.begun.append(messages)
        return "next"

    @property
    def told(self) -> list[str]:
        return [message.get("message", message["type"]) for message in self.sent]


def test_calls_are_made_once_whoever_asks() -> None:
    seen: list[tuple[str, bool]] = []

    def forecast(city: str) -> str:
        seen.append((city, threading.current_thread() is threading.main_thread()))
        return "rain"

    table = Table(forecast)
    for ask in (table.rounds.hear, table.rounds.step, table.rounds.hear):
        ask(table.run)
    assert seen == [("Oslo", True)]
    assert set(table.told) == {"calling"}
    (messages,) = table.begun
    assert messages[2:] == [{"role": "tool", "tool_call_id": "forecast", "content": "rain"}]


def test_a_page_that_a_thread_of_the_kernel_hears_is_answered_by_the_main_thread(monkeypatch: Any) -> None:
    def forecast(city: str) -> str:
        seen.append(threading.current_thread() is threading.main_thread())
        signal.raise_signal(signal.SIGINT)
        return "never"

    seen: list[bool] = []
    later: list[Any] = []
    loop = SimpleNamespace(add_callback=lambda *call: later.append(call))
    monkeypatch.setattr(
        "nbgen.notebook.rounds.get_ipython", lambda: SimpleNamespace(kernel=SimpleNamespace(io_loop=loop))
    )
    table = Table(forecast)
    subshell = threading.Thread(target=table.rounds.hear, args=(table.run,))
    subshell.start()
    subshell.join()
    assert seen == []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a kernel between cells
    try:
        for work, *given in later:
            work(*given)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (seen, table.told) == ([True], ["calling", INTERRUPTED])


def test_runs_of_others_are_left_alone() -> None:
    table = Table(lambda city: "never")
    table.rounds.hear("another-run")
    table.rounds.step("another-run")
    without = Table()
    without.rounds.hear(without.run)
    assert (without.rounds.owner, table.sent, without.sent) == ("", [], [])


def test_coroutine_functions_hold_up_nothing() -> None:
    go_on = threading.Event()

    async def forecast(city: str) -> str:
        await asyncio.to_thread(go_on.wait)
        return "rain"

    table = Table(forecast)
    table.rounds.hear(table.run)
    wait_for(lambda: table.told == ["calling"], "it is called while this thread goes on")
    assert (table.begun, table.rounds.calling) == ([], table.run)
    table.rounds.stop(table.run)
    table.rounds.step(table.run)
    assert table.rounds.calling is None
    table.run = table.rounds.new_id()
    table.rounds.hear(table.run)
    wait_for(lambda: table.rounds.calling == table.run, "another is called, though what was stopped has not ended")
    threading.Timer(0, go_on.set).start()
    table.rounds.step(table.run)
    assert len(table.begun) == 1


def test_a_function_may_wait_for_the_conversation_that_calls_it() -> None:
    def forecast(city: str) -> str:
        table.rounds.step(table.run)
        return "rain"

    table = Table(forecast)
    table.rounds.step(table.run)
    assert len(table.begun) == 1


def test_what_is_stopped_is_not_called_and_goes_on_no_further() -> None:
    def forecast(city: str) -> str:
        table.rounds.stop(table.run)
        return "rain"

    table = Table(forecast)
    assert table.rounds.stop(table.run) == table.run
    table.rounds.hear(table.run)
    table.run = table.rounds.new_id()
    table.rounds.hear(table.run)
    assert table.told == [STOPPED, STOPPED, "calling", STOPPED]
    assert not table.begun


def test_a_page_that_asks_again_hears_what_became_of_the_calls() -> None:
    go_on = threading.Event()

    async def forecast(city: str) -> str:
        await asyncio.to_thread(go_on.wait)
        raise KeyboardInterrupt

    table = Table(forecast)
    table.rounds.hear(table.run)
    wait_for(lambda: table.told == ["calling"], "it is called")
    table.rounds.hear(table.run)
    assert table.sent[0] == table.sent[1] == {"type": "calling", "run": table.run, "begun": True}
    go_on.set()
    wait_for(lambda: table.told[-1] == INTERRUPTED, "it is over")
    table.rounds.hear(table.run)
    assert table.sent[2:] == [{"type": "uncalled", "run": table.run, "message": INTERRUPTED, "begun": True}] * 2
    assert not table.begun


def test_calls_that_never_began_are_told_from_those_that_did() -> None:
    table = Table(turns=(QUESTION, calling("add")))
    table.rounds.owner = "me"
    for ask in (table.rounds.stop, table.rounds.hear):
        ask("me-1")
    assert table.sent == [{"type": "uncalled", "run": "me-1", "message": STOPPED, "begun": False}] * 2


def test_a_stop_that_comes_late_is_for_the_answer_that_has_begun() -> None:
    table = Table(lambda city: "rain", turns=(QUESTION, calling("<lambda>")))
    table.rounds.hear(table.run)
    assert table.rounds.stop(table.run) == table.rounds.following(table.run) == "next"


def test_what_cannot_be_called_is_said() -> None:
    def forecast(city: str) -> None:
        raise KeyboardInterrupt

    def add(city: str) -> None: ...

    rounds = [turn for _ in range(MAX_ROUNDS) for turn in (calling("add"), {"role": "tool", "content": "1"})]
    cases = [
        ((QUESTION, calling("add", "subtract", "divide")), "Nobody here can call subtract, divide."),
        ((QUESTION, *rounds[:-1]), TOO_MANY),
        ((QUESTION,), GONE_ON),
        ((), GONE_ON),
        ((QUESTION, calling("forecast")), INTERRUPTED),
    ]
    for turns, words in cases:
        table = Table(forecast, add, turns=turns)
        table.rounds.hear(table.run)
        assert table.told[-1] == words
        assert not table.begun


def test_rounds_are_counted_from_the_last_question() -> None:
    rounds = [turn for _ in range(MAX_ROUNDS) for turn in (calling("add"), {"role": "tool", "content": "1"})]
    table = Table(lambda city: "", turns=(QUESTION, *rounds, QUESTION, calling("<lambda>")))
    table.rounds.hear(table.run)
    assert table.begun


def test_a_server_that_is_gone_is_said_to_pages_and_raised_where_somebody_waits() -> None:
    def gone(run: str) -> None:
        raise Unavailable("nothing answers")

    sent: list[dict[str, Any]] = []
    rounds = Rounds(Tools(print_it), gone, lambda messages, after: "", sent.append)
    rounds.hear(rounds.new_id())
    with pytest.raises(Unavailable):
        rounds.step(rounds.new_id())
    assert [message["message"] for message in sent] == ["nothing answers"] * 2


def print_it(city: Literal["Rom", "Oslo"]) -> None:
    print(city)


def test_calls_that_nobody_made_are_told_to_have_no_result() -> None:
    whole = [QUESTION, calling("add"), {"role": "tool", "tool_call_id": "add", "content": "3"}]
    assert answered(whole) == whole
    told = answered([QUESTION, calling("add", "subtract"), QUESTION])
    assert [turn.get("content") for turn in told[2:4]] == [NO_RESULT, NO_RESULT]
    assert told[3]["tool_call_id"] == "subtract"
    assert len(answered([QUESTION, calling("add")])) == 3


seen: list[str] = []
#: An answer that ended at once, as it may by chance, would be no turn.
OPTIONS = {"max_new_tokens": 300, "temperature": 0.5, "sampling_seed": 1}


def forecast(city: Literal["Rom", "Oslo"]) -> str:
    """The weather of a city."""
    seen.append(city)
    return "rain & <b>wind</b>"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What pages hear."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(Chat, "send", lambda chat, message: sent.append(message))
    return sent


@pytest.fixture
def chat(calling_client: Any, sent: list[dict[str, Any]]) -> Iterator[Chat]:
    seen.clear()
    chat = nbgen.Chat(tools=forecast, tool_choice="forecast", **OPTIONS)
    yield chat
    chat.close()


def shown(chat: Chat) -> list[dict[str, Any]]:
    """As the page tells what it shows, where a server keeps no chats."""
    runs = chat._runs.turns()
    return (chat._runs.messages(runs[-1]["run"]) if runs else None) or chat.messages


def test_a_question_asked_here_is_answered_with_what_the_function_returned(
    chat: Chat, sent: list[dict[str, Any]]
) -> None:
    chat.ask("What is the weather?")
    chat.wait()
    said, told, answer = shown(chat)[1:]
    (call,) = said["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": seen[0]}
    assert (call["type"], told["tool_call_id"]) == ("function", call["id"])
    assert (told["role"], told["content"], answer["role"]) == ("tool", "rain & <b>wind</b>", "assistant")
    first, second = (message for message in sent if message["type"] == "started")
    assert second["after"] == first["run"]
    assert second["run"].startswith(f"{chat.owner}-")
    chat._receive({"type": "ended", "chat": chat.chat, "messages": shown(chat)})  # as the page says, if there is one
    chat.ask("And then?")
    chat.wait()
    assert [turn["role"] for turn in shown(chat)[4:7]] == ["user", "assistant", "tool"]
    assert len(seen) == 2


def test_the_answer_of_a_run_that_a_page_began_is_stepped_when_the_page_asks(
    caller: PrivateServer, chat: Chat, sent: list[dict[str, Any]]
) -> None:
    if session.default_client() is not caller.client:
        pytest.skip("pages ask nbgen's server alone")
    body = {"chat": chat.chat, "messages": [QUESTION], "params": chat.params, **chat.beside}
    run = f"{chat.owner}-1"
    for _ in caller.client.run({**body, "id": run, "attached": False}):
        pass
    chat._receive({"type": "call", "run": run})
    chat._receive({"type": "call", "run": run})
    assert len(seen) == 1
    first, again = (message for message in sent if message["type"] == "started")
    assert (first["run"], first["after"]) == (again["run"], again["after"])
    chat.wait()
    assert [turn["role"] for turn in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert "**Tool**\n\nrain &" in chat.to_markdown()
    turns = caller.client.chat(chat.chat)["turns"]
    assert [turn.get("parent") for turn in turns] == [None, 0, 1, 2]


def test_tools_of_others_are_left_to_them(calling_client: Any, sent: list[dict[str, Any]]) -> None:
    (given,) = Tools(forecast).json
    chat = nbgen.Chat(tools=[given], tool_choice="forecast", **OPTIONS)
    chat.ask("What is the weather?")
    chat.wait()
    assert sent[-1]["message"] == "Nobody here can call forecast."
    assert "tool_calls" in shown(chat)[-1]
    chat.close()


def test_what_is_no_tool_is_refused_at_once(calling_client: Any) -> None:
    with pytest.raises(InvalidRequest, match="a tool is a function"):
        nbgen.Chat(tools=[5])


def test_a_notebook_that_is_executed_without_a_page_keeps_calls_and_results(
    caller: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBGEN_URL", caller.url)
    monkeypatch.setenv("NBGEN_TOKEN", caller.client.token)
    cells = [
        "import nbgen\nfrom tests.notebook.test_rounds import print_it",
        f"chat = nbgen.Chat(tools=print_it, tool_choice='print_it', **{OPTIONS})\nchat",
        "chat.ask('hello')\nchat.wait()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", coalesce_streams=True).execute()
    transcript = notebook.cells[1].outputs[1].data
    assert "print_it(" in transcript["text/plain"]
    assert "\n\nTool: null\n\nModel: " in transcript["text/plain"]
    assert "**Tool**\n\n> null" in transcript["text/markdown"]
    assert notebook.cells[2].outputs[0].text
