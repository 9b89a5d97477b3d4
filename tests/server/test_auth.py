"""Who may ask: every route denies, tokens, keys and cookies open what they should and nothing else."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import tornado.web
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from nbgen.server.handlers import routes
from tests.server.conftest import TOKEN, Server
from tests.server.triton import TOKEN_METADATA, grpc_address


def example(pattern: str) -> str:
    """A path that the pattern matches."""
    path = re.sub(r"\(\?:/[^()]*\([^()]*\)\)\?", "", pattern)
    path = re.sub(r"\(\[.*?\)|\[\^/\]\+", "some-id", path)
    path = re.sub(r"\((?:\?:)?(\w+)\|\w+\)", r"\1", path)
    path = path.replace("nbgen/.*", "nbgen/nope").replace("/.*", "/nope").replace("/?", "/")
    assert re.fullmatch(pattern, path), pattern
    return path


PATHS = [*(example(pattern) for pattern, _ in routes(standalone=True)), "nope", "nope/", "a/b"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
NOBODY: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "token"},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": "Bearer \u00fc\u00df"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Cookie": "username=1"},
    {"X-Api-Key": "wrong"},
]


@pytest.mark.parametrize("method", METHODS)
def test_every_route_denies_every_method_without_a_token(server: Server, method: str) -> None:
    with server.anonymous() as client:
        for path in PATHS:
            answer = client.request(method, f"{server.root}{path}")
            assert answer.status_code == 401, (method, path, answer.text)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert method == "HEAD" or "token" in answer.text


@pytest.mark.parametrize("headers", NOBODY)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "api/v1/hello"), ("GET", "health"), ("POST", "generate"), ("POST", "api/v1/runs")]
)
def test_wrong_credentials_are_denied(server: Server, method: str, path: str, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    with server.anonymous() as client:
        answer = client.request(method, path, headers=encoded, json={"text": "x"} if method == "POST" else None)
    assert answer.status_code == 401, answer.text
    assert "`Authorization: Bearer <token>`, or `x-api-key`" in answer.text


def test_tokens_and_the_key_open_nbgens_routes(jupyter: Server) -> None:
    for value in (f"token {TOKEN}", f"Bearer {TOKEN}", f"bearer {jupyter.key}", f"token {jupyter.key}"):
        with jupyter.anonymous(Authorization=value) as client:
            assert client.get("api/v1/hello").status_code == 200
            assert client.post("abort_request", json={"rid": "x"}).status_code == 200
            foreign = client.post("abort_request", json={"rid": "x"}, headers={"Origin": "https://evil.example"})
            assert foreign.status_code == 200
    for key in (TOKEN, jupyter.key):
        for others in ({}, {"Authorization": "Basic YTpi"}):  # the last is a proxy's
            with jupyter.anonymous(**others, **{"X-Api-Key": key}) as client:
                assert client.post("abort_request", json={"rid": "x"}).status_code == 200


def test_the_key_opens_nothing_else_of_jupyter(jupyter: Server) -> None:
    with jupyter.anonymous(Authorization=f"Bearer {jupyter.key}") as client:
        for path in ("api/kernels", "api/contents", "api/sessions"):
            assert client.get(jupyter.root + path).status_code == 403


def test_a_cookie_needs_the_xsrf_header_and_the_right_origin(jupyter: Server) -> None:
    with jupyter.anonymous() as browser:
        browser.get(jupyter.root + "login", params={"token": TOKEN})
        assert browser.get("api/v1/hello").status_code == 200
        assert browser.post("abort_request", json={}).status_code == 403
        xsrf = {"X-XSRFToken": browser.cookies["_xsrf"]}
        assert browser.post("abort_request", json={}, headers=xsrf).status_code == 200
        for headers, status in (({}, 403), ({"Referer": "https://evil.example/"}, 403), (xsrf, 200)):
            assert browser.get("flush_cache", headers=headers).status_code == status
        for headers in ({}, {"Referer": "https://evil.example/"}):
            assert browser.get("tokenizer_info", headers=headers).status_code == 403, "it would load the model"
            assert browser.get("health_generate", headers=headers).status_code == 403, "it would have a token computed"
        assert browser.get("health_generate", headers=xsrf).status_code == 503
        foreign = {**xsrf, "Origin": "https://evil.example"}
        assert browser.post("abort_request", json={}, headers=foreign).status_code == 404
        assert browser.get("api/v1/hello", headers={"Origin": "https://evil.example"}).status_code == 404


def test_a_token_opens_one_call_and_leaves_no_login_behind(jupyter: Server) -> None:
    for options in ({"headers": {"Authorization": f"Bearer {TOKEN}"}}, {"params": {"token": TOKEN}}):
        with jupyter.anonymous() as client:
            assert client.get("api/v1/hello", **options).status_code == 200
            assert client.post("abort_request", json={}, **options).status_code == 200
            assert not client.cookies
            assert client.get("api/v1/hello").status_code == 401


def test_a_wrong_token_is_refused_whatever_cookie_comes_with_it(jupyter: Server) -> None:
    with jupyter.anonymous() as browser:
        browser.get(jupyter.root + "login", params={"token": TOKEN})
        for value in ("Bearer wrong", "token wrong", "Bearer", f"Bearer {TOKEN}x"):
            assert browser.get("api/v1/model", headers={"Authorization": value}).status_code == 401
            assert browser.post("abort_request", json={}, headers={"Authorization": value}).status_code == 401
        for value in (f"Bearer {TOKEN}", f"Bearer {jupyter.key}", "Basic YTpi"):  # the last is a proxy's
            assert browser.get("api/v1/model", headers={"Authorization": value}).status_code == 200
        assert browser.get("api/v1/model").status_code == 200, "still logged in"


def test_jupyters_own_routes_log_in_by_token_as_ever(jupyter: Server) -> None:
    with jupyter.anonymous() as client:
        assert client.get(jupyter.root + "api/status", params={"token": TOKEN}).status_code == 200
        assert client.get("api/v1/model").status_code == 200


def test_hello_gives_a_cookie_only_page_its_xsrf_cookie(jupyter: Server) -> None:
    with jupyter.anonymous() as browser:
        browser.get(jupyter.root + "login", params={"token": TOKEN})
        browser.cookies.delete("_xsrf")
        browser.get("api/v1/hello")
        assert browser.cookies["_xsrf"]


def test_a_foreign_host_is_refused_with_any_credentials(jupyter: Server) -> None:
    for secret in (TOKEN, jupyter.key):
        with jupyter.anonymous(Authorization=f"Bearer {secret}", Host="evil.example") as client:
            answer = client.get("api/v1/hello")
        assert (answer.status_code, "the Host 'evil.example'" in answer.json()["error"]["message"]) == (403, True)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_read(server: Server, kind: str) -> None:
    answer = server.http.post("generate", content=b'{"text": "x"}', headers={"Content-Type": kind} if kind else {})
    assert answer.status_code == 415, answer.text
    assert "application/json" in answer.text


def test_unknown_paths_and_methods_answer_json(server: Server) -> None:
    for path, method, status in (("nope", "GET", 404), ("api/v1/nope", "POST", 404), ("generate", "GET", 405)):
        answer = server.http.request(method, path)
        assert answer.status_code == status
        assert answer.json()
        assert TOKEN not in answer.text
    assert "; /nbgen/ lists all" in server.http.post("chat/completions", json={}).json()["error"]["message"]
    assert set(server.http.get("generate").headers["allow"].split(", ")) == {"POST", "PUT"}


def test_standing_alone_there_is_no_shell_and_the_routes_are_at_the_root(server: Server) -> None:
    assert server.log.is_file(), "in the folder where it was started"
    for path in ("api/kernels", "api/contents", "api/terminals", "lab", "files/server.log", "files/x"):
        answer = server.http.get(server.root + path)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"}), path
    assert server.http.get(server.root + "api/resolvePath", params={"path": "server.log"}).status_code == 404
    assert server.http.get(server.root + "model_info").status_code == 200


@pytest.mark.parametrize("path", ["v1/moderations", "v1/nope/", "nbgen/v1/moderations"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_path_of_openais_is_a_404_in_its_shape(server: Server, path: str, method: str) -> None:
    answer = server.http.request(method, server.root + path, content=b"x" if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
    assert path in answer.json()["message"]
    assert TOKEN not in answer.text


@pytest.mark.parametrize("path", ["concate_and_append_request", "nope/", "a/b.html", "v3", "api/nope", "nbgenx"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_standing_alone_any_other_path_is_a_404_as_sglangs(server: Server, path: str, method: str) -> None:
    answer = server.http.request(method, server.root + path)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    with server.anonymous(Authorization="Bearer wrong") as nobody:
        assert nobody.request(method, server.root + path).status_code == 401


def test_jupyters_own_routes_stay_where_they_are(server: Server, jupyter: Server) -> None:
    with server.anonymous() as browser:
        for path, status in (("login", 200), ("logout", 200), ("static/favicon.ico", 200), ("favicon.ico", 200)):
            assert browser.get(server.root + path).status_code == status, path
    for path in ("", "api", "api/me", "static/nbgen/panel.js"):
        assert server.http.get(server.root + path).status_code == 200, path
    for path in ("nope", "v1/responses", "v1/models"):
        assert "text/html" in jupyter.http.get(jupyter.root + path).headers["content-type"], path
    assert jupyter.http.get(jupyter.root + "nope/").status_code == 302


def test_a_slash_at_the_end_changes_nothing(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    for root in (server.root, f"{server.root}nbgen/"):
        assert server.http.post(f"{root}v1/chat/completions/", json=body).json()["object"] == "chat.completion"
        assert server.http.post(f"{root}generate/", json={"text": "a"}).status_code == 200
        (model,) = server.http.get(f"{root}v1/models/").json()["data"]
        assert server.http.get(f"{root}v1/models/{quote(model['id'], safe='')}/").json()["id"] == model["id"]
        with server.anonymous(Authorization="Bearer wrong") as nobody:
            assert nobody.post(f"{root}v1/chat/completions/", json=body).status_code == 401
            assert nobody.get(f"{root}v1/models/").status_code == 401


READ_ONLY = """
from jupyter_server.auth import Authorizer

