"""Settings side by side: the grid that Python makes of them, and the results it reads back."""

import _thread
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.compare import _cell, _is_axis
from nbgen.notebook.contenders import Contender, contenders
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import open_client
from nbgen.notebook.result import Result
from tests.conftest import wait_for


def test_every_list_is_an_axis_of_the_grid(connected: PrivateServer) -> None:
    grid = nbgen.compare("hi", temperature=[0, 1], top_p=[0.5, 1], max_new_tokens=3)
    assert [cell["label"] for cell in grid.cells] == [
        "temperature 0 · top_p 0.5",
        "temperature 0 · top_p 1",
        "temperature 1 · top_p 0.5",
        "temperature 1 · top_p 1",
    ]
    assert grid.columns == 2
    assert len({cell["params"]["sampling_seed"] for cell in grid.cells}) == 1
    assert all(cell["params"]["max_new_tokens"] == 3 for cell in grid.cells)
    grid.close()


def test_a_text_that_is_continued_has_no_system_prompt() -> None:
    for ask in (nbgen.compare, nbgen.generate):
        with pytest.raises(InvalidRequest, match=r"^complete=True continues one text: it takes no messages and no "):
            ask("hi", system="be short", complete=True)


def test_lists_of_stop_strings_are_values_and_lists_of_those_are_axes(connected: PrivateServer) -> None:
    one = nbgen.compare("hi", stop=["a", "b"], sampling_seed=[1, 2])
    assert [list(cell["params"]["stop"]) for cell in one.cells] == [["a", "b"]] * 2
    two = nbgen.compare("hi", stop=[["a"], ["b"]])
    assert [list(cell["params"]["stop"]) for cell in two.cells] == [["a"], ["b"]]
    one.close()
    two.close()


def test_arrays_and_ranges_are_axes(connected: PrivateServer) -> None:
    grid = nbgen.compare("hi", temperature=np.linspace(0, 1, 3), sampling_seed=range(2), top_p=np.float64(0.5))
    assert [cell["label"] for cell in grid.cells[:3]] == [
        *(f"temperature 0.0 · sampling_seed {seed}" for seed in (0, 1)),
        "temperature 0.5 · sampling_seed 0",
    ]
    assert {cell["params"]["top_p"] for cell in grid.cells} == {0.5}
    grid.close()


