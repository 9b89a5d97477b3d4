"""The chat widget without a browser: its traits, its conversation, and the messages of the comm transport."""

import _thread
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import nbformat
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

import nbgen
from nbgen.errors import InvalidRequest, NotFound
from nbgen.notebook.chat import Chat
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import wait_for


@pytest.fixture
def chat(connected: PrivateServer) -> Iterator[Chat]:
    chat = nbgen.Chat(system="be short", max_new_tokens=12, temperature=0)
    yield chat
    chat.close()


def settled(chat: Chat) -> dict[str, Any]:
    """The chat's newest run, once it has ended."""
    chat.wait()
    return nbgen.notebook.session.default_client().chat(chat.chat)["run"]


def test_traits_name_the_server_and_hold_no_secret(chat: Chat, connected: PrivateServer) -> None:
    state = {name: value for name, value in chat.get_state().items() if not name.startswith("_")}
    assert state["server_id"] == connected.client.hello()["server_id"]
    assert state["params"] == {"max_new_tokens": 12, "temperature": 0.0}
    token = connected.client._http.headers["Authorization"].removeprefix("Bearer ")
    assert token not in repr(chat.get_state())
    assert repr(chat) == f"Chat({chat.chat!r}, transport='auto')"


def test_where_no_widgets_are_shown_a_panel_says_what_it_needs(chat: Chat) -> None:
    name, needs = chat._repr_mimebundle_()[0]["text/plain"].splitlines()
    assert name == "The chat panel"
    assert needs.startswith("It needs the kernel that made it, and a page with widgets.")


def test_options_are_checked_at_once(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'"):
        nbgen.Chat(temprature=1)


def test_a_conversation_can_be_led_from_python(chat: Chat) -> None:
    assert chat.messages == []
    chat.ask("one")
    settled(chat)
    chat.ask("two")
    settled(chat)
    assert [turn["role"] for turn in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert chat.messages[3]["content"] == "two"
    assert chat.to_openai() == chat.messages
    assert list(chat.to_df()["role"]) == ["system", "user", "assistant", "user", "assistant"]
    assert json.loads(chat.to_jsonl()) == {"messages": chat.messages}


def test_questions_in_a_row_wait_for_each_other(connected: PrivateServer) -> None:
    chat = nbgen.Chat(sampling_seed=1, max_new_tokens=500, ignore_eos=True)
    for text in ("one", "two", "three"):
        chat.ask(text)
        *before, _ = (turn for turn in connected.client.chat(chat.chat)["turns"] if turn["role"] == "assistant")
        assert [turn["usage"]["completion_tokens"] for turn in before] == [500] * len(before)
    settled(chat)
    assert [turn["role"] for turn in chat.messages] == ["user", "assistant"] * 3
    assert [turn["content"] for turn in chat.messages[::2]] == ["one", "two", "three"]
    chat.close()


def test_questions_of_several_threads_wait_for_each_other(chat: Chat) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(chat.ask, ("one", "two", "three")))
    assert [turn["role"] for turn in settled(chat)["messages"][1:]] == ["user", "assistant"] * 2 + ["user"]


def test_an_empty_message_is_refused(chat: Chat) -> None:
    for say in (chat.ask, nbgen.chat()):
        with pytest.raises(InvalidRequest, match="the message is empty"):
            say(" ")
        with pytest.raises(InvalidRequest, match="a message is a text, got NoneType"):
            say(None)
    assert chat.messages == []


def test_what_the_notebook_kept_is_the_conversation_until_the_server_knows_it(chat: Chat) -> None:
    talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}]
    chat._receive({"type": "kept", "chat": chat.chat, "messages": talk})
    chat._receive({"type": "kept", "chat": "another", "messages": []})
    assert chat.messages == talk
    chat.ask("two")
    settled(chat)
    assert [turn["content"] for turn in chat.messages[:4]] == ["be short", "one", "1", "two"]


def test_an_answer_can_be_stopped_from_python(connected: PrivateServer) -> None:
    chat = nbgen.Chat(max_new_tokens=15_000, ignore_eos=True)
    chat.ask("go on")
    chat.stop()
    assert settled(chat)["finish_reason"]["type"] == "abort"
    chat.close()


