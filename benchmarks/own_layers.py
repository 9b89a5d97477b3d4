"""`python -m benchmarks.own_layers`: layers in nbgen's C++ beside transformers' code, of families unlike Llama.

Products and attention are the same C++ in both. The two take turns in one process (`cpu_rows`), in bfloat16, whose last
bits may part.
"""

from typing import Any
from unittest import mock

from benchmarks.cpu_rows import compared, engine, keep
from nbgen.engine import probe
from nbgen.engine.assembly import Assembly
from nbgen.engine.known_scores import KnownScores
from nbgen.engine.model_runner import ModelRunner

MODELS = ("g270", "e09")


def engine_in(layers_in: str, model: str, **options: Any) -> Assembly:
    made = engine(model, **options)
    runner = made.engine._runner
    assert isinstance(runner, ModelRunner)
    assert runner.layers_in == layers_in
    return made


def both(model: str, **options: Any) -> tuple[Assembly, Assembly]:
    """With transformers' layers, and with ours."""
    ours = engine_in("C++", model, **options)
    with mock.patch.object(probe, "_give_native_layers"), mock.patch.object(KnownScores, "recall", return_value=None):
        return engine_in("transformers", model, **options), ours


def measure(model: str) -> dict[str, list[float]]:
    """Tokens a second by transformers' code, and by ours, of each row."""
    return compared(*both(model), alike=False)


def main() -> None:
    keep("own_layers", {model: measure(model) for model in MODELS})


if __name__ == "__main__":
    main()