def test_a_wrong_option_or_too_many_answers_are_refused(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        nbgen.compare("hi", temperature=[0, -1])
    with pytest.raises(InvalidRequest, match="got list"):
        nbgen.compare(["hi", "ho"])
    with pytest.raises(InvalidRequest, match="17 answers"):
        nbgen.compare("hi", sampling_seed=list(range(17)))
    with pytest.raises(InvalidRequest, match="0 answers"):
        nbgen.compare("hi", temperature=[])


def test_models_are_an_axis_whether_loaded_adapted_or_served_elsewhere(
    connected: PrivateServer, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = connected.client
    grid = nbgen.compare("hi", model=["bundled", str(tiny_model)], temperature=[0, 1])
    assert [(cell["label"], cell["load"]) for cell in grid.cells] == [
        ("bundled · temperature 0", "bundled"),
        ("bundled · temperature 1", "bundled"),
        (f"{tiny_model.name} · temperature 0", str(tiny_model)),
        (f"{tiny_model.name} · temperature 1", str(tiny_model)),
    ]
    grid.close()

    served = own.model()["name"]
    cards = [{"id": served, "parent": None}, {"id": "poet", "parent": served}]
    monkeypatch.setattr(own, "models", lambda: cards)
    remote = open_client(own.url.removesuffix("nbgen/"), own.token, "openai")
    named, others = contenders({"base": connected, "poet": "poet", "far": remote}, own)
    assert [(one.label, one.server, one.load, one.adapter) for one in named] == [
        ("base", None, "", ""),
        ("poet", None, "", "poet"),
        ("far", 0, "", ""),
    ]
    assert others == [remote]
    named, others = contenders("other", remote)
    assert named == [Contender("other", server=0)]
    assert others[0].backend.model == "other"
    with pytest.raises(InvalidRequest, match="a model is a name"):
        nbgen.compare("hi", model=[3])
    remote.close()
    others[0].close()


def test_answers_of_other_servers_are_among_the_results(connected: PrivateServer) -> None:
    remote = open_client(connected.client.url.removesuffix("nbgen/"), connected.client.token, "openai")
    grid = nbgen.compare("hi", model={"own": connected, "far": remote}, temperature=0, max_new_tokens=3)
    cell = grid.cells[1]
    messages = [{"role": "user", "content": "hi"}]
    grid._receive(
        {
            "type": "start",
            "server": cell["server"],
            "body": {"id": "round.1", "chat": grid.chat, "messages": messages, "params": cell["params"]},
        }
    )
    wait_for(lambda: not grid._runs.live(), "the run ended")
    assert [result.finish_reason for result in grid.results] == [None, "length"]
    assert grid.results[1].text == nbgen.generate("hi", **cell["params"]).text
    grid.close()
    remote.close()


def test_results_are_the_newest_answers_in_the_order_of_the_grid(connected: PrivateServer) -> None:
    grid = nbgen.compare("hi", complete=True, temperature=0, max_new_tokens=[2, 3])
    assert [repr(result) for result in grid.results] == ["Result('', still to come)"] * 2
    for place in (1, 0):
        params = grid.cells[place]["params"]
        body = {"id": f"round.{place}", "chat": grid.chat, "prompt": "hi", "params": params, "attached": False}
        for _ in connected.client.run(body):
            pass
    assert [result.usage["completion_tokens"] for result in grid.wait()] == [2, 3]
    frame = grid.to_df()
    assert list(frame.columns[:3]) == ["label", "max_new_tokens", "text"]
    assert frame["max_new_tokens"].tolist() == frame["completion_tokens"].tolist() == [2, 3]
    assert frame["text"].tolist() == [result.text for result in grid.results]
    assert grid.results[1].text.startswith(grid.results[0].text)
    assert [result.finish_reason for result in grid.results] == ["length", "length"]
    grid.close()


def test_answers_are_asked_for_where_no_panel_is_shown(connected: PrivateServer) -> None:
    grid = nbgen.compare("hi", system="be short", temperature=0, max_new_tokens=[2, 3])
    found = grid.wait()
    assert [result.usage["completion_tokens"] for result in found] == [2, 3]
    assert found[1].text == nbgen.generate("hi", system="be short", temperature=0, max_new_tokens=3).text
    asked = [turn["run"] for turn in grid._runs.turns()]
    grid.wait()
    assert [turn["run"] for turn in grid._runs.turns()] == asked
    grid.close()
    short, long = (grid := nbgen.compare("hi", max_new_tokens=[1, 10**6])).wait()
    assert (short.error, long.finish_reason) == (None, "error")
    assert "context length" in long.error
    assert long.error in repr(long)
    assert grid.to_df().error.isna().tolist() == [True, False]
    with pytest.raises(TypeError, match="The comparison cannot be pickled"):
        pickle.dumps(grid)
    grid.close()


def test_an_interrupt_while_answers_are_waited_for_stops_them(connected: PrivateServer) -> None:
    grid = nbgen.compare("hi", sampling_seed=[1, 2], max_new_tokens=15_000, ignore_eos=True)

    def interrupt() -> None:
        wait_for(lambda: connected.client.model()["status"]["running"] == 2, "both are written")
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        grid.wait()
    assert [result.finish_reason for result in grid.wait()] == ["abort", "abort"]
    grid.close()


def test_models_that_are_asked_without_a_panel_take_turns(connected: PrivateServer, tmp_path: Path) -> None:
    own = connected.client.model()["name"]
    copy = shutil.copytree(own, tmp_path / "copy")
    grid = nbgen.compare("hi", model=[str(copy), own], complete=True, temperature=0, max_new_tokens=3)
    first, second = grid.wait()
    assert first.text == second.text != ""
    assert connected.client.model()["name"] == own
    grid.close()


@pytest.mark.parametrize(
    ("name", "value", "axis"),
    [
        ("temperature", [0, 1], True),
        ("temperature", [], True),
        ("temperature", 1, False),
        ("stop", ["a", "b"], False),
        ("stop", [["a"], "b"], True),
        ("stop", "a", False),
        ("stop_regex", ["a", "b"], False),
        ("stop_regex", [["a"], "b"], True),
        ("stop_token_ids", [1, 2], False),
        ("stop_token_ids", [[1], [2]], True),
    ],
)
def test_what_is_an_axis(name: str, value: Any, axis: bool) -> None:
    assert _is_axis(name, value) is axis


@pytest.mark.parametrize(
    ("one", "chosen", "label", "more"),
    [
        (Contender(), {}, "answer", {}),
        (Contender(), {"top_k": None, "top_p": 0.5}, "top_k default · top_p 0.5", {}),
        (Contender("m"), {}, "m", {}),
        (Contender("m", server=0, adapter="p"), {"top_k": 1}, "m · top_k 1", {"server": 0, "adapter": "p"}),
    ],
)
def test_a_cell_says_what_is_its_own(one: Contender, chosen: dict[str, Any], label: str, more: dict[str, Any]) -> None:
    assert _cell(one, chosen, {"params": {"n": 1}}) == {"label": label, "params": {"n": 1}, **more}


@pytest.mark.parametrize(
    ("turn", "reason", "text"),
    [
        ({}, None, ""),
        ({"content": "half", "finish_reason": None}, None, "half"),
        ({"content": "x", "finish_reason": {"type": "stop"}, "usage": {"completion_tokens": 1}}, "stop", "x"),
        ({"content": "x", "error": "no"}, "error", "x"),
        ({"content": "x", "error": "late", "finish_reason": {"type": "abort"}, "usage": None}, "abort", "x"),
    ],
)
def test_a_turn_is_a_result(turn: dict[str, Any], reason: str | None, text: str) -> None:
    result = Result.of_turn(turn, {"top_k": 1})
    assert (result.finish_reason, result.text, result.params) == (reason, text, {"top_k": 1})
    assert result.usage == (turn.get("usage") or {})


class Told:
    """A client whose server tells these turns of every chat."""

    lost = False

    def __init__(self, *turns: dict[str, Any]) -> None:
        self.turns = list(turns)
        self.runs: list[dict[str, Any]] = []

    def hello(self) -> dict[str, Any]:
        return {"server_id": "s", "model": {"name": "m"}}

    def chat(self, chat: str) -> dict[str, Any]:
        said = [{"role": "user", "content": "changed"}, {"role": "assistant", "content": "x"}]
        return {"run": None, "messages": said if self.turns else [], "turns": self.turns}

    def run(self, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        self.runs.append(body)
        yield "done", {"run": body["id"], "finish_reason": {"type": "stop"}}


def test_the_newest_round_counts_cell_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [{"run": run, "content": run} for run in ("one.0", "one.1", "a.two.1")]
    monkeypatch.setattr(session, "_client", Told({"role": "user", "content": "hi"}, *turns))
    grid = nbgen.compare("hi", sampling_seed=[1, 2, 3])
    assert [result.text for result in grid.results] == ["one.0", "a.two.1", ""]
    assert grid._asked() == [{"role": "user", "content": "changed"}]
    assert grid.wait(seconds=0) == grid.results
    grid.close()


def test_variables_of_the_template_are_an_axis_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_client", client := Told())
    options = [{"enable_thinking": True, "effort": "low"}, {}]
    grid = nbgen.compare("hi", template_options=options, sampling_seed=1)
    labels = [cell["label"] for cell in grid.cells]
    assert labels == ["template_options enable_thinking True, effort low", "template_options default"]
    grid.wait()
    assert [body.get("template_options") for body in sorted(client.runs, key=lambda body: body["id"])] == [
        options[0],
        None,
    ]
    grid.close()
    grid = nbgen.compare("hi", template_options=options[0])
    assert [cell["template_options"] for cell in grid.cells] == [options[0]]
    grid.close()
    with pytest.raises(InvalidRequest, match="template_options are a dict"):
        nbgen.compare("hi", template_options=["low"])


def test_whoever_waits_without_a_page_asks_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Told()
    monkeypatch.setattr(session, "_client", client)
    grid = nbgen.compare("hi", system="be short", sampling_seed=[1, 2])
    assert [result.finish_reason for result in grid.wait()] == ["stop", "stop"]
    assert [result.finish_reason for result in grid.wait()] == ["stop", "stop"]
    asked = sorted(client.runs, key=lambda body: str(body["id"]))
    assert [body["id"].rpartition(".")[2] for body in asked] == ["0", "1"]
    assert [body["params"]["sampling_seed"] for body in asked] == [1, 2]
    assert {body["chat"] for body in asked} == {grid.chat}
    assert [turn["content"] for turn in asked[0]["messages"]] == ["be short", "hi"]
    grid.close()
