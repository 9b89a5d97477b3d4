"""The transcript below a panel: readable anywhere, and nothing of the model's in it acts."""

import time

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from nbgen.notebook.result import Result
from nbgen.notebook.transcript import DRAWN, Transcript, bundle, comparison, continuation
from nbgen.notebook.turns import spoken

TALK = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "two\nlines"},
    {"role": "assistant", "content": "**yes**"},
]


def test_it_reads_as_text_and_as_markdown() -> None:
    shown = bundle(TALK)
    assert shown["text/plain"] == "System: be short\n\nYou: two\nlines\n\nModel: **yes**"
    assert "<summary>Transcript: 2 messages</summary>" in shown["text/markdown"]
    assert "> two<br>\n> lines" in shown["text/markdown"]
    assert set(shown) == {"text/plain", "text/markdown"}


def test_turns_of_every_role_have_a_name() -> None:
    roles = ("system", "developer", "user", "assistant", "tool")
    plain = bundle([{"role": role, "content": "x"} for role in roles])["text/plain"]
    assert plain.split("\n\n") == ["System: x", "System: x", "You: x", "Model: x", "Tool: x"]


def test_nothing_of_the_models_becomes_markup_or_is_fetched() -> None:
    hostile = "<script>x</script> <img src=http://a.b> ![c](http://d.e) </details> 1 < 2"
    markdown = bundle([{"role": "assistant", "content": hostile}])["text/markdown"]
    for word in ("<script", "</script", "<img", "![c]"):
        assert word not in markdown
    assert markdown.count("</details>") == 1
    assert "1 < 2" in markdown


def test_of_a_long_conversation_the_older_messages_stand_as_they_were_written() -> None:
    typed = "**a** ```\n<b></details> $x$"
    talk = [{"role": role, "content": typed} for role in ("user", "assistant")] * (1 + DRAWN // 2)
    markdown = bundle(talk)["text/markdown"]
    source = f"````\nYou: {typed}\n\nModel: {typed}\n````"
    older = f"<details><summary>The first 2, as they were written</summary>\n\n{source}\n\n</details>\n\n"
    assert markdown.startswith(f"<details><summary>Transcript: {DRAWN + 2} messages</summary>\n\n{older}**You**")
    assert markdown.endswith(bundle(talk[2:])["text/markdown"].partition("\n\n")[2])


def test_code_that_was_cut_off_ends_with_its_answer() -> None:
    markdown = bundle([{"role": "assistant", "content": "```python\nx = 1"}])["text/markdown"]
    assert "x = 1\n```\n\n</details>" in markdown


def test_a_conversation_that_has_not_begun_shows_nothing() -> None:
    assert bundle([]) == {"text/plain": "", "text/markdown": ""}


def test_a_comparison_has_each_answer_below_its_label() -> None:
    answers = [("top_p 0.5", Result(text="**a** <b>", finish_reason="abort")), ("stop $x", Result(text="b"))]
    shown = comparison([{"role": "user", "content": "# hi"}], answers)
    assert shown["text/plain"] == "You: # hi\n\ntop_p 0.5: **a** <b> (stopped)\n\nstop $x: b"
    markdown = shown["text/markdown"]
    assert "<summary>Comparison: 2 answers</summary>\n\n**You**\n\n> &#35; hi" in markdown
    assert "**top&#95;p 0.5**\n\n**a** &lt;b>\n\n*(stopped)*" in markdown
    assert "*()*" not in markdown
    nothing = {"text/plain": "", "text/markdown": ""}
    assert comparison([], [("a", Result())]) == continuation("") == nothing


def test_a_continued_text_stands_as_it_is() -> None:
    shown = continuation("# Once <b>")
    assert shown["text/plain"] == "# Once <b>"
    assert "&#35; Once &lt;b&#62;" in shown["text/markdown"]


def test_all_outputs_of_a_panel_are_changed_at_once() -> None:
    InteractiveShell.clear_instance()
    InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    transcript, written = Transcript(), continuation("Once")
    with capture_output() as captured:
        transcript.show()
        transcript.update(written)
        transcript.show()
        transcript.update(written)
    InteractiveShell.clear_instance()
    outputs = captured.outputs
    assert [output.data for output in outputs] == [continuation(""), written, written, written]
    assert [output.update for output in outputs] == [False, True, False, True]
    assert len({output.transient["display_id"] for output in outputs}) == 1


def test_the_arguments_of_a_call_stand_in_one_line_however_much_space_they_have() -> None:
    def call(arguments: str) -> object:
        return spoken({"content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})

    assert call('{\n  "a":  "b",\r\n\t"c": 1 \n}') == '`f({ "a":  "b", "c": 1 })`'
    begun = time.process_time()
    call('{"a": "' + " " * 50_000)
    assert time.process_time() - begun < 5
