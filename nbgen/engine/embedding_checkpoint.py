"""Reads from a folder whether it has an embedding model, how its states become one vector, how long a text may be.

Classifiers count as embedding models: their vector holds a score for each class, a reranker's the one score of a pair.

Follows the files of sentence-transformers (`modules.json`, `1_Pooling/config.json`); without them, a checkpoint whose
architecture is a bare model (BertModel, Qwen3Model) counts, too. Knows nothing of torch.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, MODEL_MAPPING_NAMES

from nbgen.errors import ModelError
from nbgen.model_files import read_json

POOLING = "1_Pooling/config.json"
#: The modules that are served, in the order in which they must stand.
SERVED = ("Transformer", "Pooling", "Dense", "Normalize")
#: Names that a module's folder may have, which must be a subfolder of the model's.
PLACE = re.compile(r"\w[\w.-]*")
#: The last module of a reranker that answers by writing a token.
WRITES = "LogitScore"
LOGIT_SCORE = f"1_{WRITES}/config.json"
#: The pooling modes that are served: sentence-transformers' names and ours.
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


class Pooling(NamedTuple):
    """How the last layer's states become a vector: "cls", "mean", "max" or "last", scaled to length 1 if `normalizes`.

    Before the scaling come the layers in the folders `dense`.
    A classifier makes its vector itself: of "scores", or of "chances" if a sigmoid maps these to 0 to 1.
    If no file says how, `mode` is None: it depends on whether the model attends to later tokens.
    """

    mode: str | None
    normalizes: bool = True
    dense: tuple[str, ...] = ()


class Reading(NamedTuple):
    """The most tokens of a text, and whether it is lowercased first."""

    longest: int | None
    lowers: bool


class Module(NamedTuple):
    """A module of sentence-transformers: its kind, and its subfolder of the model's folder."""

    kind: str
    place: str


def is_embedding(folder: Path) -> bool:
    """Whether the checkpoint makes vectors and not text."""
    if (folder / POOLING).is_file() or classifies(folder):
        return True
    if (folder / "modules.json").is_file():
        return all(module.kind != WRITES for module in _modules(folder, folder.name))
    config = read_json(folder / "config.json", folder.name)
    architecture = _architecture(config)
    bare = architecture.endswith("Model") and not architecture.endswith("HeadModel")
    return bare and config.get("model_type") in MODEL_MAPPING_NAMES


def classifies(folder: Path) -> bool:
    """Whether the checkpoint scores a text, or a query with a document."""
    config = read_json(folder / "config.json", folder.name)
    known = _architecture(config) == MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(str(config.get("model_type")))
    return known and not (folder / POOLING).is_file()


def pooling(folder: Path, name: str) -> Pooling:
    """The folder's pooling. Raises ModelError if it is not served."""
    if classifies(folder):
        return Pooling("chances" if _bends(read_json(folder / "config.json", name)) else "scores", normalizes=False)
    modules = _modules(folder, name)
    kinds = [module.kind for module in modules]
    other = next((kind for kind in kinds if kind not in SERVED), None)
    if other is not None:
        raise ModelError(f"{name} has a {other} module behind its model; {', '.join(SERVED[1:])} are served")
    if kinds != sorted(kinds, key=SERVED.index):
        raise ModelError(f"{name} has its modules as {', '.join(kinds)}; served is the order {', '.join(SERVED)}")
    mode = _mode(read_json(folder / POOLING, name), name) if (folder / POOLING).is_file() else None
    dense = tuple(module.place for module in modules if module.kind == "Dense")
    if odd := next((place for place in dense if not PLACE.fullmatch(place)), None):
        raise ModelError(f"modules.json of {name} names {odd!r:.120}, which is no folder in the model's")
    return Pooling(mode, "Normalize" in kinds or not kinds, dense)


def reading(folder: Path, name: str) -> Reading:
    """How texts are read, by sentence-transformers' file, whose name contains an architecture; no limits without it."""
    path = next(iter(sorted(folder.glob("sentence_*_config.json"))), None)
    told = {} if path is None else read_json(path, name)
    return Reading(told.get("max_seq_length"), told.get("do_lower_case") is True)


def verdicts(folder: Path, name: str) -> list[int]:
    """The tokens for yes and no of a reranker that writes one of them, if sentence-transformers' file names both.

    Without the second, the score is defined differently: as one logit alone.
    """
    config = read_json(folder / LOGIT_SCORE, name)
    ids = [config.get(f"{which}_token_id") for which in ("true", "false")]
    return [i for i in ids if type(i) is int] if all(type(i) is int for i in ids) else []


def _modules(folder: Path, name: str) -> list[Module]:
    if not (folder / "modules.json").is_file():
        return []
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return [Module(str(each["type"]).rsplit(".", 1)[-1], str(each.get("path"))) for each in modules]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ModelError(f"modules.json of {name} is damaged: it is no list of modules") from None


def _architecture(config: dict[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])


def _bends(config: dict[str, Any]) -> bool:
    """Whether scores go through a sigmoid, according to sentence-transformers' entries."""
    more = config.get("sentence_transformers")
    named = more.get("activation_fn") if isinstance(more, dict) else config.get("sbert_ce_default_activation_function")
    return str(named).endswith(".Sigmoid")


def _mode(config: dict[str, Any], name: str) -> str:
    named = config.get("pooling_mode")
    wanted = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    modes = [MODES.get(key, key) for key in wanted] or ([{"lasttoken": "last"}.get(named, named)] if named else [])
    if len(modes) != 1 or modes[0] not in MODES.values():
        raise ModelError(
            f"{name} pools by {' and '.join(modes) or 'nothing'}; served is one of cls, mean, max, lasttoken"
        )
    return str(modes[0])
