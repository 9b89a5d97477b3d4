"""Which device a configuration's name stands for, on a machine with other GPUs than it names."""

import pytest
import torch

from nbgen.engine import device
from nbgen.errors import ModelError


@pytest.mark.parametrize("name", ["", "gpu", "mps", "meta", "cuda:x"])
def test_what_is_no_device_here_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="it must be 'auto', 'cpu', 'cuda' or 'cuda:N'"):
        device.named(name)


@pytest.mark.parametrize(("name", "count", "words"), [("cuda", 0, "no NVIDIA GPU"), ("cuda:2", 2, "2 NVIDIA GPUs")])
def test_a_gpu_that_is_not_there_is_refused(name: str, count: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ModelError, match=words):
        device.named(name)


def test_a_gpu_for_which_torch_has_no_kernels_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is here where a GPU is said to be, and none is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", _refuse)
    assert device.named("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("processor", "name", "fp16", "takes", "bf16", "tiles", "computes"),
    [
        ("x86_64", "AMD EPYC", False, True, True, False, True),  # Zen 5
        ("x86_64", "AMD EPYC", True, True, True, False, True),
        ("x86_64", "Intel Xeon", False, True, True, False, True),  # Cooper Lake
        ("x86_64", "Intel Xeon", True, True, True, True, True),  # Sapphire Rapids
        ("x86_64", "Intel Xeon", True, True, True, False, False),  # the same in a virtual machine without its tiles
        ("x86_64", "Intel Xeon", False, True, False, True, True),
        ("x86_64", "Intel Xeon", False, True, False, False, False),  # AVX-512 alone, with which oneDNN emulates it
        ("x86_64", "Intel Core", False, False, False, False, False),
        ("aarch64", "", True, True, False, False, True),
        ("aarch64", "", False, False, False, False, False),
    ],
)
def test_bfloat16_is_computed_where_the_processor_has_fast_instructions_for_it(
    processor: str,
    name: str,
    fp16: bool,
    takes: bool,
    bf16: bool,
    tiles: bool,
    computes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name, "avx512_fp16": fp16}, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: takes)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    assert device.computes_bfloat16(torch.device("cpu")) == computes


def _refuse() -> None:
    raise RuntimeError("no kernel image is available for execution on the device")


def test_bfloat16_is_asked_of_the_very_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = {0: (8, 0), 1: (7, 5)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda asked: capabilities[asked.index])
    assert [device.computes_bfloat16(torch.device("cuda", index)) for index in (0, 1)] == [True, False]
