"""What transformers' models call the cache that they are given, and give back: that depends on version and model.

Knows no model, only the names of its forward's arguments.
"""

from collections.abc import Container

#: From 5.24 on, and before for recurrent models and all others.
NAMES = ("cache", "cache_params", "past_key_values")


def cache_argument(names: Container[str]) -> str:
    """The name, among those of a forward's arguments."""
    return next((name for name in NAMES if name in names), NAMES[-1])


def is_recurrent(names: Container[str]) -> bool:
    """Whether what the model keeps has no places for tokens."""
    return "cache_params" in names or ("cache" in names and "position_ids" not in names)
