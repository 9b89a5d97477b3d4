"""Every figure taken, as records in results.json, so that the tables can be rendered again. Knows no table.

A record is one run of one engine; records of one `turn` were taken one after the other on the same machine.
"""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "results.json"
#: What makes a new figure take an older one's place.
KEYS = ("model", "workload", "engine")

Record = dict[str, Any]


class Results:
    """The records of one file, and the facts about machine and models that they go with."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        content = json.loads(file.read_text()) if file.is_file() else {}
        self.facts: dict[str, Any] = content.get("facts", {})
        self.records: list[Record] = content.get("records", [])

    def add(self, record: Record) -> None:
        """Keep a record, dropping those of an earlier run of the command about the same."""
        self.records = [old for old in self.records if not _supersedes(record, old)]
        self.records.append(record)
        self.save()

    def keep(self, name: str, fact: Any) -> None:
        """Keep a fact in place of an earlier one of that name."""
        self.facts[name] = fact
        self.save()

    def save(self) -> None:
        lines = ",\n".join(json.dumps(record) for record in self.records)
        self._file.write_text(f'{{"facts": {json.dumps(self.facts, indent=1)},\n"records": [\n{lines}\n]}}\n')

    def of(self, **wanted: Any) -> list[Record]:
        return [record for record in self.records if all(record.get(k) == v for k, v in wanted.items())]

    def median(self, value: Callable[[Record], float], **wanted: Any) -> float | None:
        values = [value(record) for record in self.of(**wanted)]
        return statistics.median(values) if values else None

    def ratio(self, value: Callable[[Record], float], ours: str, theirs: str, **wanted: Any) -> float | None:
        """The median over their common turns of our value by theirs."""
        peers = {record["turn"]: value(record) for record in self.of(engine=theirs, **wanted)}
        mine = {record["turn"]: value(record) for record in self.of(engine=ours, **wanted)}
        ratios = [mine[turn] / peers[turn] for turn in mine.keys() & peers.keys()]
        return statistics.median(ratios) if ratios else None


def _supersedes(new: Record, old: Record) -> bool:
    return all(new[key] == old[key] for key in KEYS) and new["run"] != old["run"]
