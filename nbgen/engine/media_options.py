"""The options that clients send with media for the model's processor, within limits that a process can bear."""

from collections.abc import Sequence
from math import isqrt
from typing import Any

from nbgen.engine.image import MAX_RATIO, PROMPT_PIXELS
from nbgen.errors import InvalidRequest
from nbgen.messages import Media

#: Options of clients that mean nothing to a processor.
IGNORED = {"detail"}
#: The most pieces that an image is cut into, each of a size that the model fixes.
MAX_PIECES = 64
#: The most tokens that an image is resized for.
MAX_TOKENS = 1120
#: How the names of options end that only the model may set: with them a client could make an image of few tokens as
#: large as it wants, or choose where it is processed.
OWN = ("patch_size", "merge_size", "kernel_size", "factor", "device")

Options = dict[str, bool | int | float | str]


def of(media: Sequence[Media], kind: str, processor: Any) -> Options:
    """The options of all `media`, which are of one kind, and which this processor prepares. Raises InvalidRequest."""
    given = [{name: value for name, value in each.options.items() if name not in IGNORED} for each in media]
    if any(each != given[0] for each in given):
        raise InvalidRequest(f"the {kind}s of one prompt must have the same options", field=f"{kind}_data")
    options = given[0] if given else {}
    for name, value in options.items():
        own = getattr(processor, name, 0)
        most = max(_most(name, len(media)), own if isinstance(own, int | float) else 0)
        if not isinstance(value, str) and not 0 <= value <= most:
            raise InvalidRequest(
                f"the option {name} is {value}; for {len(media)} {kind}s it is 0 to {most}", field=f"{kind}_data"
            )
    return options


def check_images(options: Options, processor: Any) -> None:
    """Raise InvalidRequest for an option that no client may give this processor of images."""
    for name in sorted(options):
        if name not in processor.valid_kwargs.__annotations__ or name.endswith(OWN):
            raise InvalidRequest(f"this model's images have no option {name!r}", field="image_data")


def _most(name: str, count: int) -> int:
    """The largest value: of tokens, pixels, pieces, or a side; the other side may be MAX_RATIO times as long."""
    if name.endswith("tokens"):
        return MAX_TOKENS
    if name.endswith("pixels"):
        return PROMPT_PIXELS // count
    if any(word in name for word in ("patch", "tile", "crop")):
        return MAX_PIECES
    return isqrt(PROMPT_PIXELS // (MAX_RATIO * count))
