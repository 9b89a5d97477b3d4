"""Our own C++, compiled once for each machine and dtype; without a compiler, torch's own operators serve.

Libraries are kept in the user's cache folder under a hash of all that they depend on, and one of their own bytes: a
damaged library would end the process. Knows the names and arguments of their functions, not what these do.
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

#: Flags for all instructions of this machine's processor; Apple's compilers use them anyway, and know no such flag.
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
    "-falign-loops=64",  # saves a tenth of the time of short loops
    "-fvisibility=hidden",  # or else two of these libraries would share the first one's symbols
    "-shared",
    "-fPIC",
)
SOURCE = Path(__file__).with_name("cpp") / "native.cpp"
#: The products of quantized layers: most of the code there is to compile, and few models need it.
ROUNDED = "rounded.cpp"
#: The dtypes that there is a library for, and the compiler's flags for each.
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
#: A compiler that pip installs (`nbgen[compiler]`), for users who have no other.
PACKAGE = "ziglang"
#: Seconds that a compiler may take: ziglang's compiles its own libraries first.
TIMEOUT = 300
#: Called before a compiler runs, to tell whoever waits: it takes some ten seconds.
tell_of_build: ContextVar[Callable[[], object]] = ContextVar("tell_of_build", default=lambda: None)

log = logging.getLogger(__name__)


class Library(ctypes.CDLL):
    """A library whose file is held open: its folder may be gone as soon as it is loaded."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.descriptor = os.open(file, os.O_RDONLY)


@cache
def library(dtype: torch.dtype) -> Library | None:
    """`cpp/native.cpp` for numbers of this type, loaded; None where it cannot be compiled, which the log says."""
    return _compiled(SOURCE, dtype)


@cache
def rounds(dtype: torch.dtype) -> bool:
    """Whether the library has products for quantized layers; the first call compiles and adds them if it can."""
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
    """Whether the processor multiplies bfloat16 in tiles (AMX); if so, the library uses them from now on.

    A process of its own tries that first: where the system or a virtual machine refuses tiles, the process ends.
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
    """The command that calls a C++ compiler. Raises FileNotFoundError where there is none."""
    found = next(compilers(), None)
    if found is None:
        raise FileNotFoundError(
            f"no C++ compiler: none of {', '.join(_names())} is here, and pip install 'nbgen[compiler]' brings one"
        )
    return found


def compilers() -> Iterator[list[str]]:
    """Commands of installed compilers, the environment's own (`CXX="ccache g++"`) first and the package's last."""
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
    """The processor's features, part of a library's hash: machines may share a home, but not such a library."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
