"""How a result and a status show themselves."""

import html
import json
import pickle
from typing import get_type_hints

import pandas
import pytest

from nbgen.errors import InvalidAnswer
from nbgen.notebook.result import Result
from nbgen.notebook.schema import Schema
from nbgen.notebook.status import Status


def full() -> Result:
    return Result(text="**hi**", finish_reason="stop", usage={"completion_tokens": 42}, ttft_s=0.03, tokens_per_s=210.4)


def test_the_text_is_the_result() -> None:
    result = full()
    assert str(result) == "**hi**"
    assert f"{result:>8.5}|" == "   **hi*|"
    assert result.caption == "42 tokens · 0.03 s to first token · 210 tokens/s"
    assert Result(ttft_s=0.004).caption == "4 ms to first token"
    assert Result(ttft_s=0.0).caption == "1 ms to first token"
    assert repr(result) == f"Result('**hi**', {result.caption})"
    assert repr(Result(text="x", finish_reason="stop")) == "Result('x', stop)"
    assert result.to_dict()["usage"] == {"completion_tokens": 42}
    assert result == "**hi**" != result.caption
    assert {"**hi**": 1}[result] == 1
    assert result in ["**hi**"]
    assert "hi" in result
    assert result == full() != Result(text="**hi**")
    assert list(result == pandas.Series(["**hi**", "b"])) == [True, False]
    typed = Result(text="[1]", schema=Schema(list[int]))
    assert pickle.loads(pickle.dumps(typed)) == typed
    assert get_type_hints(Result)["schema"] == Schema | None


def test_a_method_of_texts_is_one_of_its_text() -> None:
    with pytest.raises(AttributeError, match=r"^'Result' .* no attribute 'upper'; its text has: \.text\.upper$"):
        full().upper()
    with pytest.raises(AttributeError, match=r"^'Result' object has no attribute 'content'$"):
        full().content  # noqa: B018

    def odd(text: str) -> None:
        raise AttributeError("what the person's own class did")

    schema = Schema(int)
    schema.parse = odd  # type: ignore[method-assign]
    with pytest.raises(AttributeError, match="own class") as raised:
        Result(text="1", finish_reason="stop", schema=schema).value  # noqa: B018
    assert raised.traceback[-1].name == "odd"


def test_a_result_can_be_taken_along() -> None:
    result = Result(text="ja", messages=[{"role": "user", "content": "ok?"}], usage={"prompt_tokens": 3})
    assert result.to_openai() == [{"role": "user", "content": "ok?"}, {"role": "assistant", "content": "ja"}]
    assert json.loads(result.to_jsonl()) == {"messages": result.to_openai()}
    assert result.to_jsonl().endswith("}\n")
    assert result.to_df().loc[0, ["text", "prompt_tokens"]].tolist() == ["ja", 3]
    assert Result(text="b", prompt="a").to_openai()[0]["content"] == "a"
    assert "**Model**\n\nja" in result.to_markdown()


def test_what_to_do_about_an_answer_that_was_cut_off() -> None:
    kind = Schema({"type": "object"})
    with pytest.raises(InvalidAnswer, match=r"cut off at max_new_tokens=128\)$"):
        Result(text="{", finish_reason="length", schema=kind).value  # noqa: B018
    with pytest.raises(
        InvalidAnswer, match=r"cut off at the context's end\): a shorter prompt or a schema with limits"
    ):
        Result(text="{", finish_reason="length", schema=kind, params={"max_new_tokens": None}).value  # noqa: B018
    with pytest.raises(InvalidAnswer, match=r"\(stopped\)$"):
        Result(text="{", finish_reason="abort", schema=kind, params={"max_new_tokens": None}).value  # noqa: B018


def test_a_value_needs_a_schema_and_a_whole_answer() -> None:
    kind = Schema({"type": "object"})
    assert Result(text='{"a": 1}', finish_reason="stop", schema=kind).value == {"a": 1}
    bundle, _ = Result(text='{"a": "<b>"}', finish_reason="stop", schema=kind)._repr_mimebundle_()
    assert "&lt;b&gt;" in bundle["text/html"]
    for result in (full(), Result(text='{"a', finish_reason="length", schema=kind)):
        with pytest.raises(InvalidAnswer):
            _ = result.value


