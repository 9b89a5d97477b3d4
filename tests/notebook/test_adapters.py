"""A LoRA adapter from the notebook: a folder, and a peft model that lives here."""

from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from peft import PeftModel

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook import adapters, session
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import RemoteClient
from nbgen.notebook.sglang_backend import SGLangBackend
from tests.adapters import peft_model

OPTIONS = {"complete": True, "temperature": 0, "max_new_tokens": 12, "ignore_eos": True}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
]


@pytest.fixture
def live(tiny_model: Path) -> PeftModel:
    """A model as it is after training."""
    model = peft_model(tiny_model)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def test_a_live_model_and_its_folder_answer_alike(connected: PrivateServer, live: PeftModel, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    live.save_pretrained(folder)
    try:
        assert set(nbgen.load_adapter("folder", folder)) == {"folder"}
        assert set(nbgen.load_adapter("live", live)) == {"folder", "live"}
        plain, saved, lives = (nbgen.generate("abc", adapter=name, **OPTIONS).text for name in ("", "folder", "live"))
        assert saved == lives != plain
        assert nbgen.chat(adapter="live", temperature=0, max_new_tokens=3)("Hello").text is not None
        with pytest.raises(InvalidRequest, match="already loaded"):
            nbgen.load_adapter("live", live)
    finally:
        for name in ("folder", "live"):
            nbgen.unload_adapter(name)
    with pytest.raises(InvalidRequest, match="does not exist"):
        nbgen.unload_adapter("live")


def test_no_more_copies_are_kept_than_can_be_asked_for(connected: PrivateServer, live: PeftModel) -> None:
    def copies() -> int:
        return len(list(Path(adapters._home()).iterdir()))

    before = copies()
    for name in ("one", "two", "one"):
        nbgen.load_adapter(name, live)
        nbgen.unload_adapter(name)
    assert copies() == before + 2
    nbgen.generate("abc", adapter="one", **OPTIONS)
    with pytest.raises(InvalidRequest, match="already loaded"):
        nbgen.load_adapter("one", live)
    assert copies() == before + 2
    nbgen.unload_adapter("one")


def test_whatever_reads_a_text_takes_an_adapter(
    connected: PrivateServer, live: PeftModel, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbgen.load_adapter("live", live)
    try:
        plain, adapted = (nbgen.hidden_states("abc", adapter=name) for name in ("", "live"))
        assert not np.allclose(plain, adapted)
        assert nbgen.logprobs("abc", adapter="live").total != nbgen.logprobs("abc").total
        vectors = nbgen.embed(["abc", "d"], pooling="mean", adapter="live")
        np.testing.assert_allclose(vectors[0], adapted.mean(axis=0), atol=1e-5)
        said = nbgen.generate("abc", adapter="live", temperature=0, max_new_tokens=12).text
        shell.run_cell_magic("nbgen", "--adapter live -t 0 --max-new-tokens 12 --out result", "abc")
        assert shell.user_ns["result"].text == said != nbgen.generate("abc", temperature=0, max_new_tokens=12).text
        chat = nbgen.Chat(adapter="live", temperature=0, max_new_tokens=12)
        chat.ask("abc")
        chat.wait()
        assert chat.messages[-1]["content"] == said
        chat.close()
        with closing(RemoteClient(connected.url, connected.client.token, SGLangBackend("m"))) as remote:
            monkeypatch.setattr(session, "_client", remote)
            states = nbgen.embed(["abc", "d"], pooling="mean", adapter="live")
        np.testing.assert_allclose(states, vectors, atol=1e-5)
    finally:
        connected.client.unload_adapter("live")
    with pytest.raises(InvalidRequest, match="adapter goes with a pooling"):
        nbgen.embed("abc", adapter="live")


def test_what_is_no_adapter_is_refused_in_words(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match="a folder or a peft model, got int"):
        nbgen.load_adapter("x", 5)
    for nowhere in ("nowhere", "long" * 100):
        with pytest.raises(InvalidRequest, match="no such folder"):
            nbgen.load_adapter("x", nowhere)
    with pytest.raises(InvalidRequest, match="control character"):
        nbgen.load_adapter("x", "a\0b")
    for wrong in (lambda: nbgen.load_adapter("", "folder"), lambda: nbgen.unload_adapter(5)):
        with pytest.raises(InvalidRequest, match=r"^`?name`? "):
            wrong()
    with pytest.raises(InvalidRequest, match="never been loaded"):
        nbgen.generate("abc", adapter="nobody", **OPTIONS)
    for helper in (nbgen.logprobs, nbgen.hidden_states, partial(nbgen.embed, pooling="last")):
        with pytest.raises(InvalidRequest, match=r"^adapter: .* never been loaded"):
            helper("abc", adapter="nobody")
