"""The name of the cache argument and output of transformers' models, which depends on version and model.

Knows no model, only the names of its forward's arguments.
"""

from collections.abc import Container

#: From 5.24 on; before, for recurrent models; before, for all others.
NAMES = ("cache", "cache_params", "past_key_values")


def cache_argument(names: Container[str]) -> str:
    """The cache's name among the `names` of a forward's arguments."""
    return next((name for name in NAMES if name in names), NAMES[-1])


def is_recurrent(names: Container[str]) -> bool:
    """Whether the cache holds only a recurrent state and nothing for each token."""
    return "cache_params" in names or ("cache" in names and "position_ids" not in names)
