"""What every panel has as a widget: the server that this kernel uses, and how it is displayed."""

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.chat import Chat
from nbgen.notebook.private_server import PrivateServer


@pytest.fixture
def chat(connected: PrivateServer) -> Iterator[Chat]:
    chat = nbgen.Chat()
    yield chat
    chat.close()


def test_panels_that_stand_turn_to_the_server_that_python_asks(
    connected: PrivateServer, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_client", None)
    own = connected.client.hello()["server_id"]
    other = nbgen.connect(connected.url.removesuffix("nbgen/"), connected.client.token, kind="openai")
    shown = nbgen.monitor()
    assert (chat.server_id, shown.server_id) == ("", "")
    back = nbgen.connect(connected.url, connected.client.token)
    assert (chat.server_id, shown.server_id) == (own, own)
    for client in (other, back):
        client.close()
    shown.close()


def test_a_panel_is_displayed_with_what_goes_beside_it(
    chat: Chat, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Colab anywidget says there which program draws widgets."""
    beside = {"application/vnd.jupyter.widget-view+json": {"colab": {"custom_widget_manager": {}}}}
    monkeypatch.setattr("nbgen.notebook.panel.in_notebook", lambda: True)
    monkeypatch.setattr(Chat, "_repr_mimebundle_", lambda self: ({"text/plain": "panel"}, beside))
    with capture_output() as shown:
        chat._ipython_display_()
    assert (shown.outputs[0].data, shown.outputs[0].metadata) == ({"text/plain": "panel"}, beside)


def test_an_argument_that_no_panel_takes_is_named_as_it_was_given(connected: PrivateServer) -> None:
    for make, words in (
        (lambda: nbgen.Chat(height=5), "height should not be less than 220, but a value of 5 was specified"),
        (lambda: nbgen.Chat(transport="x"), "transport expected any of ['auto', 'direct', 'comm'], not the str 'x'"),
        (lambda: nbgen.Stream(5), "prompt expected a unicode string, not the int 5"),
        (
            lambda: nbgen.monitor(interval_ms=1),
            "interval_ms should not be less than 200, but a value of 1 was specified",
        ),
    ):
        with pytest.raises(InvalidRequest) as refused:
            make()
        assert str(refused.value) == words
