"""The ids that callers give their requests, and the namespaces of cached prefixes. The same in every dialect.

Follows SGLang 0.5.23, but limits the form of ids.
"""

from __future__ import annotations

import uuid

from nbgen.errors import InvalidRequest
from nbgen.identifiers import check_identifier


def request_ids(rid: str | list[str] | None, prompts: int, n: int, *, single: bool) -> list[str]:
    """An id for each prompt. With n > 1 fresh ones replace the caller's, as SGLang does."""
    given = rid if isinstance(rid, list) else [rid] if isinstance(rid, str) else []
    for name in given:
        check_identifier(name, "rid")
    if isinstance(rid, list) and single:
        raise InvalidRequest("`rid` is a list, and a single prompt takes one id as text", field="rid")
    if isinstance(rid, list) and len(rid) != prompts:
        raise InvalidRequest(f"`rid` is a list of {len(rid)} ids for {prompts} prompts: a mismatch", field="rid")
    if len(set(given)) < len(given):
        raise InvalidRequest("Duplicate request IDs detected in the batch", field="rid")
    if rid is None or n > 1:
        return [uuid.uuid4().hex for _ in range(prompts)]
    if isinstance(rid, str) and not single:
        return [f"{rid}_{position}" for position in range(prompts)]
    return given


def namespace(extra_key: str | None, cache_salt: str | None) -> tuple[str, ...]:
    """The namespace of a request's cached prefixes: either name keeps callers apart."""
    return (extra_key or "", cache_salt or "") if extra_key or cache_salt else ()
