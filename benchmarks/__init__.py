"""Benchmarks: nbgen beside its peers on the same checkpoint, in turn on one machine, under the machine's limit."""
