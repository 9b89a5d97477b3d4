"""Settings side by side: the grid that Python makes of them, and the results it reads back."""

import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook.private_server import PrivateServer


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


def test_lists_of_stop_strings_are_values_and_lists_of_those_are_axes(connected: PrivateServer) -> None:
    one = nbgen.compare("hi", stop=["a", "b"], sampling_seed=[1, 2])
    assert [list(cell["params"]["stop"]) for cell in one.cells] == [["a", "b"]] * 2
    two = nbgen.compare("hi", stop=[["a"], ["b"]])
    assert [list(cell["params"]["stop"]) for cell in two.cells] == [["a"], ["b"]]
    one.close()
    two.close()


def test_a_wrong_option_or_too_many_answers_are_refused(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        nbgen.compare("hi", temperature=[0, -1])
    with pytest.raises(InvalidRequest, match="17 answers"):
        nbgen.compare("hi", sampling_seed=list(range(17)))
    with pytest.raises(InvalidRequest, match="0 answers"):
        nbgen.compare("hi", temperature=[])


def test_results_are_the_newest_answers_in_the_order_of_the_grid(connected: PrivateServer) -> None:
    grid = nbgen.compare("hi", complete=True, temperature=0, max_new_tokens=[2, 3])
    assert [result.text for result in grid.results] == ["", ""]
    for place in (1, 0):
        params = grid.cells[place]["params"]
        body = {"id": f"round.{place}", "chat": grid.chat, "prompt": "hi", "params": params, "attached": False}
        for _ in connected.client.run(body):
            pass
    assert [result.usage["completion_tokens"] for result in grid.results] == [2, 3]
    assert grid.results[1].text.startswith(grid.results[0].text)
    assert [result.finish_reason for result in grid.results] == ["length", "length"]
    grid.close()
