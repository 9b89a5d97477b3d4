"""Benchmarks: nbgen served over HTTP beside peers on the same checkpoint, in turn, on one machine, as ratios."""
