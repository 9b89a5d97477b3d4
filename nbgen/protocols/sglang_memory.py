"""SGLang's `/release_memory_occupation` and `/resume_memory_occupation`: the memory that their bodies name.

SGLang's third tag, "cuda_graph", belongs to the KV cache here: graphs hold the cache's addresses.
"""

from __future__ import annotations

from nbgen.commands import MemoryTag
from nbgen.errors import InvalidRequest
from nbgen.protocols.json_body import parse_object

ALL: list[MemoryTag] = ["kv_cache", "weights"]
KNOWN = {*ALL, "cuda_graph"}


def parse_tags(body: bytes) -> list[MemoryTag]:
    """The `tags` of the body, or all if it has none. Raises InvalidRequest."""
    tags = parse_object(body).get("tags")
    if tags is None:
        return ALL
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) and tag in KNOWN for tag in tags):
        raise InvalidRequest(f"tags must be a list with any of {', '.join(sorted(KNOWN))}", field="tags")
    if "cuda_graph" in tags and "kv_cache" not in tags:
        raise InvalidRequest("CUDA graphs come and go with the KV cache: name kv_cache as well", field="tags")
    return [tag for tag in ALL if tag in tags]
