"""What a tower made is shared by those who give it the very same, and by nobody else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nbgen.engine.tower_cache import TowerCache

#: As large as torch abbreviates when it prints them, and different where it leaves numbers out.
ONE, OTHER = torch.zeros(2, 40, 40), torch.zeros(2, 40, 40)
OTHER[1, 20, 20] = 1


class Towers(torch.nn.Module):
    """Counts how often its tower runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def get_image_features(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.runs += 1
        return torch.full((3,), float(self.runs))


@pytest.fixture
def ask() -> Callable[..., float]:
    """Ask the tower; which of its runs answers."""
    towers = Towers()
    cache = TowerCache(towers)

    def answer(*args: Any, namespace: str = "", **kwargs: Any) -> float:
        with cache.used(namespace):
            return towers.get_image_features(*args, **kwargs)[0].item()

    return answer


@pytest.mark.parametrize(
    "different",
    [
        (ONE, OTHER),
        ([ONE, ONE], [ONE, OTHER]),
        (({"image": [ONE]},), ({"image": [OTHER]},)),
        (ONE, ONE.int()),
        ([ONE, [ONE]], [[ONE], ONE]),
        ([1, 23], [12, 3]),
        (["a", "b"], ["a', 'b"]),
        (None, "None"),
    ],
    ids=["tensors", "lists", "dicts", "types", "nesting", "numbers", "words", "nothing"],
)
def test_only_the_same_is_shared(ask: Callable[..., float], different: tuple[Any, Any]) -> None:
    one, other = different
    assert [ask(one), ask(pixel_values=one), ask(other), ask(one, namespace="a")] == [1, 2, 3, 4]
    assert [ask(one), ask(pixel_values=one), ask(other), ask(one, namespace="a")] == [1, 2, 3, 4]


def test_what_cannot_be_told_apart_is_not_kept(ask: Callable[..., float]) -> None:
    unknown = object()
    assert [ask(ONE, options=[unknown]), ask(ONE, options=[unknown]), ask(ONE), ask(ONE)] == [1, 2, 3, 3]
