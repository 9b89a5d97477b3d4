"""Which server answers for each model of a comparison, and what it must have loaded, without a server."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.notebook.client import Client
from nbgen.notebook.contenders import Contender, contenders


class Named(Client):
    """A server of nbgen's that has a model loaded, and adapters on top of some."""

    def __init__(self, url: str, model: str, **adapters: str) -> None:
        super().__init__(url)
        self._model = model
        self._adapters = adapters

    def hello(self, timeout: float = 0) -> dict[str, Any]:
        return {"server_id": self.url, "model": {"name": self._model}}

    def models(self) -> list[dict[str, Any]]:
        return [{"id": self._model}, *({"id": name, "parent": base} for name, base in self._adapters.items())]


@pytest.fixture
def own() -> Iterator[Client]:
    client = Named("http://127.0.0.1:9/", "org/base", poet="org/base", clerk="other")
    yield client
    client.close()


@pytest.fixture
def far() -> Iterator[Client]:
    client = Named("http://127.0.0.1:10/", "C:\\models\\far")
    yield client
    client.close()


@pytest.mark.parametrize(
    ("models", "found"),
    [
        ("org/base", [Contender("base")]),
        (["org/base", "org/new"], [Contender("base", load="org/base"), Contender("new", load="org/new")]),
        ("poet", [Contender("poet", adapter="poet")]),
        (("poet", "org/base"), [Contender("poet", adapter="poet"), Contender("base")]),
        (
            ["poet", "clerk"],
            [Contender("poet", load="org/base", adapter="poet"), Contender("clerk", load="other", adapter="clerk")],
        ),
        ({"mine": "org/base", "": "poet"}, [Contender("mine"), Contender("poet", adapter="poet")]),
        ({1: "org/base", 0.5: "poet"}, [Contender("1"), Contender("0.5", adapter="poet")]),
        ([], []),
        ("org/new/", [Contender("new", load="org/new/")]),
    ],
)
def test_texts_name_adapters_or_models_of_ones_own_server(own: Client, models: Any, found: list[Contender]) -> None:
    assert contenders(models, own) == (found, [])


def test_a_folder_is_a_model_by_its_whole_path(own: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    for model in ("mine", "./mine/", Path("mine"), tmp_path / "mine"):
        assert contenders(model, own) == ([Contender("mine", load=str(tmp_path / "mine"))], [])


def test_clients_are_servers_in_the_order_they_are_named(own: Client, far: Client) -> None:
    live = SimpleNamespace(client=far)
    found, others = contenders({"a": own, "b": far, "c": live, "": far}, own)
    assert others == [far, far, far]
    assert [(one.label, one.server, one.load) for one in found] == [
        ("a", None, ""),
        ("b", 0, ""),
        ("c", 1, ""),
        ("far at 127.0.0.1:10", 2, ""),
    ]


@pytest.mark.parametrize("model", [3, None, {"a"}, [["nested"]], {"a": None}])
def test_what_is_no_model_is_refused(own: Client, model: Any) -> None:
    with pytest.raises(InvalidRequest, match="a model is a name"):
        contenders(model, own)


@pytest.mark.parametrize(
    ("one", "fields"),
    [
        (Contender("a"), {}),
        (Contender("a", server=0), {"server": 0}),
        (Contender("a", load="m", adapter="p"), {"load": "m", "adapter": "p"}),
    ],
)
def test_the_panel_is_told_what_is_not_usual(one: Contender, fields: dict[str, Any]) -> None:
    assert one.fields() == fields
