"""Weights are in memory once: what a packed copy replaces goes back to its file."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nbgen.engine import checkpoint, device, linear, memory, native_linear
from nbgen.errors import ModelError
from tests.conftest import save_model
from tests.engine.conftest import build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def resident(path: Path) -> int:
    """Bytes of the file that this process holds in memory."""
    mapped, held = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            mapped = rest[-1] == str(path)
        elif name == "Rss:" and mapped:
            held += 1024 * int(rest[0])
    return held


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A tensor in a file, and the same mapped from it and read."""
    path = tmp_path / "one.safetensors"
    save_file({"weight": torch.arange(2**20, dtype=torch.float32)}, path)
    tensor = load_file(path)["weight"]
    assert tensor.sum() > 0
    return path, tensor


def test_dropped_pages_are_read_again(mapped: tuple[Path, torch.Tensor]) -> None:
    path, tensor = mapped
    before = resident(path)
    memory.drop_pages(tensor)
    assert resident(path) < before // 4, before
    assert torch.equal(tensor, torch.arange(2**20, dtype=torch.float32))


def test_weights_are_known_where_their_file_has_another_name(tmp_path: Path) -> None:
    """As a hub's cache keeps them: under the hash of what is in them, with links to it."""
    blob, link = tmp_path / "5f7a", tmp_path / "one.safetensors"
    save_file({"weight": torch.arange(2**20, dtype=torch.float32)}, blob)
    link.symlink_to(blob)
    tensor = load_file(link)["weight"]
    assert tensor.sum() > 0
    before = resident(blob)
    memory.drop_pages(tensor)
    assert resident(blob) < before // 4, before


def test_what_is_mapped_from_another_file_stays(tmp_path: Path) -> None:
    """What was written to it is nowhere else."""
    path = tmp_path / "one.safetensors"
    path.write_bytes(bytes(2**22))
    tensor = torch.from_file(str(path), shared=False, size=2**20)
    tensor += 1
    memory.drop_pages(tensor)
    assert tensor.sum() == 2**20


def test_what_is_in_no_file_stays() -> None:
    tensor = torch.arange(2**20, dtype=torch.float32)
    memory.drop_pages(tensor)
    assert torch.equal(tensor, torch.arange(2**20, dtype=torch.float32))


def test_a_kv_cache_that_the_system_refuses_is_told_in_words(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="of KV cache do not fit into the free memory: free some"):
        build(tiny_model, max_running=2**50, kv_cache_bytes=2**55)


def bfloat16_folder(folder: Path) -> Path:
    save_model(folder, "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=4)
    AutoModelForCausalLM.from_pretrained(folder).bfloat16().save_pretrained(folder)
    return folder


def test_weights_that_are_read_as_they_lie_are_not_copied(tmp_path: Path) -> None:
    folder = bfloat16_folder(tmp_path)
    model = build(folder, dtype="bfloat16").engine._runner.model
    ours = [m for m in model.modules() if isinstance(m, native_linear.NativeLinear)]
    if native_linear.readable(torch.nn.Linear(64, 64, dtype=torch.bfloat16)):
        assert ours, "nothing was read as it lies: nothing was tested"
    is_mapped = memory._mapped_from_weights()
    assert all(is_mapped(m.weight.data_ptr(), m.weight.data_ptr() + 1) for m in ours)


@pytest.mark.skipif(not device.computes_bfloat16(torch.device("cpu")), reason="nothing is packed on this CPU")
def test_packed_weights_are_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_linear, "readable", lambda linear: False)
    folder = bfloat16_folder(tmp_path)
    assembly = build(folder, dtype="bfloat16")
    packed = [m for m in assembly.engine._runner.model.modules() if isinstance(m, linear.PrepackedLinear)]
    assert packed, "nothing was packed: nothing was tested"
    assert 0 < resident(folder / "model.safetensors") < checkpoint.weight_bytes(folder) // 4


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.6), ("int4", 0.4)])
def test_rounded_weights_are_held_alone(kind: str, share: float, tmp_path: Path) -> None:
    """bfloat16 as in the file, which is mapped: its pages are let go."""
    folder = bfloat16_folder(tmp_path)
    assembly = build(folder, dtype="bfloat16", quantization=kind)
    assert resident(folder / "model.safetensors") < checkpoint.weight_bytes(folder) // 20
    assert assembly.model.weight_bytes < share * checkpoint.weight_bytes(folder)


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("the request is about being out of memory"), False),
    ],
    ids=str,
)
def test_want_of_memory_is_known_by_its_words(error: Exception, short: bool) -> None:
    assert memory.ran_out(error) is short
