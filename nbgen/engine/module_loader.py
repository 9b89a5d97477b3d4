"""Loads a version's folder of the model repository as a torch module: `model.pt2`, or `model.py` with its weights.

`model.py` defines a class `Model`, a torch module built without arguments; weights are read from `model.safetensors`
and from nothing else. The folder belongs to the server's owner, who named it: its code is run.
"""

import importlib
import importlib.util
import sys
import threading
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.export.passes import move_to_device_pass

from nbgen.errors import ModelError

EXPORTED, SOURCE, WEIGHTS = "model.pt2", "model.py", "model.safetensors"
PICKLES = ("model.pt", "model.pth", "model.bin", "model.ckpt")

#: torch reads one exported program at a time in a process.
_reading = threading.Lock()
if torch.__version__ < "2.12":  # reading in a second thread ends the process, unless the main one has done this first
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        pass


def import_reader() -> None:
    """Import what reads an exported program, torch's compiler among it: the first program would wait for seconds."""
    with suppress(ImportError):  # in another version of torch
        importlib.import_module("torch._export.serde.serialize")


def load(folder: str, name: str, device: torch.device) -> torch.nn.Module:
    """The module in `folder`, on `device`. Raises ModelError; whatever else it raises is its own code's fault."""
    place = Path(folder)
    if (place / EXPORTED).is_file():
        with _reading:
            return _moved(torch.export.load(place / EXPORTED), device).module()
    if (place / SOURCE).is_file():
        return _from_source(place, name).to(device)
    found = next((file for file in PICKLES if (place / file).is_file()), None)
    if found is not None:
        raise ModelError(f"{name} is a pickle ({found}), which is not read: export it to {EXPORTED}, or save {WEIGHTS}")
    raise ModelError(f"{name} has neither {EXPORTED} nor {SOURCE} in its version's folder")


def _moved(program: torch.export.ExportedProgram, device: torch.device) -> torch.export.ExportedProgram:
    """The program on a device. Its graph names the CPU, on which it was saved, wherever it makes a tensor."""
    return program if device.type == "cpu" else move_to_device_pass(program, device)


def _from_source(place: Path, name: str) -> torch.nn.Module:
    spec = importlib.util.spec_from_file_location(f"nbgen_model_{name}", place / SOURCE)
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source
    spec.loader.exec_module(source)
    build = getattr(source, "Model", None)
    if build is None:
        raise ModelError(f"{SOURCE} of {name} defines no class Model")
    module = build()
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"Model in {SOURCE} of {name} is no torch.nn.Module")
    _load_weights(module, place / WEIGHTS, name)
    return module.eval()


def _load_weights(module: torch.nn.Module, path: Path, name: str) -> None:
    expected = module.state_dict()
    if not path.is_file():
        if expected:
            raise ModelError(f"{name} has parameters, and no {WEIGHTS} to read them from")
        return
    found = load_file(path)
    wrong = sorted(expected.keys() ^ found.keys())
    if wrong:
        raise ModelError(f"{WEIGHTS} of {name} and its Model disagree about {', '.join(wrong[:5])}")
    shapes = [key for key, value in expected.items() if value.shape != found[key].shape]
    if shapes:
        raise ModelError(f"{WEIGHTS} of {name} has other shapes than its Model for {', '.join(shapes[:5])}")
    module.load_state_dict(found)
