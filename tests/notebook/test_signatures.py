"""Options in the signatures of helpers: found by Tab, and the same as those that are taken."""

import inspect

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import nbgen
from nbgen.notebook.conversation import Conversation
from nbgen.notebook.signatures import STREAMED
from nbgen.sampling_params import SamplingParams

SAMPLING = set(SamplingParams.__struct_fields__)
TAKING = (nbgen.generate, nbgen.stream, nbgen.chat, nbgen.map, nbgen.logprobs, nbgen.compare, nbgen.Chat, nbgen.Stream)


@pytest.mark.parametrize("helper", [*TAKING, Conversation.__call__, Conversation.stream])
def test_every_sampling_option_has_its_name_there(helper: object) -> None:
    parameters = inspect.signature(helper).parameters
    assert set(parameters) >= SAMPLING
    assert all(given.kind is not given.VAR_KEYWORD for given in parameters.values())


def test_a_signature_reads_as_it_is_written() -> None:
    assert "max_new_tokens: int | None = 128, min_new_tokens: int = 0, " in str(inspect.signature(nbgen.generate))


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
