"""The engine process over its socket: it loads, answers, refuses, and ends when its server does, however that ends."""

import ctypes
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nbgen.engine.process import SLICE_NANOSECONDS, Scheduling
from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineFailed, EngineReady, EngineStatus, LoadModel, LoadProgress
from nbgen.frames import encode_frame, frame_length, from_engine_decoder
from nbgen.messages import AbortRequest, GenerateRequest, StepOutputs
from nbgen.sampling_params import SamplingParams
from nbgen.server.silence import SILENT_SECONDS
from tests.conftest import PATIENCE, edit, save_model
from tests.engine import multimodal
from tests.soak import soaking


class Peer:
    """The server's end, for one engine process."""

    def __init__(self, model: str, *arguments: str) -> None:
        self.socket, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nbgen.engine", str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.stream = self.socket.makefile("rb")
        self.send(LoadModel(config=EngineConfig(model=model, dtype="float32")))

    def send(self, *messages) -> None:
        self.socket.sendall(b"".join(map(encode_frame, messages)))

    def receive(self):
        return from_engine_decoder.decode(self.stream.read(frame_length(self.stream.read(4))))

    def receive_until(self, kind: type) -> list:
        messages = [self.receive()]
        while not isinstance(messages[-1], kind):
            messages.append(self.receive())
        return messages

    def outputs(self, rid: str) -> Iterator:
        """Outputs of one request, to its last."""
        while True:
            message = self.receive()
            for output in message.outputs if isinstance(message, StepOutputs) else ():
                assert output.rid == rid
                yield output
                if output.finish_reason:
                    return

    def close(self) -> None:
        self.stream.close()
        self.socket.close()
        self.process.wait(timeout=PATIENCE)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """With room for an answer of many seconds."""
    peer = Peer(str(save_model(tmp_path_factory.mktemp("models") / "long", max_position_embeddings=16_384)))
    *progress, ready = peer.receive_until(EngineReady)
    assert all(isinstance(p, LoadProgress) for p in progress)
    assert "loading weights" in [p.stage for p in progress]
    assert ready.model.tier == "A"
    yield peer
    peer.close()
    assert peer.process.returncode == 0


GET_SCHEDULING = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
SINCE = (6, 12)