class ReadOnly(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return action == "read" and resource == "nbgen"
"""


def test_jupyters_authorizer_decides_what_a_known_caller_may_do(tmp_path: Path) -> None:
    (tmp_path / "read_only.py").write_text(READ_ONLY)
    arguments = (
        "--ServerApp.authorizer_class=read_only.ReadOnly",
        "--NbgenApp.autoload=False",
        "--NbgenApp.grpc_port=0",
    )
    server = Server(tmp_path, *arguments)
    try:
        for path in ("server_info", "v1/models", "metrics", "api/v1/model"):
            assert server.http.get(path).status_code == 200
        for path in ("generate", "abort_request", "pause_generation", "tokenize", "v1/completions", "api/v1/runs"):
            answer = server.http.post(path, json={"text": "a"})
            assert answer.status_code == 403, path
            assert "may not write" in answer.text
        for path in ("flush_cache", "tokenizer_info"):
            assert server.http.get(path).status_code == 403
        with server.anonymous(Authorization=f"Bearer {server.key}") as owner:
            assert owner.post("abort_request", json={}).status_code == 200
        with triton.InferenceServerClient(grpc_address(server)) as remote:
            assert remote.is_server_live(headers={"authorization": f"Bearer {server.key}"})
            with pytest.raises(InferenceServerException, match="authorization"):
                remote.is_server_live(headers=TOKEN_METADATA)
    finally:
        server.stop()


def test_a_token_may_be_shown_twice_but_not_two(server: Server) -> None:
    right, wrong = (("Authorization", f"Bearer {value}") for value in (TOKEN, "wrong"))
    with server.anonymous() as client:
        found = [
            client.post("tokenize", headers=list(shown), json={"prompt": "a"}).status_code
            for shown in ((right, right), (right, wrong), (wrong, right), (wrong, wrong))
        ]
    assert found == [200, 401, 401, 401]


def test_how_the_server_is_needs_no_token_where_the_owner_says_so(tmp_path: Path) -> None:
    server = Server(tmp_path, "--open-health", "--NbgenApp.autoload=False")
    told = ("health", "ready", "ping", "v2/health/live", "v2/health/ready")
    names = {path: path.removeprefix("nbgen/").strip("/") for path in PATHS}
    try:
        with server.anonymous() as nobody, server.anonymous(Authorization="Bearer wrong") as stranger:
            opened = {
                (method, name)
                for path, name in names.items()
                for method in (METHODS if name in told else ("GET",))
                if nobody.request(method, f"{server.root}{path}").status_code != 401
            }
            assert stranger.get("health").status_code == nobody.get("health").status_code == 200
            assert stranger.get("v2/health/live").json() == {"live": True}
        assert opened == {(method, path) for method in ("GET", "HEAD") for path in told}
    finally:
        server.stop()


def test_no_method_escapes_the_base_class() -> None:
    for _, handler in routes(standalone=True):
        for method in METHODS:
            function: Any = getattr(handler, method.lower())
            assert function is not tornado.web.RequestHandler._unimplemented_method
            assert getattr(function, "__allow_unauthenticated", False), "the decision is the base class's alone"
