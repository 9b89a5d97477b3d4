"""The process that compiles grammars, `python -m nbgen.engine.grammar_worker FD BACKEND`.

Compilers recurse and explode on hostile grammars: here one may take too long, use up its memory or crash, and only
this process ends. Frames of length and msgpack go both ways on the socket FD; at its end of file the process ends.
Knows no requests.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import msgspec

from nbgen.engine.grammar import Backend, Grammar, GrammarError
from nbgen.engine.light_imports import import_lightly
from nbgen.engine.process import live_and_die_with_parent
from nbgen.frames import FRAME_HEADER, frame_length

MAX_BYTES = 2**30
BACKENDS = {
    "xgrammar": ("nbgen.engine.grammar_xgrammar", "XGrammarBackend"),
    "llguidance": ("nbgen.engine.grammar_llguidance", "LLGuidanceBackend"),
}
#: Libraries beneath the back ends that use torch only where it is installed.
WITHOUT_TORCH: dict[str, tuple[str, ...]] = {"xgrammar": ("tvm_ffi",), "llguidance": ()}


class Start(msgspec.Struct):
    """The first frame: the vocabulary."""

    vocabulary: bytes


class Answer(msgspec.Struct):
    """What became of a grammar: compiled, or a sentence. Both are None in the first answer, to `Start`."""

    compiled: bytes | None = None
    error: str | None = None


T = TypeVar("T")


def backend_class(name: str, *, lightly: bool = False) -> type[Backend]:
    """The class of a back end; `lightly`: without torch. Raises ImportError where its library is not installed."""
    module, attribute = BACKENDS[name]
    found = import_lightly(module, first=WITHOUT_TORCH[name]) if lightly else import_module(module)
    return getattr(found, attribute)


def send(channel: socket.socket, message: object) -> None:
    """Write one frame."""
    body = msgspec.msgpack.encode(message)
    channel.sendall(len(body).to_bytes(FRAME_HEADER, "big") + body)


def receive(channel: socket.socket, kind: type[T]) -> T:
    """Read one frame. Raises EOFError where the other end is closed, TimeoutError as the socket says."""
    body = _read(channel, frame_length(_read(channel, FRAME_HEADER)))
    return msgspec.msgpack.decode(body, type=kind)


def main() -> None:
    live_and_die_with_parent()
    channel = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):
        backend_kind = backend_class(sys.argv[2], lightly=True)
        backend = backend_kind.from_vocabulary(receive(channel, Start).vocabulary)
        _limit_memory()
        send(channel, Answer())
        while True:
            send(channel, _compile(backend, receive(channel, Grammar)))


def _compile(backend: Backend, grammar: Grammar) -> Answer:
    try:
        return Answer(compiled=backend.compile(grammar))
    except GrammarError as error:
        return Answer(error=str(error))
    except MemoryError:
        return Answer(error=f"it takes more than {MAX_BYTES >> 20} MiB to compile")


def _limit_memory() -> None:
    """Of the address space, from what the libraries have taken on; where the system knows such limits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_BYTES,) * 2)


def _read(channel: socket.socket, length: int) -> bytes:
    body = bytearray()
    while len(body) < length:
        part = channel.recv(min(length - len(body), 1 << 20))
        if not part:
            raise EOFError
        body += part
    return bytes(body)


if __name__ == "__main__":
    main()
