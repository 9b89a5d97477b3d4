"""The list of models, as the server tells of them."""

import pytest

import nbgen
from nbgen.errors import ModelError
from nbgen.notebook.models import Models
from nbgen.notebook.private_server import PrivateServer


def test_what_can_be_loaded_instead_stands_below_what_is_served() -> None:
    model = {"name": "a", "state": "ready", "loadable": ["a", "bundled", "b"]}
    models = Models([{"id": "a"}, {"id": "adapter"}], model)
    assert [entry["id"] for entry in models] == ["a", "adapter", "bundled", "b"]
    assert [row["state"] for row in models._rows()] == ["loaded", "", "", ""]
    stopped = Models([{"id": "a"}], {**model, "state": "stopped"})
    assert stopped._rows()[0] == {"model": "a", "state": "stopped"}
    assert "stopped" in stopped._repr_html_()


def test_a_server_of_another_kind_has_what_it_serves() -> None:
    assert [entry["id"] for entry in Models([{"id": "a"}, {"id": "b"}], {"name": "a", "state": "ready"})] == ["a", "b"]


def test_the_bundled_model_and_the_present_one_are_listed(connected: PrivateServer) -> None:
    found = nbgen.models()
    assert found[0]["id"] == nbgen.status().raw["name"]
    assert "bundled" in [entry["id"] for entry in found]


def test_a_model_in_the_home_of_nobody_is_refused_by_the_server(connected: PrivateServer) -> None:
    with pytest.raises(ModelError, match="the home of a user that there is not"):
        nbgen.load("~nobody-here/a")
