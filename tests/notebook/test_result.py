"""How a result and a status show themselves."""

from nbgen.notebook.result import Result
from nbgen.notebook.status import Status


def full() -> Result:
    return Result(text="**hi**", finish_reason="stop", usage={"completion_tokens": 42}, ttft_s=0.03, tokens_per_s=210.4)


def test_the_text_is_the_result() -> None:
    result = full()
    assert str(result) == "**hi**"
    assert result.caption == "42 tokens · 0.03 s to first token · 210 tokens/s · stop"
    assert repr(result) == f"Result('**hi**', {result.caption})"
    assert result.to_dict()["usage"] == {"completion_tokens": 42}


def test_a_stopped_result_says_so() -> None:
    assert Result(text="x", finish_reason="abort", usage={"completion_tokens": 1}).caption == "1 token · stopped"


def test_a_notebook_gets_markdown_and_never_html() -> None:
    assert full()._repr_mimebundle_() == {"text/plain": "**hi**", "text/markdown": "**hi**"}


def test_nothing_in_the_markdown_is_fetched() -> None:
    hostile = "![x](http://a/?secret) <img src=http://a> </ IMG> <video src=x> ok <b>"
    shown = Result(text=hostile)._repr_mimebundle_()["text/markdown"]
    assert "![" not in shown
    assert "<img" not in shown
    assert "<video" not in shown
    assert shown.replace("\u2060", "") == hostile


def test_a_terminal_does_not_obey_what_a_model_writes() -> None:
    plain = Result(text="\x1b[2J\r\nERROR\u202e fake\tok")._repr_mimebundle_()["text/plain"]
    assert plain == "\\x1b[2J\\r\nERROR\\u202e fake\tok"


def test_a_status_is_text_and_escaped_html() -> None:
    raw = {
        "state": "ready",
        "name": "<b>",
        "model": {"model_type": "llama", "parameters": 1_500_000, "dtype": "float32", "device": "cpu"},
        "status": {"running": 1, "blocks_total": 10, "blocks_free": 5},
    }
    status = Status("http://127.0.0.1:1/nbgen/", raw)
    assert str(status).splitlines() == [
        "<b>: ready",
        "llama · 1.5 M parameters · float32 on cpu",
        "1 running · 0 waiting · KV cache 50% used",
        "server: http://127.0.0.1:1/nbgen/",
    ]
    assert "&lt;b&gt;" in status._repr_html_()
    assert status.state == "ready"
