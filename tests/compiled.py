"""Compiles our C++ before processes of tests begin: each of their engines would, all at once, while others wait."""

from concurrent.futures import ThreadPoolExecutor

from nbgen.engine import native

if __name__ == "__main__":
    [*ThreadPoolExecutor().map(native.library, native.KINDS)]
