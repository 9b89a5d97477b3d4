"""A torch module is held to the outputs that it declares."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nbgen import module_export
from nbgen.engine import module_loader
from nbgen.engine.tensor_module import TensorModule
from nbgen.errors import InternalError
from nbgen.messages import Tensor
from nbgen.tensor_messages import InferRequest
from nbgen.tensor_spec import ModelSpec, TensorSpec


class Twice(torch.nn.Module):
    """One output, as a tensor or under a name."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> Any:
        return {self.name: 2 * x} if self.name else 2 * x


def computed(module: torch.nn.Module, *outputs: tuple[str, tuple[int, ...]], batch: int = 0) -> list[Tensor]:
    given = (TensorSpec(name="x", datatype="FP32", dims=(2,)),)
    declared = tuple(TensorSpec(name=name, datatype="FP32", dims=dims) for name, dims in outputs)
    spec = ModelSpec(name="m", inputs=given, outputs=declared, max_batch_size=batch)
    shape = (1, 2) if batch else (2,)
    tensor = Tensor(name="x", datatype="FP32", shape=shape, data=np.array([1, 2], "float32").tobytes())
    request = InferRequest(rid="r", model="m", inputs=[tensor], outputs=[name for name, _ in outputs])
    return TensorModule(module, spec, torch.device("cpu")).compute([request]).outputs[0]


@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("size", [2, -1])
def test_what_is_declared_is_given(batch: int, size: int) -> None:
    (tensor,) = computed(Twice("y"), ("y", (size,)), batch=batch)
    assert np.frombuffer(tensor.data, "float32").tolist() == [2, 4]


def test_an_output_that_has_no_place_in_what_comes_is_an_error() -> None:
    with pytest.raises(InternalError, match="declares z and does not give it"):
        computed(Twice(), ("y", (2,)), ("z", (2,)))


@pytest.mark.parametrize("batch", [0, 4])
def test_an_output_that_is_not_among_named_ones_is_left_out(batch: int) -> None:
    (tensor,) = computed(Twice("y"), ("y", (2,)), ("z", (2,)), batch=batch)
    assert tensor.name == "y"


class Scaled(torch.nn.Module):
    """Two inputs that need not be given, under other names than those that are declared."""

    def forward(self, a: torch.Tensor, b: torch.Tensor | None, c: float | torch.Tensor = 10.0) -> torch.Tensor:
        return (a if b is None else a * b) + c


@pytest.mark.parametrize(
    ("given", "found"), [("X", 13), ("X SCALE", 16), ("X BIAS", 5), ("X SCALE BIAS", 8), ("BIAS SCALE X", 8)]
)
def test_inputs_keep_their_places_where_some_are_not_given(given: str, found: int) -> None:
    values = {"X": 3, "SCALE": 2, "BIAS": 2}
    names = tuple(TensorSpec(name=name, datatype="FP32", dims=(1,), optional=name != "X") for name in values)
    spec = ModelSpec(name="m", inputs=names, outputs=(TensorSpec(name="y", datatype="FP32", dims=(1,)),))
    tensors = [
        Tensor(name=name, datatype="FP32", shape=(1,), data=np.array([values[name]], "float32").tobytes())
        for name in given.split()
    ]
    request = InferRequest(rid="r", model="m", inputs=tensors, outputs=["y"])
    ((tensor,),) = TensorModule(Scaled(), spec, torch.device("cpu")).compute([request]).outputs
    assert np.frombuffer(tensor.data, "float32") == [found]


@pytest.mark.parametrize("dims", [(3,), (1, 2), ()])
@pytest.mark.parametrize("batch", [0, 4])
def test_an_output_of_another_shape_is_an_error(dims: tuple[int, ...], batch: int) -> None:
    with pytest.raises(InternalError, match=r"gave y of shape .* is declared"):
        computed(Twice(), ("y", dims), batch=batch)


class Placed(torch.nn.Module):
    """Makes a tensor on its way, as positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Embedding(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.places(torch.arange(x.shape[1], device=x.device))


def test_a_graph_makes_its_tensors_on_the_device_that_it_is_loaded_to(tmp_path: Path) -> None:
    module_export.export(tmp_path, Placed(), {"x": ("FP32", (5, 4))}, 8)
    meta = torch.device("meta")
    module = module_loader.load(str(tmp_path), "m", meta)
    assert module(torch.empty(2, 5, 4, device=meta)).device == meta
    assert module_loader.load(str(tmp_path), "m", torch.device("cpu"))(torch.zeros(3, 5, 4)).shape == (3, 5, 4)
