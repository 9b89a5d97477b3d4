"""Options in the signatures of helpers: found by Tab, and the same as those that are taken."""

import inspect
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook.conversation import Conversation
from nbgen.notebook.options import LINES, SamplingOptions
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.signatures import STREAMED
from nbgen.sampling_params import DEFAULT_NEW_TOKENS, SamplingParams

SAMPLING = set(SamplingParams.__struct_fields__)
TAKING = (nbgen.generate, nbgen.stream, nbgen.chat, nbgen.map, nbgen.logprobs, nbgen.compare, nbgen.Chat, nbgen.Stream)


@pytest.mark.parametrize("helper", [*TAKING, Conversation.__call__, Conversation.stream])
def test_every_sampling_option_has_its_name_there(helper: object) -> None:
    parameters = inspect.signature(helper).parameters
    assert set(parameters) >= SAMPLING
    assert all(given.kind is not given.VAR_KEYWORD for given in parameters.values())


def test_a_signature_reads_as_it_is_written() -> None:
    for helper, default in ((nbgen.generate, None), (nbgen.map, None), (nbgen.Chat, None), (nbgen.Stream, 128)):
        signature = str(inspect.signature(helper))
        assert f"max_new_tokens: int | None = {default}, min_new_tokens: int = 0, " in signature


def test_the_default_that_is_read_is_the_one_that_is_sent(connected: PrivateServer) -> None:
    assert nbgen.stream("hi").result.params == {"max_new_tokens": None}
    for panel in (nbgen.Chat(), nbgen.Stream()):
        said = inspect.signature(type(panel)).parameters["max_new_tokens"].default
        assert panel.params.get("max_new_tokens", DEFAULT_NEW_TOKENS) == said
        panel.close()


def test_what_a_stream_takes_is_named_where_it_is_handed_on() -> None:
    assert (
        set(inspect.signature(nbgen.stream).parameters)
        == {"prompt", "schema", "complete", "system", *STREAMED} | SAMPLING
    )
    assert set(inspect.signature(nbgen.generate).parameters) == set(inspect.signature(nbgen.stream).parameters)


@pytest.mark.parametrize("jedi", [True, False])
def test_tab_offers_them(shell: InteractiveShell, jedi: bool) -> None:
    shell.run_cell("import nbgen")
    shell.Completer.use_jedi = jedi
    for code in ('nbgen.generate("hi", temp', "nbgen.Chat(temp", 'nbgen.compare("hi", temp'):
        with provisionalcompleter():
            offered = {found.text for found in shell.Completer.completions(code, len(code))}
        assert "temperature=" in offered


@pytest.mark.parametrize(
    ("helper", "given", "meant"),
    [
        (nbgen.generate, "sytem", "system"),
        (nbgen.generate, "image", "images"),
        (nbgen.stream, "seed", "sampling_seed"),
        (nbgen.generate, "stream", "nbgen.stream"),
        (nbgen.generate, "response_format", "schema"),
        (nbgen.map, "temp", "temperature"),
        (nbgen.map, "concurency", "concurrency"),
        (nbgen.map, "max_tokens", "max_new_tokens"),
        (nbgen.logprobs, "tops", "top"),
        (nbgen.compare, "transprot", "transport"),
        (nbgen.Chat, "template_option", "template_options"),
        (nbgen.Stream, "alternative", "alternatives"),
    ],
)
def test_an_option_that_is_none_is_refused_with_the_one_that_was_meant(helper: Any, given: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"no option '{given}'; did you mean '{meant}'") as refused:
        helper("hi", **{given: 1})
    assert refused.value.field == given


def test_a_prompt_by_another_name_is_no_missing_prompt() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'prompt'"):
        nbgen.generate(messages=[])  # type: ignore[call-arg]


@pytest.mark.parametrize("helper", [nbgen.map, nbgen.compare, nbgen.logprobs])
def test_an_option_of_others_is_refused_with_where_it_is(helper: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"no option 'tools' here; nbgen\.generate has it$") as refused:
        helper("hi", tools=[print])
    assert refused.value.field == "tools"


def test_where_none_was_meant_all_are_named() -> None:
    for helper in (nbgen.stream, nbgen.map, nbgen.Chat):
        names = [name for name in inspect.signature(helper).parameters if name != "self"]
        with pytest.raises(InvalidRequest) as refused:
            helper("hi", qqqq=1)
        assert str(refused.value).endswith(f"there are {', '.join(names)}")


def test_every_option_has_a_type_and_a_line_of_help() -> None:
    assert list(SamplingOptions.__annotations__) == list(SamplingParams.__struct_fields__)
    assert set(LINES) == {*SAMPLING, *STREAMED}
    for helper in (nbgen.generate, nbgen.map, nbgen.Chat.__init__, Conversation.__call__):
        assert all(f"\n    {name}: {LINES[name]}" in (helper.__doc__ or "") for name in SAMPLING)
    assert "adapter: the name of a LoRA adapter" in (nbgen.generate.__doc__ or "")
    assert nbgen.generate.__doc__
    assert nbgen.generate.__doc__.startswith("The model's answer")


def test_help_says_on_which_side_of_its_end_an_answer_ends(connected: PrivateServer) -> None:
    def text(**ending: str) -> str:
        return nbgen.generate("Hi", regex="abcdef", **ending).text

    assert (text(stop="c"), text(stop_regex="[c]")) == ("ab", "abc")
    assert (LINES["stop"][:10], LINES["stop_regex"][:9]) == ("end before", "end after")
