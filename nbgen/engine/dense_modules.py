"""The layers that some embedding models have after pooling: sentence-transformers' Dense modules, in float32.

Each is a folder with a config.json and a model.safetensors. Knows nothing of the model before them.
"""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from nbgen.errors import ModelError
from nbgen.model_files import WHOLE, read_json

#: Activations by their names in sentence-transformers' files.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    f"{kind.__module__}.{kind.__name__}": kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}
#: The only values of these options that are served; with others a module works on each token, or makes scores.
PLACES = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding", "use_residual": False}


def read(folder: Path, places: Iterable[str], name: str) -> nn.Sequential:
    """A model's Dense modules, from these subfolders. Raises ModelError."""
    return nn.Sequential(*(_module(folder / place, f"{place} of {name}") for place in places))


def width(modules: nn.Sequential, inputs: int, name: str) -> int:
    """The width of the vectors that they make from `inputs` numbers. Raises ModelError if the widths do not fit."""
    try:
        return int(modules(torch.zeros(1, inputs)).shape[-1])
    except RuntimeError:
        words = f"do not fit one another, or its vectors of {inputs} numbers"
        raise ModelError(f"the Dense modules of {name} {words}: they belong to another model") from None


def _module(folder: Path, name: str) -> nn.Module:
    config = read_json(folder / "config.json", name)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation not in ACTIVATIONS:
        raise ModelError(f"{name} has the activation {activation!r:.120}; served are {', '.join(ACTIVATIONS)}")
    if odd := next((key for key, served in PLACES.items() if (config.get(key) or served) != served), None):
        raise ModelError(f"{name} has {odd}={config[odd]!r:.80}, and {PLACES[odd]!r} is served")
    if not (folder / WHOLE).is_file():
        words = "save the model again with sentence-transformers where you trust it"
        raise ModelError(f"{name} has no {WHOLE}, and nbgen reads safetensors only: {words}")
    try:
        with torch.device("meta"):  # takes no memory, whatever sizes the config states
            linear = nn.Linear(config["in_features"], config["out_features"], bias=bool(config.get("bias", True)))
        module = nn.Sequential(OrderedDict(linear=linear, activation=ACTIVATIONS[activation]()))
        module.load_state_dict(load_file(folder / WHOLE), assign=True)
    except (SafetensorError, OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"{name} is damaged: its {WHOLE} does not hold the layer that its config.json tells of"
        ) from error
    return module.float()
