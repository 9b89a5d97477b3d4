"""Every back end gives what the formula gives, wherever a sequence's blocks stand and whatever a layer asks."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from nbgen.engine import attention
from nbgen.engine.attention import Layer, ReferenceAttention, Scores, Span, Step
from nbgen.engine.attention_cpu import CpuAttention
from nbgen.engine.attention_native import NativeAttention
from nbgen.engine.attention_plan import CHUNK
from nbgen.engine.attention_window import Window
from nbgen.engine.kv_cache import KVCache
from tests.soak import TIMES

BLOCK = 4
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
#: Types of queries, and of keys and values.
KINDS = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)]
#: Widths of keys and values: in heads of the latter a few queries read these where they lie.
DIMS = [(16, 16), (64, 128)]


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: Window, scores: Scores) -> torch.Tensor:
    """One sequence, token by token and head by head, in float64: `[T, heads, D]` against `[L, kv_heads, D]`."""
    new, heads = q.shape[:2]
    output = torch.zeros(new, heads, v.shape[-1], dtype=torch.float64)
    for row in range(new):
        position = len(k) - new + row
        seen = [p for p in range(position + 1) if p >= window.first(position)]
        for head in range(heads):
            kv = head // (heads // k.shape[1])
            logits = (k[seen, kv].double() @ q[row, head].double()) * scores.scaling
            if scores.softcap:
                logits = torch.tanh(logits / scores.softcap) * scores.softcap
            if scores.sinks is not None:
                logits = torch.cat([logits, scores.sinks[0, head, 0].double()])
            output[row, head] = torch.softmax(logits, 0)[: len(seen)] @ v[seen, kv].double()
    return output


def spans(lengths: list[tuple[int, int]], tables: list[list[int]]) -> tuple[list[Span], list[Span]]:
    """Decodes and prefills of `(length, new tokens)`, packed in this order."""
    made, start = [], 0
    for (length, new), table in zip(lengths, tables, strict=True):
        made.append(Span(start, start + new, length, table))
        start += new
    return [s for s in made if s.stop - s.start == 1], [s for s in made if s.stop - s.start > 1]


class Case:
    """A step of some sequences over a cache whose blocks are dealt in a random order."""

    def __init__(
        self,
        lengths: list[tuple[int, int]],
        heads: int,
        kv_heads: int,
        seed: int,
        shuffled: bool,
        dims: tuple[int, int] = (16, 16),
        kept: torch.dtype = torch.float32,
    ) -> None:
        """`dims` are the width of a key and of a value, and `kept` is the type of both."""
        generator = torch.Generator().manual_seed(seed)
        self.lengths = sorted(lengths, key=lambda pair: pair[1] > 1)
        counts = [-(-length // BLOCK) for length, _ in self.lengths]
        order = torch.randperm(sum(counts), generator=generator) if shuffled else torch.arange(sum(counts))
        tables = [part.tolist() for part in order.split(counts)]
        rand = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        self.query = rand(sum(new for _, new in self.lengths), heads, dims[0])
        self.layer = Layer(*(rand(kv_heads, sum(counts) * BLOCK, dim).to(kept).transpose(0, 1) for dim in dims))
        for table, (length, _) in zip(tables, self.lengths, strict=True):  # where an ended sequence's were no numbers
            for tensor in self.layer:
                tensor[table[-1] * BLOCK + (length - 1) % BLOCK + 1 : (table[-1] + 1) * BLOCK] = float("nan")
        self.sinks = rand(1, heads, 1, 1)
        decodes, prefills = spans(self.lengths, tables)
        cache = KVCache(sum(counts), BLOCK)
        self.step = Step(cache, ReferenceAttention(), torch.zeros(1, dtype=torch.long), decodes, prefills)

    def expected(self, window: Window, scores: Scores) -> torch.Tensor:
        parts = []
        for span in self.step.decodes + self.step.prefills:
            slots = torch.tensor([b * BLOCK + i for b in span.block_table for i in range(BLOCK)])[: span.length]
            keys, values = self.layer.keys[slots], self.layer.values[slots]
            parts.append(formula(self.query[span.start : span.stop], keys, values, window, scores))
        return torch.cat(parts).float()


sequences = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 40), st.just(1)),
        st.integers(2, 20).flatmap(lambda new: st.tuples(st.integers(new, 40), st.just(new))),
    ),
    min_size=1,
    max_size=4,
)
windows = st.sampled_from([Window(), Window(sliding=5), Window(chunk=6), Window(sliding=64)])


@pytest.mark.parametrize(
    "backend", [ReferenceAttention(), CpuAttention(), CpuAttention(1), CpuAttention(1 << 13), NativeAttention()]
)
@settings(max_examples=30 * TIMES)
@given(
    lengths=sequences,
    heads=st.sampled_from([(4, 4), (4, 2), (6, 2), (4, 1), (6, 1)]),
    window=windows,
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    seed=st.integers(0, 99),
    shuffled=st.booleans(),
    kept=st.sampled_from([torch.float32, torch.bfloat16]),
    dims=st.sampled_from(DIMS),
)
def test_a_back_end_equals_the_formula(
    backend, lengths, heads, window, softcap, sinks, seed, shuffled, kept, dims
) -> None:
    case = Case(lengths, *heads, seed, shuffled, dims, kept)
    scores = Scores(0.25, softcap, case.sinks if sinks else None)
    output = backend.attend(case.query, case.layer, case.step, window, scores)
    torch.testing.assert_close(output, case.expected(window, scores), **CLOSE)


@settings(max_examples=40 * TIMES)
@given(
    ends=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    others=st.lists(st.integers(1, 90), max_size=2),
    shared=st.integers(16, 20),
    window=windows,
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    backend=st.sampled_from([CpuAttention(1), CpuAttention(1 << 12), CpuAttention(1 << 20), NativeAttention()]),
)
def test_a_prefix_that_several_share_is_read_once_and_rightly(
    ends, others, shared, window, softcap, sinks, backend
) -> None:
    lengths = [(shared * BLOCK + end, 1) for end in ends] + [(length, 1) for length in others]
    case = Case(lengths, 4, 2, seed=len(ends), shuffled=True)
    first = case.step.decodes[0].block_table[:shared]
    for index in range(1, len(ends)):
        span = case.step.decodes[index]
        case.step.decodes[index] = span._replace(block_table=first + span.block_table[shared:])
    scores = Scores(0.25, softcap, case.sinks if sinks else None)
    output = backend.attend(case.query, case.layer, case.step, window, scores)
    torch.testing.assert_close(output, case.expected(window, scores), **CLOSE)


@pytest.mark.parametrize("window", [Window(), Window(sliding=CHUNK + 9)], ids=["whole", "sliding"])
@pytest.mark.parametrize(("dtype", "kept"), KINDS, ids=str)
def test_contexts_of_several_chunks_and_keys_wider_than_values(
    dtype: torch.dtype, kept: torch.dtype, window: Window
) -> None:
    lengths = [(length, 1) for length in (CHUNK, 1, 3 * CHUNK + 5, CHUNK + 1, 17)]
    case = Case(lengths, 6, 2, seed=1, shuffled=True, dims=(48, 40), kept=kept)
    case.query = case.query.to(dtype)
    scores = Scores(0.2, None, case.sinks)
    output = NativeAttention().attend(case.query, case.layer, case.step, window, scores)
    close = CLOSE if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-3}
    torch.testing.assert_close(output.float(), case.expected(window, scores), **close)


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize(("dtype", "kept"), KINDS, ids=str)
def test_a_sequence_has_the_very_same_numbers_whatever_it_shares_and_on_any_number_of_threads(
    dtype: torch.dtype, kept: torch.dtype, dims: tuple[int, int]
) -> None:
    lengths = [(700, 1), (30, 1), (260, 1), (5 * CHUNK, 1), (300, 5)]
    case, window, scores = Case(lengths, 6, 2, 3, shuffled=True, dims=dims, kept=kept), Window(), Scores(0.25)
    case.query, backend = case.query.to(dtype), NativeAttention()
    first, second = case.step.decodes[0], case.step.decodes[2]
    shared = first.block_table[: 200 // BLOCK] + second.block_table[200 // BLOCK :]
    case.step.decodes[2] = second._replace(block_table=shared)
    together = backend.attend(case.query, case.layer, case.step, window, scores)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for row, span in enumerate(case.step.decodes):
            step = Step(case.step.cache, backend, case.step.slots, [span], [])
            alone = backend.attend(case.query[row : row + 1], case.layer, step, window, scores)
            torch.testing.assert_close(alone[0], together[row], rtol=0, atol=0)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize(("dtype", "kept"), KINDS, ids=str)
def test_a_prompt_has_the_very_same_numbers_however_it_is_cut(
    dtype: torch.dtype, kept: torch.dtype, dims: tuple[int, int]
) -> None:
    case, backend = Case([(300, 300)], 4, 2, 3, shuffled=True, dims=dims, kept=kept), NativeAttention()
    query, layer, (span,) = case.query.to(dtype), case.layer, case.step.prefills
    for window in (Window(), Window(sliding=70)):
        whole = backend.attend(query, layer, case.step, window, Scores(0.25))
        for begin, end in ((0, 100), (100, 177), (177, 179), (179, 300)):
            part = Span(0, end - begin, end, span.block_table)
            step = Step(case.step.cache, backend, case.step.slots, [], [part])
            cut = backend.attend(query[begin:end], layer, step, window, Scores(0.25))
            torch.testing.assert_close(cut, whole[begin:end], rtol=0, atol=0)


@pytest.mark.parametrize("window", [Window(), Window(sliding=9)], ids=["whole", "sliding"])
def test_tokens_of_a_block_see_each_other(window: Window) -> None:
    case = Case([(90, 60), (80, 80)], 4, 2, seed=5, shuffled=True)
    spans = [span._replace(blocks=((0, 7), (31, 75))) for span in case.step.prefills]
    outputs = []
    for backend in (ReferenceAttention(), CpuAttention(), NativeAttention()):
        step = Step(case.step.cache, backend, case.step.slots, [], spans)
        outputs.append(backend.attend(case.query, case.layer, step, window, Scores(0.25)))
    assert not torch.allclose(outputs[0], case.expected(window, Scores(0.25)), **CLOSE), "blocks change nothing"
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], **CLOSE)


def test_blocks_that_windows_bound_are_seen_to_their_end_and_no_further_back() -> None:
    case, blocks, window = Case([(40, 30)], 2, 2, seed=6, shuffled=True), ((4, 9), (15, 35)), Window(sliding=9)
    (span,) = case.step.prefills
    queries, keys = torch.arange(10, 40)[:, None], torch.arange(40)
    inside = [(queries >= start) & (queries < stop) & (keys >= start) & (keys < stop) for start, stop in blocks]
    mask = (keys > queries - 9) & ((keys <= queries) | inside[0] | inside[1])
    slots = case.step.slots_of(case.step.tables_of([span]))[0, :40]
    q, k, v = (t.transpose(0, 1)[None] for t in (case.query, case.layer.keys[slots], case.layer.values[slots]))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)
    for backend in (ReferenceAttention(), CpuAttention(), NativeAttention()):
        bounded = span._replace(blocks=blocks, windowed=True)
        step = Step(case.step.cache, backend, case.step.slots, [], [bounded])
        torch.testing.assert_close(
            backend.attend(case.query, case.layer, step, window, Scores(0.25)), expected, **CLOSE
        )
        whole = backend.attend(case.query, case.layer, step, Window(), Scores(0.25))
        torch.testing.assert_close(whole, case.expected(Window(), Scores(0.25)), **CLOSE)


def test_a_position_bias_is_not_ignored() -> None:
    q = torch.zeros(1, 1, 1, 8)
    with pytest.raises(NotImplementedError):
        attention.paged_attention(SimpleNamespace(layer_idx=0), q, q, q, position_bias=torch.zeros(1))
