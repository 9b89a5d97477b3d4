"""What the model thought of a text: read from the real server, and shown."""

import math

import pytest

import nbgen
from nbgen.notebook.logprobs import MOST_SHOWN, Alternative, Logprobs, Token
from nbgen.notebook.private_server import PrivateServer


def test_a_text_and_its_continuation_have_probabilities(connected: PrivateServer) -> None:
    thought = nbgen.logprobs("hello", top=3, max_new_tokens=4, temperature=0)
    assert thought.text.startswith("hello")
    assert len(thought) == 5 + 4
    assert [token.generated for token in thought] == [False] * 5 + [True] * 4
    assert thought[0].logprob is None
    assert all(len(token.top) == 3 for token in thought[1:])
    assert all(token.top[0].id == token.id for token in thought.generated)
    assert all(token.top[0].logprob == pytest.approx(token.logprob) for token in thought.generated)
    assert all(nbgen.detokenize([other.id]) == other.text for other in thought[-1].top)
    assert thought.perplexity > 1
    frame = thought.to_df()
    assert frame.probability[1:].between(0, 1).all()
    assert frame.logprob.sum() == pytest.approx(thought.total)


@pytest.mark.parametrize("text", ["Héllo wörld 你好 😀", "é", "a\ufffdb", "é " * 300])
def test_characters_of_several_tokens_are_whole(connected: PrivateServer, text: str) -> None:
    thought = nbgen.logprobs(text)
    assert thought.text == text
    assert len(thought) == len(text.encode())
    assert thought[:-1].text == text[:-1]
    assert text[0] in thought._repr_html_()
    assert thought._repr_html_().count("<span") == len(thought) + 4, "each has its colour, beside those of the scale"


def test_each_character_stands_at_the_token_that_completes_it(connected: PrivateServer) -> None:
    text = "a 日本語の🦊 שלום é" * 20
    pieces = [token.written for token in nbgen.logprobs(text)]
    assert pieces == [piece for character in text for piece in [""] * (len(character.encode()) - 1) + [character]]


def test_perplexity_is_one_where_nothing_else_could_stand() -> None:
    certain = Logprobs([Token("a", 1, None, False, []), Token("b", 2, 0.0, False, [])])
    assert certain.perplexity == 1
    assert math.isnan(Logprobs([]).perplexity)
    assert "2 tokens" in repr(certain)


def test_the_heat_map_is_escaped() -> None:
    token = Token("<b>\n", 1, math.log(0.5), True, [Alternative('"><script>', 2, math.log(0.5))])
    shown = Logprobs([token])._repr_html_()
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert "50.0%" in shown
    assert "font-weight: 600" in shown


def test_tokens_of_the_same_text_are_told_apart_by_their_ids() -> None:
    broken = "\ufffd"
    top = [Alternative(text, id, -1.0) for text, id in ((broken, 200), (broken, 201), ("a", 1))]
    thought = Logprobs([Token(broken, 200, -1.0, True, top)])
    assert thought.to_df().top[0][:2] == [(broken, 200, math.exp(-1)), (broken, 201, math.exp(-1))]
    shown = thought._repr_html_()
    assert [shown.count(f"(id {number})") for number in (200, 201, 1)] == [2, 1, 0]


def test_odd_numbers_are_shown_all_the_same() -> None:
    for logprob in (-1e9, -math.inf, -0.0, 1e-9, math.nan):
        odd = Logprobs([Token("a", 1, logprob, True, [Alternative("b", 2, logprob)])])
        assert "perplexity" in repr(odd)
        assert ">a</span>" in odd._repr_html_()
        assert len(odd.to_df()) == 1
    assert Logprobs([Token("a", 1, -1e9, True, [])]).perplexity == math.inf
    assert "0 tokens" in Logprobs([])._repr_html_()


def test_of_many_tokens_the_first_are_shown() -> None:
    tokens = [Token("$x$", 1, -1.0, True, [])] * (MOST_SHOWN + 1)
    shown = Logprobs(tokens)._repr_html_()
    assert shown.count("$x$</span>") == MOST_SHOWN
    assert f"the first {MOST_SHOWN} of {MOST_SHOWN + 1} tokens" in shown
    assert "mathjax_ignore" in shown
    assert "the first" not in Logprobs(tokens[1:])._repr_html_()
