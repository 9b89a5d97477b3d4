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


def _refuse() -> None:
    raise RuntimeError("no kernel image is available for execution on the device")
