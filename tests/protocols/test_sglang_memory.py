"""Which memory a body names."""

import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols.sglang_memory import parse_tags


@pytest.mark.parametrize(
    ("body", "tags"),
    [
        (b"", ["kv_cache", "weights"]),
        (b"{}", ["kv_cache", "weights"]),
        (b'{"tags": null}', ["kv_cache", "weights"]),
        (b'{"tags": ["weights", "kv_cache", "cuda_graph"]}', ["kv_cache", "weights"]),
        (b'{"tags": ["kv_cache"]}', ["kv_cache"]),
        (b'{"tags": ["weights"]}', ["weights"]),
    ],
)
def test_tags_name_memory(body: bytes, tags: list[str]) -> None:
    assert parse_tags(body) == tags


@pytest.mark.parametrize("tags", ['"weights"', "[]", '["cache"]', "[1]", '["cuda_graph"]', '["cuda_graph", "weights"]'])
def test_other_tags_are_refused(tags: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tags(f'{{"tags": {tags}}}'.encode())
    assert refused.value.field == "tags"
