"""Torch modules of a notebook's on a GPU: exported from there, and served there."""

from pathlib import Path

import torch

from nbgen import module_export
from nbgen.engine import module_loader
from nbgen.engine.tensor_module import TensorModule
from nbgen.tensor_spec import ModelSpec
from tests.engine.test_tensor_module import Placed


def test_a_module_on_a_gpu_is_served_there_and_elsewhere(tmp_path: Path) -> None:
    module, given = Placed().to("cuda"), torch.zeros(3, 5, 4)
    module_export.export(tmp_path, module, {"x": ("FP32", (5, 4))}, 8)
    for name in ("cuda", "cpu"):
        found = module_loader.load(str(tmp_path), "m", torch.device(name))(given.to(name))
        torch.testing.assert_close(found.cpu(), module(given.to("cuda")).detach().cpu())


def test_a_module_that_is_let_go_gives_its_memory_back() -> None:
    before = torch.cuda.memory_reserved()
    module = TensorModule(
        torch.nn.Linear(4096, 4096).to("cuda"), ModelSpec(name="m", inputs=(), outputs=()), torch.device("cuda")
    )
    assert torch.cuda.memory_reserved() >= before + 2**26
    module.release()
    assert torch.cuda.memory_reserved() < before + 2**26
    assert module.usable()