@pytest.mark.parametrize("wait", [Chat.wait, lambda chat: chat.ask("once more")])
def test_an_interrupt_while_an_answer_is_waited_for_stops_it(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch, wait: Callable[[Chat], None]
) -> None:
    chat = nbgen.Chat(max_new_tokens=15_000, ignore_eos=True)
    follow = connected.client.follow

    def interrupt() -> None:
        wait_for(lambda: len(connected.client.chat(chat.chat)["messages"]) == 2, "it has begun")
        time.sleep(0.3)  # for one that comes as httpcore takes a lock leaves it locked
        _thread.interrupt_main()

    def interrupted(run: str) -> Any:
        threading.Thread(target=interrupt).start()
        return follow(run)

    monkeypatch.setattr(connected.client, "follow", interrupted)
    chat.ask("go on")
    with pytest.raises(KeyboardInterrupt):
        wait(chat)
    monkeypatch.setattr(connected.client, "follow", follow)
    assert settled(chat)["finish_reason"]["type"] == "abort"
    assert len(chat.messages) == 2
    chat.close()


def test_an_answer_that_fails_is_told_to_who_waits(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    own = nbgen.notebook.session.default_client()
    chat.ask("x" * 20_000)
    with pytest.raises(InvalidRequest, match="16384"):
        chat.wait()
    assert_goes_on(chat)
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(own.url.removesuffix("nbgen/"), own.token, kind="openai")
    chat.chat = "of another kind"
    chat.ask("x" * 20_000)
    with pytest.raises(InvalidRequest, match="16384"):
        chat.wait()
    assert_goes_on(chat)
    client.close()


def assert_goes_on(chat: Chat) -> None:
    """What failed is no part of the next question, which would fail by it, too."""
    chat.ask("shorter")
    chat.wait()
    assert [turn["content"] for turn in chat.messages[:-1]] == ["be short", "shorter"]


def test_who_waits_gets_the_answer(chat: Chat, connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat.wait() is None
    for question in ("one", "two"):
        chat.ask(question)
        result = chat.wait()
        assert result is not None
        assert result.turns == chat.messages
        assert result.turns[-2]["content"] == question
        assert result.usage["completion_tokens"] > 0
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(connected.url.removesuffix("nbgen/"), connected.client.token, kind="openai")
    chat.chat = "of another kind"
    chat.ask("three")
    other = chat.wait()
    assert other is not None
    assert (other.turns[-2]["content"], other.turns[-1]["content"]) == ("three", other.text)
    client.close()


def test_a_message_of_widgets_is_none_to_the_model(chat: Chat) -> None:
    with pytest.raises(InvalidRequest, match=r"chat\.ask"):
        chat.send("hello")


def test_an_answer_that_was_asked_for_here_is_written_down_when_it_ends(chat: Chat) -> None:
    written: list[dict[str, str]] = []
    chat._transcript._output._handle = SimpleNamespace(update=lambda bundle, **_: written.append(bundle))
    chat.ask("one")
    wait_for(lambda: written, "the transcript has it")
    assert written[-1]["text/plain"].startswith("System: be short\n\nYou: one\n\nModel: ")


def test_a_new_chat_has_an_empty_transcript_and_the_old_one_has_its_own_again(chat: Chat) -> None:
    written: list[dict[str, str]] = []
    chat._transcript._output._handle = SimpleNamespace(update=lambda bundle, **_: written.append(bundle))
    chat.ask("one")
    wait_for(lambda: written, "the transcript has it")
    first, chat.chat = chat.chat, "another"
    wait_for(lambda: not written[-1]["text/markdown"], "the transcript is empty")
    chat.chat = first
    wait_for(lambda: "Transcript: 2 messages" in written[-1]["text/markdown"], "it is there again")


def test_panels_say_what_there_is_in_a_terminal(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("import nbgen\nnbgen.Chat()")
    assert "The chat panel needs a notebook. Here, talk = nbgen.chat()" in capsys.readouterr().out
    shell.run_cell("nbgen.Stream('Once')")
    assert "nbgen.generate(" in capsys.readouterr().out
    shell.run_cell("nbgen.compare('hi', temperature=[0, 1])")
    assert ".wait() asks for the answers" in capsys.readouterr().out


def test_a_notebook_that_is_executed_without_a_page_keeps_what_was_said(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBGEN_URL", connected.url)
    monkeypatch.setenv("NBGEN_TOKEN", connected.client.token)
    options = "temperature=0, max_new_tokens=3"
    cells = [
        f"import nbgen\nchat = nbgen.Chat({options})\nchat",
        "chat.ask('hello')\nchat.wait()",
        f"grid = nbgen.compare('hello', top_p=[0.5, 1], {options})\ngrid",
        "chat.close()\nchat",
        "import time\nnbgen.notebook.compare.PAGE_SECONDS = 60\nbegan = time.monotonic()\nanswers = grid.wait()\n"
        "print(time.monotonic() - began)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", coalesce_streams=True).execute()
    panel, transcript = notebook.cells[0].outputs
    assert panel.data["text/plain"].startswith("The chat panel\nIt needs the kernel")
    assert transcript.data["text/plain"].startswith("You: hello\n\nModel: ")
    assert transcript.data["text/markdown"].startswith("<details open><summary>Transcript: 2 messages")
    _, comparison = notebook.cells[2].outputs
    assert "<details open><summary>Comparison: 2 answers</summary>" in comparison.data["text/markdown"]
    assert "top_p 0.5: " in comparison.data["text/plain"]
    assert notebook.cells[3].outputs[0].text == "The chat panel has been closed.\n"
    assert float(notebook.cells[4].outputs[0].text) < 60, "nobody waits for a page"


def test_who_waits_does_not_fetch_the_conversation_again_and_again(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have images of megabytes in it."""
    chat = nbgen.Chat(max_new_tokens=3000, ignore_eos=True)
    chat.ask("one")
    fetched, own = [], connected.client.chat
    monkeypatch.setattr(connected.client, "chat", lambda name: fetched.append(name) or own(name))
    answer = chat.wait()
    assert (answer.usage["completion_tokens"], answer.tokens_per_s > 0) == (3000, True)
    assert len(fetched) < 10
    chat.close()


def test_stopping_nothing_is_no_error(chat: Chat) -> None:
    chat.stop()


def test_of_a_run_that_a_page_begins_all_pages_are_told(chat: Chat) -> None:
    sent: list[dict[str, Any]] = []
    chat.send = sent.append
    chat._receive({"type": "begun", "run": "r"})
    assert sent == [{"type": "begun", "run": "r"}]


def test_variables_in_a_prompt_are_filled_in_for_the_panel(chat: Chat, shell: InteractiveShell) -> None:
    shell.user_ns["animal"] = "fox"
    sent: list[dict[str, Any]] = []
    chat.send = sent.append
    chat._receive({"type": "expand", "text": "a {{animal}} and {x}"})
    chat._receive({"type": "expand", "text": "a {{animals}}"})
    shell.user_ns["cities"] = pd.DataFrame({"city": ["Oslo"]}).set_index("city", drop=False)
    chat._receive({"type": "expand", "text": "{{cities}}"})
    assert sent[0] == {"type": "expanded", "asked": "a {{animal}} and {x}", "text": "a fox and {x}"}
    assert sent[1]["text"] == "a {{animals}}"
    assert "animals" in sent[1]["error"]
    assert sent[2]["text"] == "| index_city | city |\n| --- | --- |\n| Oslo | Oslo |"


def test_a_server_of_another_kind_is_led_from_the_panel_as_well(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = connected.client.token
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(connected.url.removesuffix("nbgen/"), token, kind="openai")
    chat = nbgen.Chat(max_new_tokens=12, temperature=0)
    chat.ask("one")
    chat.wait()
    answer = chat._runs.turns()[-1]
    assert answer["usage"]["completion_tokens"] == 12
    assert chat.messages == [{"role": "user", "content": "one"}, {"role": "assistant", "content": answer["content"]}]

    chat.params = {"max_new_tokens": 15_000, "ignore_eos": True}
    chat.ask("two")
    chat.stop()
    chat.wait()
    stopped = chat._runs.turns()[-1]
    assert stopped["finish_reason"] == {"type": "abort"}
    assert stopped["usage"]["completion_tokens"] < 15_000
    with pytest.raises(NotFound, match="keeps no answers"):
        next(client.follow("x"))
    chat.close()
    client.close()


@pytest.mark.parametrize("name", ["my plans / Pläne", "trip: Oslo", "a:b", "plans"])
def test_a_chat_of_any_name_answers_and_is_found_again(connected: PrivateServer, name: str) -> None:
    chat = nbgen.Chat(name, max_new_tokens=4)
    chat.ask("one")
    settled(chat)
    again = nbgen.Chat(name)
    assert again.messages == chat.messages != []
    chat.close()
    again.close()