@pytest.mark.skipif(GET_SCHEDULING is None or sys.platform != "linux", reason="another system")
def test_who_wakes_up_beside_it_runs_at_once(peer: Peer) -> None:
    """By the slice that Linux gives to each of its threads, the ones that compute among them."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < SINCE:
        pytest.skip("an older kernel knows one slice alone")
    found = Scheduling()
    for thread in os.listdir(f"/proc/{peer.process.pid}/task"):
        ctypes.CDLL(None).syscall(GET_SCHEDULING, int(thread), ctypes.byref(found), ctypes.sizeof(found), 0)
        assert (found.runtime, found.nice) == (SLICE_NANOSECONDS, os.getpriority(os.PRIO_PROCESS, 0))


LONG = SamplingParams(max_new_tokens=15_000, ignore_eos=True)
#: With a seed with which no guess comes true.
SHORT = SamplingParams(max_new_tokens=9, ignore_eos=True, sampling_seed=1)


def test_tokens_come_one_step_at_a_time(peer: Peer) -> None:
    peer.send(GenerateRequest(rid="a", text="Hello", params=SHORT))
    outputs = list(peer.outputs("a"))
    assert [len(o.token_ids) for o in outputs] == [1] * 9
    assert outputs[-1].finish_reason.length == 9


def test_abort_is_answered(peer: Peer) -> None:
    peer.send(GenerateRequest(rid="b", text="Hello", params=LONG))
    outputs = peer.outputs("b")
    next(outputs)
    peer.send(AbortRequest(rid="unknown"))
    peer.send(AbortRequest(rid="b"))
    last = list(outputs)[-1]
    assert last.finish_reason.type == "abort"
    assert last.completion_tokens < LONG.max_new_tokens


def test_a_bad_request_is_answered_and_the_engine_goes_on(peer: Peer) -> None:
    peer.send(GenerateRequest(rid="c", input_ids=[10**9]))
    (refusal,) = peer.outputs("c")
    assert (refusal.finish_reason.type, refusal.finish_reason.status) == ("error", 400)
    assert "out-of-vocabulary" in refusal.finish_reason.message
    test_tokens_come_one_step_at_a_time(peer)


def test_an_idle_engine_gives_a_sign_of_life(peer: Peer) -> None:
    peer.receive_until(EngineStatus)
    started = time.monotonic()
    (status,) = peer.receive_until(EngineStatus)
    assert time.monotonic() - started < SILENT_SECONDS
    assert (status.running, status.waiting, status.blocks_free) == (0, 0, status.blocks_total)
    assert status.memory_used > 0


def test_ctrl_c_is_not_the_engines_business(peer: Peer) -> None:
    peer.process.send_signal(signal.SIGINT)
    test_tokens_come_one_step_at_a_time(peer)


def test_what_is_no_model_is_said_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, words in (("nowhere", "no folder"), ("empty", "no config.json")):
        peer = Peer(str(tmp_path / name))
        failed = peer.receive()
        assert isinstance(failed, EngineFailed)
        assert words in failed.message
        peer.close()
        assert peer.process.returncode == 0


def test_a_process_that_stood_by_begins_anew_for_a_model_that_needs_more(tiny_model: Path, tmp_path: Path) -> None:
    usual = Peer(str(tiny_model), "gently")
    assert usual.receive_until(EngineReady)[-1].model.tier == "A"
    assert psutil.Process(usual.process.pid).cmdline()[-1] == "gently"
    usual.close()
    rounded = shutil.copytree(tiny_model, tmp_path / "rounded")
    edit(rounded / "config.json", quantization_config={"quant_method": "mine"})
    other = Peer(str(rounded), "gently")
    assert "quantized as 'mine'" in other.receive_until(EngineFailed)[-1].message
    other.close()
    assert other.process.returncode == 0


@pytest.fixture
def torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is there once it was imported: in its place are the names that transformers imports."""
    package = tmp_path / "packages" / "torchvision"
    (package / "transforms" / "v2").mkdir(parents=True)
    imported = tmp_path / "imported"
    modes = "NEAREST NEAREST_EXACT BOX BILINEAR HAMMING BICUBIC LANCZOS"
    sources = {
        "__init__.py": f"open({str(imported)!r}, 'w').close()\n__version__ = '0.29.1'\n",
        "transforms/__init__.py": f"import enum\nInterpolationMode = enum.Enum('InterpolationMode', {modes!r})\n",
        "transforms/functional.py": "pil_to_tensor = None\n",
        "transforms/v2/__init__.py": "",
        "transforms/v2/functional.py": "",
        "io.py": "decode_image = ImageReadMode = None\n",
    }
    for name, source in sources.items():
        (package / name).write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    return imported


def test_torchvision_is_not_imported_for_a_model_that_needs_none(tmp_path: Path, torchvision: Path) -> None:
    usual = Peer(str(multimodal.save(tmp_path / "sees", "qwen2_vl")), "gently")
    usual.receive_until(EngineReady)
    assert not torchvision.exists()
    usual.close()


@pytest.mark.parametrize("how", [soaking([]), ["gently"]])
def test_torchvision_is_imported_for_a_model_that_needs_it(how: list[str], tmp_path: Path, torchvision: Path) -> None:
    sees = multimodal.save(tmp_path / "sees", "qwen2_vl")
    edit(sees / "processor_config.json", video_processor={"video_processor_type": "LlavaOnevisionVideoProcessor"})
    other = Peer(str(sees), *how)
    assert "video" in other.receive_until(EngineReady)[-1].model.media
    assert psutil.Process(other.process.pid).cmdline()[-1] == "torchvision"
    assert torchvision.exists()
    other.close()
    (tmp_path / "packages" / "torchvision" / "__init__.py").write_text("raise RuntimeError('made for another torch')")
    without = Peer(str(sees))
    without.receive_until(EngineReady)
    without.send(GenerateRequest(rid="a", text="Hello", params=SHORT))
    assert list(without.outputs("a"))[-1].finish_reason.length == 9
    without.close()


PARENT = """
    import os, socket, subprocess, sys, time
    ours, theirs = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-m", "nbgen.engine", str(theirs.fileno())],
                             pass_fds=[theirs.fileno()], start_new_session=True)
    keep = os.dup(theirs.fileno())
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal on a parent's death is Linux's")
def test_kill_9_of_the_parent_ends_the_engine() -> None:
    """Also in the middle of its imports, when it reads nothing from its socket."""
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    child = psutil.Process(int(parent.stdout.readline()))
    while child.num_threads() < 2:
        time.sleep(0.01)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert child.wait(timeout=PATIENCE) is None or not child.is_running()
