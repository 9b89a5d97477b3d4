"""HEAD, by which monitors ask: what GET answers, without its body, where that is cheap and changes nothing."""

import pytest

from tests.server.conftest import Server

MODEL = "v1/models/long-llama"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "health",
            "ping",
            "ready",
            "model_info",
            "get_model_info",
            "server_info",
            "metrics",
            "v1/models",
            "v1/models/nope",
        ),
        *("api/v1/hello", "api/v1/model", "api/v1/runs/nope", "api/v1/chats/nope", "v1/conversations/nope"),
    ],
)
def test_head_is_get_without_a_body(server: Server, path: str) -> None:
    got, asked = server.http.get(path), server.http.head(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    assert asked.headers["content-type"] == got.headers["content-type"]
    if path not in ("metrics", "server_info", "api/v1/model"):  # which tell other numbers each time
        assert asked.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize(
    "path", ["generate", "health_generate", "flush_cache", "tokenizer_info", "v1/chat/completions", "v2/health/live"]
)
def test_what_is_dear_or_changes_something_is_no_matter_of_head(server: Server, path: str) -> None:
    answer = server.http.head(path)
    assert answer.status_code == 405
    assert "HEAD" not in answer.headers["allow"]


def test_the_root_of_a_server_that_stands_alone(server: Server) -> None:
    assert server.http.head(server.root).status_code == 200
