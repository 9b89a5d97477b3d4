"""C++ of our own, compiled once for a machine and a type of number: without a compiler, torch does what it does.

Libraries are kept in the user's cache folder under the hash of all that they depend on, and under one of what is in
them: a damaged one would end the process. Knows names of what is in them and how it is called, not what it does.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from ctypes import c_int64, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from nbgen.engine.cache_folder import cache_folder, drop_unused, keep_sealed, private_folder, sealed

#: What has a compiler use all that the processor of this machine has; Apple's do so, and know no such flag.
NATIVE = {"x86_64": ("-march=native",), "aarch64": ("-mcpu=native",)}
#: No flag here lets a compiler assume that numbers are finite, or change how the process rounds small ones.
FLAGS = (
    "-O3",
    *NATIVE.get(platform.machine(), ()),
    "-std=c++17",
    "-fopenmp-simd",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-falign-loops=64",  # of a few instructions: a tenth of their time
    "-fvisibility=hidden",  # or else what two of these libraries have in common is the first one's
    "-shared",
    "-fPIC",
)
SOURCE = Path(__file__).with_name("cpp") / "native.cpp"
#: The products of rounded layers, which are most of what there is to compile, and which few models have.
ROUNDED = "rounded.cpp"
#: The types of number that there is a library for, and what says so to the compiler.
KINDS = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}
ARGUMENTS = {
    "attend": [c_void_p] * 7,
    "draw": [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p],
    "multiply": [c_void_p, c_int64, c_int64, c_void_p, c_void_p],
    "mix": [c_void_p] * 4,
    "remember": [c_void_p],
    "scan": [c_void_p],
    "run_layers": [c_void_p, c_void_p, c_int64, c_void_p],
    "remember_held": [c_void_p, c_int64, c_void_p, *[c_int64] * 3, c_void_p, c_void_p],
    "finish": [c_void_p, c_int64, c_int64, c_void_p, c_void_p],
}
COMPILERS = ("g++", "c++", "clang++")
#: One that pip installs (`nbgen[compiler]`), for who has no other.
PACKAGE = "ziglang"
#: Seconds that a compiler may take: that one makes its own libraries first.
TIMEOUT = 300
#: Who waits is told so before a compiler runs: it takes some ten seconds.
tell_of_build: ContextVar[Callable[[], object]] = ContextVar("tell_of_build", default=lambda: None)

log = logging.getLogger(__name__)


class Library(ctypes.CDLL):
    """One whose file is held open: its folder may be gone as soon as it is loaded."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.descriptor = os.open(file, os.O_RDONLY)


@cache
def library(dtype: torch.dtype) -> Library | None:
    """`cpp/native.cpp` for numbers of this type, loaded; None where it cannot be compiled, which the log says."""
    return _compiled(SOURCE, dtype)


@cache
def rounds(dtype: torch.dtype) -> bool:
    """Whether that library has products for rounded layers, too: from now on, if they can be compiled."""
    if (whole := library(dtype)) is None or not hasattr(whole, "use_rounded"):
        return False
    if (found := _compiled(SOURCE.with_name(ROUNDED), dtype)) is None:
        return False
    whole.use_rounded(found.products)
    return True


def function(name: str, dtype: torch.dtype) -> Callable[..., None] | None:
    """The function for numbers of this type; None where this machine has none."""
    found = getattr(library(dtype), name, None)
    if found is not None:
        found.argtypes, found.restype = ARGUMENTS[name], None
    return found


@cache
def tiles() -> bool:
    """Whether the processor multiplies bfloat16 in tiles (AMX), here too from now on.

    That is tried in a process of its own first: where something between here and the processor refuses, it ends.
    """
    found = library(torch.bfloat16)
    if found is None or not torch.cpu._is_amx_tile_supported() or not hasattr(found, "use_tiles"):
        return False
    code = "import ctypes, sys; sys.exit(not ctypes.CDLL('/proc/self/fd/0').use_tiles())"
    try:
        _run(sys.executable, "-c", code, stdin=found.descriptor)
    except (OSError, subprocess.SubprocessError):
        log.info("the processor's tiles (AMX) cannot be used here: oneDNN multiplies")
        return False
    return bool(found.use_tiles())


def compiler() -> list[str]:
    """The command that calls it. Raises FileNotFoundError where there is none."""
    found = next(compilers(), None)
    if found is None:
        raise FileNotFoundError(
            f"no C++ compiler: none of {', '.join(_names())} is here, and pip install 'nbgen[compiler]' brings one"
        )
    return found


def compilers() -> Iterator[list[str]]:
    """Commands of those that are there, the environment's own (`CXX="ccache g++"`) first and the package's last."""
    for program, *more in map(str.split, _names() if sys.platform != "win32" else ()):
        if (found := shutil.which(program)) is not None:
            yield [found, *more]
    if find_spec(PACKAGE) is not None:
        yield [sys.executable, "-m", PACKAGE, "c++"]


def _names() -> list[str]:
    return [name for name in (os.environ.get("CXX", "").strip(), *COMPILERS) if name]


def _compiled(source: Path, dtype: torch.dtype) -> Library | None:
    if dtype not in KINDS:
        return None
    try:
        command = compiler()
        try:
            return _loaded(command, source, KINDS[dtype], cache_folder())
        except (OSError, subprocess.SubprocessError):  # a full disk or quota, or a folder whose programs may not run
            return _loaded(command, source, KINDS[dtype], private_folder())
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()[:500]
        log.warning("%s is not compiled (%s): torch's own operators serve, more slowly", source.name, said)
        return None


def _loaded(compiler: list[str], source: Path, kind: tuple[str, ...], place: AbstractContextManager[Path]) -> Library:
    with place as folder:
        return Library(_built(compiler, source, kind, folder))


def _built(compiler: list[str], source: Path, kind: tuple[str, ...], folder: Path) -> Path:
    """Where the library is, after making it if need be. Raises OSError and SubprocessError."""
    version = _run(*compiler, "--version")
    sources = [path.read_bytes() for path in sorted(source.parent.iterdir())]
    parts = (*FLAGS, *kind, *compiler[1:], version, platform.machine(), _processor())
    key = hashlib.sha256(b"\0".join([*sources, *map(os.fsencode, parts)])).hexdigest()[:16]
    if (kept := sealed(folder, name := f"{source.stem}-{key}.so")) is not None:
        return kept
    drop_unused(folder, f"{source.stem}-*.so")
    tell_of_build.get()()
    return keep_sealed(folder, name, lambda made: _run(*compiler, *FLAGS, *kind, str(source), "-o", str(made)))


def _run(*command: str, stdin: int | None = None) -> str:
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "check": True, "timeout": TIMEOUT}
    return subprocess.run(command, stdin=stdin, capture_output=True, **how).stdout


def _processor() -> str:
    """What a library for this very processor must not be shared beyond: homes are, between machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
