"""The helpers against Triton's protocols, as nbgen's own server speaks them."""

from collections.abc import Iterator

import numpy as np
import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import RemoteClient

OPTIONS = {"complete": True, "max_new_tokens": 6, "temperature": 0}


@pytest.fixture
def expected(connected: PrivateServer) -> str:
    """What nbgen's own API answers."""
    return nbgen.generate("Once", **OPTIONS).text


@pytest.fixture
def triton(expected: str, connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteClient]:
    """The helpers take the server for a Triton."""
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(connected.url.removesuffix("nbgen/"), connected.client.token, kind="triton")
    yield client
    client.close()


def test_texts_are_continued(triton: RemoteClient, expected: str) -> None:
    assert triton.models()[0]["id"] == triton.backend.model
    assert nbgen.generate("Once", **OPTIONS).text == expected
    assert nbgen.map(["Once"], progress=False, **OPTIONS).text.tolist() == [expected]


@pytest.mark.parametrize("option", [{"regex": "[0-9]+"}, {"ebnf": 'root ::= "a"'}, {"json_schema": "{}"}, {"n": 2}])
def test_an_option_that_triton_would_ignore_is_refused(triton: RemoteClient, option: dict[str, object]) -> None:
    (name,) = option
    with pytest.raises(InvalidRequest, match=f"a server of Triton has no option for {name}"):
        nbgen.generate("Once", **OPTIONS, **option)


def test_arrays_are_inferred(triton: RemoteClient, expected: str) -> None:
    inputs = {
        "text_input": ["Once"],
        "exclude_input_in_output": [True],
        "max_tokens": np.array([6], "int32"),
        "temperature": np.zeros(1, "float32"),
    }
    answer = nbgen.infer(triton.backend.model, inputs, outputs=["text_output"])
    assert answer["text_output"].tolist() == [expected]
    inputs = {name: inputs[name] for name in ("text_input", "exclude_input_in_output")}
    answer = nbgen.infer(triton.backend.model, inputs, max_tokens=np.int64(6), temperature=np.float32(0))
    assert answer["text_output"].tolist() == [expected]
