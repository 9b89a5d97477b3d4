"""Fixtures that all tests share: small random checkpoints of real architectures, as a user's folder would hold them."""

import atexit
import contextlib
import gc
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the cores are shared by processes of tests
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from packaging.version import Version

from nbgen.engine.lean_imports import TORCHVISION, leave_out
from nbgen.engine.model_list import model_list_kept
from nbgen.notebook import passed_on
from tests.soak import TIMES

# Or else each of hundreds of processes compiles anew what it imports of ours.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Most of a Jupyter server's start, and tests start a hundred, is a package reading its grammar. jsonschema has it check
# a format that no schema here names, and does without where there is none. So do a kernel without a debugger, and httpx
# without a command line of its own: a quarter of a kernel's start, of which there are as many.
WITHOUT = str(Path(__file__).parent / "without")
sys.path.insert(0, WITHOUT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [WITHOUT, os.environ.get("PYTHONPATH")]))

# As an engine does for most models: what these see does not depend on whether it is installed.
WITH_TORCHVISION = "NBGEN_TESTS_WITH_TORCHVISION"
if WITH_TORCHVISION not in os.environ:
    leave_out(TORCHVISION, for_good=True)

# transformers makes a list of its models twice as it is imported, of 1,500 files: as in an engine, it is kept.
kept_list = model_list_kept()
kept_list.__enter__()
atexit.register(kept_list.__exit__, None, None, None)

# As where the environment is activated: `make test` installs node there, on a machine that has none.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# What a busy machine takes its time for is no fault: pytest has a limit for each test. Chance is for `make soak`: what
# has passed once passes again.
settings.register_profile(
    "nbgen",
    max_examples=50 * TIMES,
    deadline=None,
    derandomize=TIMES == 1,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nbgen")

# A shell that starts these tests in the background has them ignore Ctrl-C, with which some of them interrupt a cell.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Seconds. What is waited for comes at once; a machine may have much else to do.
PATIENCE = 100.0
#: Seconds after which a server of `http.server` looks whether it shall end; by itself it takes half a second.
LOOKS = 0.01

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


@cache
def at_least(package: str, version: str) -> bool:
    """Whether a package is installed that is so new: `make oldest` tests with packages that lack what came later."""
    try:
        return Version(metadata.version(package)) >= Version(version)
    except metadata.PackageNotFoundError:
        return False


def wait_for(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true value of `holds`, within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := holds():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked how."""
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


#: How many ports, from 10,000 on, tests take from. Those that a system hands out lie above: none is taken before
#: its server listens.
PORTS = 20_000
# Each process of tests counts from elsewhere, those of one run as far apart as can be.
_worker, _workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:], os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
_ports = itertools.count(331 * os.getppid() + PORTS // int(_workers) * int(_worker))


def free_port() -> int:
    """One on which nothing listens."""
    while True:
        port = 10_000 + next(_ports) % PORTS
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def save_tokenizer(folder: Path) -> int:
    """A byte-level tokenizer with a chat template; its vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS[1:]})
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return len(vocab)


#: Folders that were made, by all that makes them, and the state of torch's chance after that.
_made: dict[str, tuple[Path, Any]] = {}


def made_once(folder: Path, parts: object, make: Callable[[Path], object]) -> Path:
    """The folder, with what `make` puts into one, which the `parts` name. It is copied: to make it takes longer."""
    import torch

    if (name := repr(parts)) not in _made:
        place = Path(tempfile.mkdtemp(prefix="checkpoint-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        make(place)
        _made[name] = place, torch.get_rng_state()
    place, drawn = _made[name]
    shutil.copytree(place, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    torch.set_rng_state(drawn)
    return folder


def save_model(folder: Path, model_type: str = "llama", *, noise: float = 0.2, **changes: object) -> Path:
    """A random checkpoint of two small layers, saved as a user's would be. The same every time.

    Norms, biases and scales have some `noise`, as if they had been trained: all ones, or zeros, show nothing.
    """
    parts = (model_type, noise, sorted(changes.items()))
    return made_once(folder, parts, lambda place: _make_model(place, model_type, noise, changes))


#: Of a model of two small layers, without its vocabulary.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "pad_token_id": 0,
    "eos_token_id": 0,
}


def _make_model(folder: Path, model_type: str, noise: float, changes: dict[str, object]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    sizes = {"vocab_size": save_tokenizer(folder), **SIZES}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**sizes, **changes})
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto.from_config(config).float()
    # Larger weights than an initializer's, so that the scores have clear winners.
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15 if "embed" not in name else 0.6)
    for tensor in model.state_dict().values():
        if tensor.dim() < 2 and tensor.is_floating_point():
            tensor += noise * torch.randn(tensor.shape) * tensor.where(tensor != 0, torch.ones(()))
    model.save_pretrained(folder)


def continuation(model: Any, prompt: list[int], new_tokens: int, found: list[int] | None = None) -> list[int]:
    """What transformers' own greedy `generate` writes with the model.

    What is `found` is that where the model prefers each token of it after the ones before, and need not write then.
    """
    import torch

    if found is not None and len(found) == new_tokens and _prefers(model, prompt, found):
        return found
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    # Where a prompt has the token of padding, only a mask says that it counts.
    written = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    return written[0, len(prompt) :].tolist()


def _prefers(model: Any, prompt: list[int], tokens: list[int]) -> bool:
    import torch

    ids = torch.tensor([prompt + tokens])
    with torch.inference_mode():
        scores = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    return scores[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


def edit(path: Path, **changes: object) -> None:
    """Change some fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile our C++ before processes of tests begin: each of their engines would, all at once, while others wait."""
    if session.config.getoption("numprocesses", None):
        code = "from concurrent.futures import ThreadPoolExecutor; from nbgen.engine import native; "
        code += "[*ThreadPoolExecutor().map(native.rounds, native.KINDS)]"
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage meanwhile, and never in what is there then: a million objects of imports, which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that no process is left with one of them at the end."""
    items.sort(key=lambda item: item.path.name != "test_notebooks.py")


def pytest_collection_finish() -> None:
    """What has been imported stays: an engine that makes room has all garbage looked for, again and again."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # no sooner: pytest looks for all garbage five times at its end


@pytest.fixture(autouse=True)
def told_to_nobody() -> Iterator[None]:
    """What is started after a test is told of no server of that test's."""
    before = {name: value for name, value in passed_on.own_environment().items() if name in passed_on.NAMES}
    yield
    passed_on.take_back()
    for name in passed_on.NAMES:
        os.environ.pop(name, None)
    os.environ.update(before)


@pytest.fixture(autouse=True)
def no_chance() -> None:
    """What a test has torch draw is the same whichever tests came before it in this process."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random two-layer Llama with a byte-level tokenizer and a chat template."""
    return save_model(tmp_path_factory.mktemp("models") / "tiny-llama")
