"""A live model's server leaves nothing when it ends, and what cannot be served does not begin."""

import copy
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from torch.optim import optimizer
from transformers import AutoModelForCausalLM

import nbgen
from nbgen.engine.live_engine import LiveEngine
from nbgen.engine.live_model import LiveModel
from nbgen.engine_config import EngineConfig
from nbgen.engine_state import LoadModel
from nbgen.errors import InvalidRequest, ModelError
from nbgen.frames import encode_frame
from tests.conftest import PATIENCE, wait_for
from tests.notebook.conftest import unserved

KILLED = """
import os, signal, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
import nbgen
server = nbgen.serve(AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1]))
print(server._folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.soak
def test_the_folder_goes_with_a_kernel_that_was_killed(tiny_model: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tiny_model)]
    folder = subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip()
    assert "nbgen-live-" in folder
    wait_for(lambda: not Path(folder).exists(), "the folder is gone")


@pytest.fixture
def nothing_served() -> Iterator[None]:
    """For this test nothing is served yet."""
    with unserved():
        yield


def test_stopping_gives_everything_back(nothing_served: None, tiny_model: Path, tokenizer: object) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    served(model, tokenizer)
    threads, files, hooks = set(threading.enumerate()), open_files(), len(optimizer._global_optimizer_pre_hooks)
    weight = weakref.ref(model.lm_head.weight)
    url = served(model, tokenizer)
    more = lambda: {thread.name for thread in set(threading.enumerate()) - threads} - {"tqdm_monitor"}  # noqa: E731
    wait_for(lambda: not more(), "its threads are gone")
    wait_for(lambda: open_files() <= files, "its files are closed")
    del model
    gc.collect()
    assert weight() is None
    assert len(optimizer._global_optimizer_pre_hooks) == hooks
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "health")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_that_goes_on_does_not_keep_it_from_ending(
    nothing_served: None, model: torch.nn.Module, tokenizer: object
) -> None:
    """As those of torch's DataLoader do."""
    with nbgen.serve(model, tokenizer):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.read(reader, 1)
            os._exit(0)
    os.write(writer, b"x")
    os.waitpid(pid, 0)


def test_a_stop_that_was_interrupted_can_be_made_again(
    model: torch.nn.Module, tokenizer: object, tmp_path: Path
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def computes_long(*_: object) -> None:
        begun.set()
        goes_on.wait(PATIENCE)

    hook = model.register_forward_pre_hook(computes_long)
    engine = LiveEngine(LiveModel(model, tokenizer), tmp_path / "engine")
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(tmp_path / "engine"))
        server.sendall(encode_frame(LoadModel(config=EngineConfig(model="live"))))
        assert begun.wait(PATIENCE)
    threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    threading.Timer(0.5, goes_on.set).start()
    engine.close()
    hook.remove()
    wait_for(lambda: "nbgen-engine" not in [thread.name for thread in threading.enumerate()], "its thread is gone")


def served(model: torch.nn.Module, tokenizer: object) -> str:
    """Serve for one typed answer; the address."""
    with nbgen.serve(model, tokenizer) as server:
        nbgen.generate("Dear reader", json_schema='{"type": "boolean"}', max_new_tokens=8)
        return server.url


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda model, tokenizer: (torch.nn.Linear(1, 1), tokenizer), "the model is a Linear"),
        (lambda model, tokenizer: (model, None), "the tokenizer is a NoneType"),
        (lambda model, tokenizer: (model.model, tokenizer), "no language model head"),
        (lambda model, tokenizer: ("bundled", tokenizer), "a model's name brings its own"),
    ],
)
def test_what_cannot_be_served_is_refused(
    nothing_served: None, wrong: object, words: str, model: torch.nn.Module, tokenizer: object
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        nbgen.serve(*wrong(model, tokenizer))


def test_a_model_on_no_device_says_so(nothing_served: None, model: torch.nn.Module, tokenizer: object) -> None:
    with pytest.raises(ModelError, match="must lie on one device"):
        nbgen.serve(copy.deepcopy(model).to("meta"), tokenizer)
