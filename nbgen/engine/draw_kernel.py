"""Draws random tokens in one Triton kernel, for which `draws` needs many of torch's, including a sort.

The most likely token is found before. A program draws for one row, as in `cpp/draws.h`: if the race's winner is not
kept by the filters, it and all less likely tokens drop out, and the rest race again. Needs triton, and so a GPU.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from nbgen.engine.draws import SPLITMIX64
from nbgen.engine.native_draws import DrawFields
from nbgen.engine.sequence import Sequence
from nbgen.engine.step_kernels import most_likely
from nbgen.engine.upload import upload

#: Scores that a program reads at once.
BLOCK = 4096
WARPS = 16
#: A weight, where the most likely token's is 1: if the filters can keep only heavier tokens, no lighter ones race.
LIGHT = tl.constexpr(2.0**-9)
LARGEST = tl.constexpr(3.4028234663852886e38)
GOLDEN, MIX1, MIX2 = map(tl.constexpr, SPLITMIX64)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * MIX1
    x = (x ^ (x >> 27)) * MIX2
    return x ^ (x >> 31)


@triton.jit
def _exponential(base, ids):
    """Exponential variates: finite, and exact if small, as the variates that win races are."""
    odd = 2 * (_mix(base + ids.to(tl.uint64) * GOLDEN) >> 11).to(tl.int64) + 1
    uniform, lack = odd.to(tl.float32) * 2.0**-54, (2**54 - odd).to(tl.float32) * 2.0**-54  # together 1
    series = 1 + lack * (1 / 2 + lack * (1 / 3 + lack * (1 / 4 + lack * (1 / 5 + lack * (1 / 6 + lack / 7)))))
    return tl.where(lack < 0.125, lack * series, -tl.log(uniform))


@triton.jit
def _weights(start, ids, size, most, temperature):
    """Tokens' probabilities relative to the most likely token's."""
    x = tl.load(start + ids, mask=ids < size, other=float("-inf"))
    x = tl.where(x == x, tl.minimum(x, LARGEST), float("-inf"))
    return tl.exp((x - most) / temperature)


@triton.jit
def _before(start, size, most, temperature, weight, id, BLOCK: tl.constexpr):
    """How many tokens come before one of this weight and id, and the sum of their weights."""
    lanes = tl.arange(0, BLOCK)
    count, mass = lanes * 0, tl.zeros([BLOCK], tl.float32)
    for first in range(0, size, BLOCK):
        ids = first + lanes
        own = _weights(start, ids, size, most, temperature)
        comes = (own > weight) | ((own == weight) & (ids < id))
        count += tl.where(comes, 1, 0)
        mass += tl.where(comes, own, 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _all_and_heavy(start, size, most, temperature, BLOCK: tl.constexpr):
    """The sum of all weights; the number of tokens that are not light, and the sum of their weights."""
    lanes = tl.arange(0, BLOCK)
    mass, count, heavy = tl.zeros([BLOCK], tl.float32), lanes * 0, tl.zeros([BLOCK], tl.float32)
    for first in range(0, size, BLOCK):
        own = _weights(start, first + lanes, size, most, temperature)
        mass += own
        count += tl.where(own >= LIGHT, 1, 0)
        heavy += tl.where(own >= LIGHT, own, 0.0)
    return tl.sum(mass, 0), tl.sum(count, 0), tl.sum(heavy, 0)


@triton.jit
def _race(start, size, most, temperature, base, end, end_id, BLOCK: tl.constexpr):
    """The winner among tokens that come before `end`, and its weight."""
    lanes = tl.arange(0, BLOCK)
    fastest, weight, at = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), lanes * 0
    for first in range(0, size, BLOCK):
        ids = first + lanes
        own = _weights(start, ids, size, most, temperature)
        runs = (own > end) | ((own == end) & (ids < end_id))
        if tl.max(runs.to(tl.int32), 0) > 0:
            speed = tl.where(runs, own / _exponential(base, ids), 0.0)
            wins = speed > fastest
            weight = tl.where(wins, own, weight)
            at = tl.where(wins, ids, at)
            fastest = tl.maximum(fastest, speed)
    top = tl.max(fastest, 0)
    winner = tl.min(tl.where(fastest == top, at, size), 0)
    return winner, tl.max(tl.where((fastest == top) & (at == winner), weight, 0.0), 0)


@triton.jit(do_not_specialize=["size", "stride"])
def draw_row(scores, draws, tokens, size, stride, none, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row): replaces the most likely token in `tokens` by one drawn by the row of `draws` (`DrawFields`).

    It stays if no other may be drawn, or if it is `none`.
    """
    row = tl.program_id(0)
    start, fields = scores + row.to(tl.int64) * stride, draws + row * FIELDS
    likeliest, top_k = tl.load(tokens + row), tl.load(fields + 3)
    if (top_k != 1) & (likeliest != none):
        most = tl.minimum(tl.load(start + likeliest), LARGEST)
        base = _mix(tl.load(fields + 1).to(tl.uint64) + tl.load(fields + 2).to(tl.uint64) * GOLDEN)
        temperature = tl.load(fields + 4).to(tl.float64, bitcast=True).to(tl.float32)
        top_p = tl.load(fields + 5).to(tl.float64, bitcast=True).to(tl.float32)
        end = tl.load(fields + 6).to(tl.float64, bitcast=True).to(tl.float32)
        kept, limits = tl.where(top_k < 0, size, top_k), (top_k > 0) | (top_p < 1)
        mass = top_p * 0
        if limits:
            mass, count, heavy = _all_and_heavy(start, size, most, temperature, BLOCK)
            mass = tl.where(top_p < 1, mass * top_p, 2 * mass)
            end = tl.where((count >= kept) | (heavy > mass), tl.maximum(end, LIGHT), end)
        winner, racing = size, row * 0 + 1
        while racing > 0:
            winner, end = _race(start, size, most, temperature, base, end, winner, BLOCK)
            racing = row * 0
            if limits:
                count, heavy = _before(start, size, most, temperature, end, winner, BLOCK)
                racing = tl.where((count < kept) & (heavy <= mass), 0, 1)
        tl.store(tokens + row, winner)


def draw_rows(scores: torch.Tensor, sequences: list[Sequence], none: int) -> torch.Tensor:
    """A token `[rows]` for each row of float32 `scores` `[rows, vocab]`; `none` if no score is finite."""
    tokens = most_likely(scores, none)
    if all(sequence.params.greedy for sequence in sequences):
        return tokens
    fields = (DrawFields * len(sequences))(*map(DrawFields.of, range(len(sequences)), sequences))
    numbers = np.frombuffer(memoryview(fields), np.int64).reshape(len(sequences), -1)
    draws, shape = upload(numbers, scores.device), {"FIELDS": numbers.shape[1], "BLOCK": BLOCK, "num_warps": WARPS}
    draw_row[(len(sequences),)](scores, draws, tokens, scores.shape[1], scores.stride(0), none, **shape)
    return tokens