def test_a_stopped_result_says_so() -> None:
    assert Result(text="x", finish_reason="abort", usage={"completion_tokens": 1}).caption == "1 token · stopped"


def test_a_shown_result_says_that_it_was_cut_off_or_is_one_of_several() -> None:
    usage = {"completion_tokens": 12}
    cut = Result(text="a _b", finish_reason="length", usage=usage, params={"max_new_tokens": 12})
    bundle, _ = cut._repr_mimebundle_()
    assert bundle["text/plain"] == "a _b\n(12 tokens · cut off at max_new_tokens=12)"
    assert html.unescape(bundle["text/markdown"]) == "a _b\n\n*(12 tokens · cut off at max_new_tokens=12)*"
    assert Result(finish_reason="length", usage=usage).caption == "12 tokens · cut off at the context's end"
    assert Result(finish_reason="length").caption == "cut off at max_new_tokens=128"
    several = Result(text="1", finish_reason="stop", others=["2", "3"], schema=Schema({"type": "integer"}))
    bundle, _ = several._repr_mimebundle_()
    assert all("(2 more in .texts)" in shown for shown in bundle.values())
    assert set(bundle) == {"text/plain", "text/markdown", "text/html"}
    bundle, _ = Result(finish_reason="error", error="no <img> \r")._repr_mimebundle_()
    assert bundle["text/plain"] == "\n(no <img> \\r)"
    assert bundle["text/markdown"].startswith("\n\n*(no &lt;img&#62; ")


def test_a_notebook_gets_markdown_and_never_html() -> None:
    bundle, metadata = full()._repr_mimebundle_()
    assert bundle == {"text/plain": "**hi**", "text/markdown": "**hi**"}
    assert metadata["nbgen"]["usage"] == {"completion_tokens": 42}


def test_a_call_is_shown_in_one_line_however_its_arguments_were_written() -> None:
    call = {"id": "1", "name": "f", "arguments": '{\n\n  "a": "b  c",\r\n\t"d": 1}'}
    assert str(Result(tool_calls=[call])._repr_mimebundle_()[0]["text/markdown"]) == '`f({ "a": "b  c", "d": 1})`'


def test_nothing_in_the_markdown_is_fetched() -> None:
    hostile = "![x](http://a/?secret) <img src=http://a> </ IMG> <video src=x> ok <b>"
    shown = Result(text=hostile)._repr_mimebundle_()[0]["text/markdown"]
    assert "![" not in shown
    assert "<img" not in shown
    assert "<video" not in shown
    assert html.unescape(shown) == hostile


def test_a_terminal_does_not_obey_what_a_model_writes() -> None:
    plain = Result(text="\x1b[2J\r\nERROR\u202e fake\tok")._repr_mimebundle_()[0]["text/plain"]
    assert plain == "\\x1b[2J\\r\nERROR\\u202e fake\tok"


def test_a_status_is_text_and_escaped_html() -> None:
    raw = {
        "state": "ready",
        "name": "<b>",
        "model": {
            "model_type": "llama",
            "parameters": 1_500_000,
            "dtype": "float32",
            "device": "cpu",
            "layers_in": "C++",
        },
        "status": {"running": 1, "blocks_total": 10, "blocks_free": 5},
    }
    status = Status("http://127.0.0.1:1/nbgen/", raw)
    assert str(status).splitlines() == [
        "<b>: ready",
        "llama · 1.5 M parameters · float32 on cpu in C++",
        "1 running · 0 waiting · KV cache 50% used",
        "server: http://127.0.0.1:1/nbgen/",
    ]
    assert "&lt;b&gt;" in status._repr_html_()
    assert status.state == "ready"
    unasked = Status("", {"state": "stopped", "name": "m", "unasked_seconds": 12.0})
    assert str(unasked).startswith("m: stopped after 12 s without a request; the next one loads it")
    assert str(Status("", {"state": "released", "name": "m"})).startswith("m: memory released; nbgen.load() resumes it")
