"""A torch module of the notebook's, served beside the model and asked by the real tritonclient."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import tritonclient.http as triton

import nbgen
from nbgen.errors import InvalidRequest, NbgenError, Unavailable
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.register import RegisteredModel
from tests.conftest import wait_for

FOUR = ("FP32", [4])


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def asked(model: RegisteredModel) -> list[float]:
    client = triton.InferenceServerClient(model.url)
    given = triton.InferInput("x", [4], "FP32")
    given.set_data_from_numpy(np.ones(4, np.float32))
    answer = client.infer(model.name, [given], headers=model.headers).as_numpy("y").tolist()
    client.close()
    return answer


def test_a_module_is_served_and_another_takes_its_place_if_it_can(connected: PrivateServer) -> None:
    model = nbgen.register("scaled", Scaled(2), inputs={"x": FOUR}, outputs={"y": FOUR})
    assert asked(model) == [2] * 4
    assert all(isinstance(value, str) for value in connected.client.headers.values()), "tritonclient adds numbers"
    with pytest.raises(NbgenError):
        nbgen.register("scaled", Scaled(3), inputs={"x": FOUR}, outputs={"y": ("ODD", [4])})
    assert asked(model) == [2] * 4
    assert asked(nbgen.register("scaled", Scaled(5), inputs={"x": FOUR}, outputs={"y": FOUR})) == [5] * 4
    repository = Path(connected.client.hello()["model_repository"])
    assert [path.name for path in repository.iterdir() if path.is_dir()] == ["scaled"]


def test_the_process_that_will_have_a_module_starts_beside_its_export(connected: PrivateServer) -> None:
    def processes() -> list[psutil.Process]:
        engine = connected.client.model()["engine_pid"]
        return [each for each in psutil.Process(connected._process.pid).children() if each.pid != engine]

    class Watched(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            there.append(len(processes()))
            return super().forward(x)

    there: list[int] = []
    for process in processes():
        process.kill()
    wait_for(lambda: not processes(), "the process for modules is gone")
    model = nbgen.register("watched", Watched(4), inputs={"x": FOUR}, outputs={"y": FOUR})
    assert there[0] == 1
    assert asked(model) == [4] * 4


def test_a_module_that_cannot_be_exported_leaves_nothing(connected: PrivateServer) -> None:
    with pytest.raises(Exception, match="x"):
        nbgen.register("odd", Scaled(1), inputs={"x": ("ODD", [4])}, outputs={"y": FOUR})
    with pytest.raises(NbgenError, match="odd"):
        connected.client.load_module("odd")


def test_a_module_goes_on_as_it_was(connected: PrivateServer) -> None:
    module = torch.nn.Sequential(Scaled(2), torch.nn.Dropout(1.0), Scaled(3))
    module[0].eval()
    model = nbgen.register("trained", module, inputs={"x": FOUR}, outputs={"y": FOUR})
    assert [part.training for part in module.modules()] == [True, False, True, True]
    assert asked(model) == [6] * 4


@pytest.mark.parametrize("dims", [np.array([4]), torch.Size([4]), (np.int64(4),)])
def test_sizes_are_whatever_counts(connected: PrivateServer, dims: Any) -> None:
    declared = ("FP32", dims)
    assert asked(nbgen.register("counted", Scaled(2), inputs={"x": declared}, outputs={"y": declared})) == [2] * 4


@pytest.mark.parametrize("wrong", [[FOUR], {"x": [4]}, {"x": ("FP32", 4)}, {"x": ("FP32", [0.5])}])
def test_what_declares_nothing_is_refused_in_words(connected: PrivateServer, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^outputs map names to \(datatype, dims\)"):
        nbgen.register("none", Scaled(1), inputs={"x": FOUR}, outputs=wrong)


def test_lists_are_of_the_type_that_a_model_declares(connected: PrivateServer) -> None:
    nbgen.register("third", Scaled(3), inputs={"x": FOUR}, outputs={"y": FOUR})
    for given in ([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], (1, 2, 3, 4), np.arange(1, 5).astype("float32")):
        assert nbgen.infer("third", {"x": given})["y"].tolist() == [3, 6, 9, 12]
    with pytest.raises(NbgenError) as refused:
        nbgen.infer("third", {"x": np.ones(4)})
    assert str(refused.value) == (
        "inference input 'x' data-type is 'FP64', but model 'third' expects 'FP32': x.astype(\"float32\")"
    )
    with pytest.raises(InvalidRequest, match=r"x: .*inhomogeneous"):
        nbgen.infer("third", {"x": [[1], [2, 3]]})
    with pytest.raises(InvalidRequest, match=r"^unexpected shape for input 'x'"):
        nbgen.infer("third", {"x": [1]})


def test_an_output_may_be_asked_for_by_its_name_alone(connected: PrivateServer) -> None:
    nbgen.register("third", Scaled(3), inputs={"x": FOUR}, outputs={"scaled": FOUR})
    for outputs in ("scaled", ["scaled"]):
        assert list(nbgen.infer("third", {"x": [1, 2, 3, 4]}, outputs=outputs)) == ["scaled"]


def test_what_is_no_module_is_refused_in_words(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match=r"a torch\.nn\.Module, got function"):
        nbgen.register("none", lambda x: x, inputs={"x": FOUR}, outputs={"y": FOUR})


def test_a_module_that_cannot_be_loaded_is_not_known_afterwards(connected: PrivateServer) -> None:
    with pytest.raises(NbgenError):
        nbgen.register("half", Scaled(1), inputs={"x": FOUR}, outputs={"y": ("ODD", [4])})
    with pytest.raises(NbgenError, match="unknown model: 'half'"):
        nbgen.infer("half", {"x": np.ones(4, np.float32)})


@contextmanager
def full_disk() -> Iterator[None]:
    """For this process: no file takes more than 128 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_module_for_which_there_is_no_room_leaves_the_kernel_and_the_one_before(connected: PrivateServer) -> None:
    model = nbgen.register("small", Scaled(2), inputs={"x": FOUR}, outputs={"y": FOUR})
    with full_disk(), pytest.raises(Unavailable, match=r"cannot be written into .*: File too large"):
        nbgen.register("small", torch.nn.Linear(4, 2**16), inputs={"x": FOUR}, outputs={"y": ("FP32", [2**16])})
    assert asked(model) == [2] * 4
