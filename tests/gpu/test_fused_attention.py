"""Decodes in one kernel, and what is around a forward, on the GPU itself."""

import pytest
import torch

from nbgen.engine.attention_window import Window
from tests.engine.test_fused_attention import CASES, Decodes, both_ways, most_likely_of, odd_scores, placed

CLOSE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
LARGE = {
    "one long": Decodes((16_000,), heads=32, kv_heads=8, dim=128),
    "one of Qwen3's": Decodes((1050,), heads=16, kv_heads=8, dim=128, normed=True),
    "many": Decodes(tuple(1000 + i for i in range(64)), heads=32, kv_heads=8, dim=64),
    "wide heads": Decodes((700, 33), heads=8, kv_heads=4, dim=256),
    "a window": Decodes((9000, 100), heads=32, kv_heads=8, dim=128, window=Window(sliding=4096)),
}


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", [*CASES, *LARGE])
def test_one_kernel_does_what_several_do(name: str, dtype: torch.dtype) -> None:
    for processors in (1, 132):
        found, expected = both_ways((CASES | LARGE)[name], processors, "cuda", dtype)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def test_the_most_likely_token_is_the_first_of_equals() -> None:
    scores = odd_scores()
    assert most_likely_of(scores.cuda()).tolist() == [int(scores[0].argmax()), 400, 77, -1, 19_999, -1, 12_345]


def test_a_batch_is_where_graphs_read_it() -> None:
    for ours, theirs in zip(placed(by_kernel=True, device="cuda"), placed(by_kernel=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
