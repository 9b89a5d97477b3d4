"""Finished rows of a map in a file, so that the same map goes on where it was stopped, also in another kernel.

Each row is a line of JSON, written when the row ends. Two rows are the same if they agree in prompt, options, schema,
adapter, logit processor, and the model that answered.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from nbgen.errors import InvalidRequest
from nbgen.notebook.result import Result
from nbgen.notebook.rows import DONE

#: How each line begins.
_START = b'{"key": "'
_KEPT = ("text", "reasoning", "finish_reason", "usage", "ttft_s", "tokens_per_s", "model")


class RowCache:
    """The rows of one file. Rows that ask the same are numbered, so each has an answer of its own.

    `model` is the identity of the model that is loaded. `failure` is the error since which the file takes no more
    rows, if any.
    """

    def __init__(self, path: str | Path, model: str, extras: Mapping[str, Any]) -> None:
        """Raises InvalidRequest for a file that cannot be read and written, or that is no cache."""
        self.model = model
        self.failure: OSError | None = None
        self._extras = dict(extras)
        self._asked: Counter[str] = Counter()
        try:
            self._file = _opened(Path(path))
            self._known = dict(self._read())
        except (OSError, ValueError) as error:  # ValueError: no file can have this name
            raise InvalidRequest(f"cache: rows cannot be kept in {path}: {error}", field="cache") from None

    def key(self, result: Result) -> str:
        """This row's key, without the model that answers. Call it once a row: it counts the rows that ask the same."""
        digest = _digest([result.messages, result.prompt, result.media, result.params, self._extras])
        self._asked[digest] += 1
        return f"{digest}-{self._asked[digest]}"

    def knows(self, key: str, model: str) -> bool:
        """Whether there is an answer of this model."""
        return _full(key, model) in self._known

    def fill(self, key: str, model: str, result: Result) -> None:
        """Put the kept answer into `result`."""
        for name, value in self._known[_full(key, model)].items():
            setattr(result, name, value)

    def keep(self, key: str, result: Result) -> None:
        """Write a row that has ended, unless the file has failed. One that broke off is left out, to be asked again."""
        if self.failure is not None or result.finish_reason not in DONE:
            return
        row = {"key": _full(key, result.identity or self.model), **{name: getattr(result, name) for name in _KEPT}}
        line = json.dumps(row, ensure_ascii=False)
        try:
            self._file.write(line.encode(errors="backslashreplace") + b"\n")  # a lone surrogate as JSON's \uXXXX
            self._file.flush()
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        with suppress(OSError):  # for a row that could not be written: `failure` has it
            self._file.close()

    def _read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The keys and answers in the file. A last line that was cut off is skipped, and gets its line break."""
        line = b"\n"
        self._file.seek(0)
        for line in self._file:
            try:
                row = json.loads(line)
                if row["finish_reason"] not in DONE:
                    continue
                key, kept = str(row["key"]), {name: row[name] for name in _KEPT}
            except (ValueError, KeyError, TypeError):
                continue
            yield key, kept
        if not line.endswith(b"\n"):
            self._file.write(b"\n")


def _digest(asked: Any) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _full(key: str, model: str) -> str:
    return f"{_digest(model)}-{key}"


def _opened(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a device may have no end
        raise OSError("it is no file")
    file = cast(BinaryIO, path.open("a+b"))
    file.seek(0)
    first = file.readline()
    if _START.startswith(first):  # empty, or the first row was cut off at once
        file.truncate(0)
    elif not _is_row(first):
        file.close()
        raise OSError("it holds something else than rows of nbgen.map")
    return file


def _is_row(line: bytes) -> bool:
    """Whether a line is a row of a cache, maybe cut off."""
    try:
        return line.startswith(_START) and "finish_reason" in json.loads(line)
    except ValueError:
        return True
