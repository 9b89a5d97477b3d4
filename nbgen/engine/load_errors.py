"""Turns what libraries raise at a model's files into errors for its owner: which part of which model failed to load.

Knows neither how a part is loaded nor what it is for.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from nbgen.engine import config_fault, memory
from nbgen.errors import ModelError
from nbgen.model_files import read_json

#: What libraries raise at a file that they cannot take.
FOREIGN = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)

log = logging.getLogger(__name__)


@contextmanager
def foreign_errors(name: str, part: str, configured: Path | None = None) -> Iterator[None]:
    """Raise ModelError with the part and the model that failed; the library's error goes to the log.

    For code that reads config.json of the folder `configured`, the message names the fault in it, if the error tells.
    """
    try:
        yield
    except SafetensorError as error:
        log.exception("loading the %s of %s", part, name)
        raise ModelError(f"a safetensors file of {name} is damaged: download it again") from error
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{name} does not fit into the free memory of the GPU: free some, or use a smaller model"
        ) from error
    except FOREIGN as error:
        if memory.ran_out(error):
            raise ModelError(f"{name} does not fit into the free memory: free some, or use a smaller model") from error
        log.exception("loading the %s of %s", part, name)
        if configured and (fault := config_fault.told(error, read_json(configured / "config.json", name))):
            raise ModelError(f"the {part} of {name} cannot be read: in config.json {fault}") from error
        raise ModelError(f"the {part} of {name} cannot be read by transformers; the server's log says why") from error
