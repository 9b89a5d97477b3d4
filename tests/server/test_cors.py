"""What pages of other origins may ask and read where the owner allows them, and where not."""

from collections.abc import Iterator

import pytest

from tests.server.conftest import TOKEN, Server
from tests.server.test_app import QUICK

PAGE = "http://page.example"
#: As OpenAI's client for browsers asks, and who sends tensors.
ASKED = "authorization, content-type, x-stainless-os, x-stainless-retry-count, inference-header-content-length"


@pytest.fixture(scope="module", params=[["allow_origin=*"], [r"allow_origin_pat=http://\w+\.example"]])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose owner allows the page."""
    options = (f"--ServerApp.{option}" for option in request.param)
    server = Server(tmp_path_factory.mktemp("opened"), *QUICK, *options)
    yield server
    server.stop()


def preflight(server: Server, path: str, asked: str) -> dict[str, str]:
    with server.anonymous(Origin=PAGE) as page:
        headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
        answer = page.options(path, headers=headers)
        return {**answer.headers, "status": str(answer.status_code)}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "generate", 400),
        ("POST", "v1/chat/completions", 400),
        ("POST", "v1/nope", 404),
        ("POST", "v2/models/nope/generate", 404),
        ("GET", "generate", 405),
        ("GET", "api/v1/hello", 200),
    ],
)
def test_an_allowed_page_reads_every_answer(opened: Server, method: str, path: str, status: int) -> None:
    with opened.anonymous(Origin=PAGE, Authorization=f"Bearer {TOKEN}") as page:
        answer = page.request(method, path, json={"text": 5} if method == "POST" else None)
    assert answer.status_code == status, answer.text
    assert answer.headers["access-control-allow-origin"] in ("*", PAGE)
    assert "inference-header-content-length" in answer.headers["access-control-expose-headers"].lower()


def test_an_allowed_page_is_told_that_its_token_is_wrong(opened: Server) -> None:
    with opened.anonymous(Origin=PAGE, Authorization="Bearer wrong") as page:
        answer = page.post("generate", json={"text": "a"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] in ("*", PAGE)


@pytest.mark.parametrize("path", ["v1/chat/completions", "v2/models/m/infer", "v1/nope"])
def test_an_allowed_page_may_send_any_header(opened: Server, path: str) -> None:
    told = preflight(opened, path, ASKED)
    assert told["status"] == "200"
    assert told["access-control-allow-headers"] == ASKED
    assert "POST" in told["access-control-allow-methods"]
    assert told["access-control-allow-origin"] in ("*", PAGE)


@pytest.mark.parametrize("path", ["generate", "v2/models/m/infer", "v1/nope"])
@pytest.mark.parametrize("size", [1, 2**22])
def test_nobody_sends_a_body_without_a_token(opened: Server, path: str, size: int) -> None:
    headers = {"Access-Control-Request-Method": "POST", "Content-Type": "application/json"}
    with opened.anonymous(Origin=PAGE, **headers) as page:
        for content in (bytes(size), iter([bytes(size)])):  # of a length that is said before, and in chunks
            assert page.request("OPTIONS", path, content=content).status_code in (400, 413)


def test_what_is_no_list_of_headers_is_not_repeated(opened: Server) -> None:
    assert "<b>" not in preflight(opened, "generate", "x-a, <b>")["access-control-allow-headers"]


def test_who_is_no_page_is_told_nothing(jupyter: Server) -> None:
    for token in (TOKEN, jupyter.key):
        with jupyter.anonymous(Authorization=f"Bearer {token}") as client:
            answers = [client.get("api/v1/hello"), client.get("nope"), client.post("generate", json={"text": 5})]
        assert not [name for answer in answers for name in answer.headers if name.startswith("access-control-allow-o")]


def test_other_pages_are_told_nothing(jupyter: Server) -> None:
    assert preflight(jupyter, "generate", ASKED)["status"] in ("401", "404")
    with jupyter.anonymous(Origin=PAGE) as page:
        for method, path in (("POST", "generate"), ("GET", "api/v1/hello"), ("GET", "nope")):
            answer = page.request(method, path, json={"text": "a"} if method == "POST" else None)
            assert answer.status_code in (401, 404)
            assert not [name for name in answer.headers if name.startswith("access-control")]
