"""The report of a repair: its numbers, and the changes that it lists."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

REPORT = "repair.json"
SINGLE_SOURCE = "train"  # name in a report, and of the text files, if `data.train` is one source

Action = Literal["cut", "shift", "clean", "drop"]


class Change(NamedTuple):
    """A line of `changes.tsv`: what happened to a pair, or to a line without a partner."""

    action: Action
    reason: str  # "misaligned", or the name of a filter
    detail: str
    src_line: str  # file:line; "" if no source line is concerned
    tgt_line: str
    src: str
    tgt: str
    new_src: str = ""  # only if the text was cleaned
    new_tgt: str = ""
    source: str = SINGLE_SOURCE  # name of its source


@dataclass
class RepairCounts:
    """Numbers of the repair of one source, or of all together."""

    n_lines: tuple[int, int] = (0, 0)  # of source and target, before
    n_pairs: int = 0  # after
    changes: Counter[tuple[Action, str]] = field(default_factory=Counter[tuple[Action, str]])  # by action and reason

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RepairCounts:
        """Undo `to_json`."""
        changes = Counter({(item["action"], item["reason"]): item["count"] for item in values["counts"]})
        return cls((values["n_lines"][0], values["n_lines"][1]), values["n_pairs"], changes)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        counts = [
            {"action": action, "reason": reason, "count": count}
            for (action, reason), count in self.changes.most_common()
        ]
        return {"n_lines": self.n_lines, "n_pairs": self.n_pairs, "counts": counts}


@dataclass
class RepairReport:
    """Numbers of a repair. They are also in `repair.json` of its folder."""

    folder: str
    config_path: str  # of the new configuration
    used_ledger: bool = False  # whether the losses of a run decided too
    trained_on: str | None = None  # fingerprint of the text on which `--train` had trained; None: made without it
    sources: dict[str, RepairCounts] = field(default_factory=dict[str, RepairCounts])  # by name

    @property
    def totals(self) -> RepairCounts:
        """Return the sums over all sources."""
        totals = RepairCounts()
        for counts in self.sources.values():
            totals.n_lines = totals.n_lines[0] + counts.n_lines[0], totals.n_lines[1] + counts.n_lines[1]
            totals.n_pairs += counts.n_pairs
            totals.changes += counts.changes
        return totals

    @classmethod
    def load(cls, folder: Path) -> RepairReport:
        """Read the report of a repair that is finished."""
        values = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        sources = values.get("sources", {SINGLE_SOURCE: values})  # version 0.2.0 wrote the totals only
        counts = {name: RepairCounts.from_json(part) for name, part in sources.items()}
        return cls(values["folder"], values["config_path"], values["used_ledger"], values["trained_on"], counts)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of all sources together and of each one as JSON values."""
        return {
            "folder": self.folder,
            "config_path": self.config_path,
            "used_ledger": self.used_ledger,
            "trained_on": self.trained_on,
            **self.totals.to_json(),
            "sources": {name: counts.to_json() for name, counts in self.sources.items()},
        }
