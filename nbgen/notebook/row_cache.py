"""Finished rows of a map in a file, so that the same map goes on where it was stopped, also in another kernel.

A line of JSON a row, written when the row ends. Knows what makes two rows the same: prompt, options, schema,
adapter, logit processor, model.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from nbgen.notebook.result import Result
from nbgen.notebook.rows import DONE

_KEPT = ("text", "finish_reason", "usage", "ttft_s", "tokens_per_s", "model")


class RowCache:
    """The rows of one file. The second row that asks the same has an answer of its own."""

    def __init__(self, path: str | Path, model: str, extras: Mapping[str, str]) -> None:
        self._path = Path(path)
        self._common = [model, *([dict(extras)] if extras else [])]
        self._asked: Counter[str] = Counter()
        self._known = dict(self._read())
        self._file: TextIO | None = None

    def key(self, result: Result) -> str:
        """What this row is kept under; ask once a row."""
        body = [result.messages, result.prompt, *result.media, result.params, *self._common]
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]
        self._asked[digest] += 1
        return f"{digest}-{self._asked[digest]}"

    def fill(self, key: str, result: Result) -> bool:
        """Put the kept answer into `result`, if there is one."""
        known = self._known.get(key)
        for name, value in (known or {}).items():
            setattr(result, name, value)
        return known is not None

    def keep(self, key: str, result: Result) -> None:
        """Write a row that has ended; one that was broken off is to be asked again."""
        if result.finish_reason not in DONE:
            return
        if self._file is None:
            self._file = self._opened()
        row = {"key": key, **{name: getattr(result, name) for name in _KEPT}}
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> TextIO:
        """At its end, on a line of its own."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a", encoding="utf-8", errors="backslashreplace")  # as JSON writes half a character
        if self._path.stat().st_size and not self._path.read_bytes().endswith(b"\n"):
            file.write("\n")
        return file

    def _read(self) -> list[tuple[str, dict[str, Any]]]:
        """A line that was cut off counts for nothing."""
        if not self._path.exists():
            return []
        rows = []
        for line in self._path.read_bytes().split(b"\n"):
            try:
                row = json.loads(line)
                if row["finish_reason"] in DONE:
                    rows.append((str(row["key"]), {name: row[name] for name in _KEPT}))
            except (ValueError, KeyError, TypeError):
                continue
        return rows
