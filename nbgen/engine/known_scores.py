"""Logits of a few tokens as transformers itself computes them, kept for the next start of the same model.

They are in the user's cache folder under a hash of all that they depend on: the model's files, versions and code that
compute, and how the weights are read. Knows nothing of what they are compared with.
"""

from __future__ import annotations

import hashlib
import inspect
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from nbgen import model_files
from nbgen.engine import checkpoint
from nbgen.engine.cache_folder import cache_folder, keep
from nbgen.engine_config import EngineConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: For each prompt, logits `[vocab]` by the position that they follow.
Scores = list[dict[int, torch.Tensor]]

#: How many models' scores are kept, some megabytes at most each; the oldest are removed.
MOST = 16

#: A file's name, size and time.
Told = tuple[str, int, int]


@dataclass(frozen=True)
class KnownScores:
    """The scores of one model, as one configuration reads it."""

    file: str

    @classmethod
    def of(cls, config: EngineConfig, model: PreTrainedModel) -> KnownScores | None:
        """None for a model that is not in files of this machine."""
        folder = checkpoint.present(config.model)
        if folder is None:
            return None
        parts = (
            str(folder.resolve()),
            sorted(model_files.stamp(str(folder))),
            [_told(Path(inspect.getfile(type(model)))), *_own_code()],
            (torch.__version__, transformers.__version__, torch.backends.cpu.get_cpu_capability()),
            (str(model.device), str(model.dtype), config.quantization),
        )
        return cls(f"scores-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.safetensors")

    def recall(self) -> Scores | None:
        """The scores that were kept; None if there are none, or they cannot be read."""
        with suppress(OSError, SafetensorError, ValueError, LookupError), cache_folder() as folder:
            scores: Scores = [{}, {}]
            for name, row in load_file(folder / self.file).items():
                prompt, position = map(int, name.split("."))
                scores[prompt][position] = row.float()
            return scores
        return None

    def keep(self, scores: Scores, dtype: torch.dtype) -> None:
        """Keep the scores in the dtype that they were computed in. A full disk does not stop an engine's start."""
        rows = {f"{prompt}.{at}": row.to(dtype) for prompt, of in enumerate(scores) for at, row in of.items()}
        with suppress(OSError, SafetensorError), cache_folder() as folder:
            keep(folder / self.file, lambda made: save_file(rows, made))
            for file in sorted(folder.glob("scores-*"), key=lambda file: file.stat().st_mtime_ns)[:-MOST]:
                file.unlink(missing_ok=True)


def _told(path: Path) -> Told:
    stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns


@cache
def _own_code() -> list[Told]:
    """The files of code of our own, as they were at this process's first load: it has imported them."""
    engine = Path(__file__).parent
    return sorted(map(_told, [*engine.glob("*.py"), *engine.glob("cpp/*")]))
