"""The list of models, as the server tells of them."""

from pathlib import Path
from typing import Any

import pytest

import nbgen
from nbgen.errors import InvalidRequest, ModelError
from nbgen.notebook.models import Models, place
from nbgen.notebook.private_server import PrivateServer


def test_what_can_be_loaded_instead_stands_below_what_is_served() -> None:
    model = {"name": "a", "state": "ready", "loadable": ["a", "bundled", "b"]}
    models = Models([{"id": "a"}, {"id": "mine", "parent": "a"}], model)
    assert [entry["id"] for entry in models] == ["a", "mine", "bundled", "b"]
    assert [row["state"] for row in models._rows()] == ["loaded", "adapter", "", ""]
    stopped = Models([{"id": "a"}], {**model, "state": "stopped"})
    assert stopped._rows()[0] == {"model": "a", "state": "stopped"}
    assert "stopped" in stopped._repr_html_()


def test_a_server_of_another_kind_has_what_it_serves() -> None:
    assert [entry["id"] for entry in Models([{"id": "a"}, {"id": "b"}], {"name": "a", "state": "ready"})] == ["a", "b"]


def test_a_folder_is_named_by_a_path_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    assert place(Path(tmp_path.name)) == place(tmp_path.name) == str(tmp_path)
    assert place(Path("owner/name")) == "owner/name"


@pytest.mark.parametrize("model", ["", " ", 5, b"a"])
def test_what_names_no_model_is_refused(connected: PrivateServer, model: Any) -> None:
    with pytest.raises(InvalidRequest, match="a model is a folder, a hub id or 'bundled', got"):
        nbgen.load(model)


def test_the_bundled_model_and_the_present_one_are_listed(connected: PrivateServer) -> None:
    found = nbgen.models()
    assert found[0]["id"] == nbgen.status().raw["name"]
    assert "bundled" in [entry["id"] for entry in found]


def test_a_model_in_the_home_of_nobody_is_refused_by_the_server(connected: PrivateServer) -> None:
    with pytest.raises(ModelError, match="the home of a user that there is not"):
        nbgen.load("~nobody-here/a")
