"""What holds for every media file, whatever decodes it: its size is limited, and a fault in it refuses the request."""

from collections.abc import Iterator
from contextlib import contextmanager

from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_BYTES, MediaType


@contextmanager
def decoding(data: memoryview, type: MediaType, place: str, formats: str) -> Iterator[None]:
    """Hold this around code that decodes a file of one of these formats. `place` names it to whoever sent it.

    Raises InvalidRequest for a file that is too large, or cannot be decoded.
    """
    field = f"{type}_data"
    if len(data) > MAX_BYTES[type]:
        raise InvalidRequest(f"{place} has {len(data)} bytes; at most {MAX_BYTES[type]}", field=field)
    try:
        yield
    except (InvalidRequest, MemoryError):
        raise
    except Exception:  # decoders of damaged files raise anything
        raise InvalidRequest(
            f"{place} ({len(data)} bytes) cannot be decoded: it must be a whole {formats} file", field=field
        ) from None
