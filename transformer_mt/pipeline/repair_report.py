"""The report of a repair: its numbers, and the changes that it lists."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

REPORT = "repair.json"

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


@dataclass
class RepairReport:
    """Numbers of a repair. They are also in `repair.json` of its folder."""

    folder: str
    config_path: str  # of the new configuration
    n_lines: tuple[int, int]  # of source and target, before
    used_ledger: bool = False  # whether the losses of a run decided too
    trained_on: str | None = None  # fingerprint of the text on which `--train` had trained; None: made without it
    n_pairs: int = 0  # after
    counts: Counter[tuple[Action, str]] = field(default_factory=Counter[tuple[Action, str]])  # by action and reason

    @classmethod
    def load(cls, folder: Path) -> RepairReport:
        """Read the report of a repair that is finished."""
        values = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        counts = Counter({(item["action"], item["reason"]): item["count"] for item in values.pop("counts")})
        return cls(**values, counts=counts)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        counts = [
            {"action": action, "reason": reason, "count": count}
            for (action, reason), count in self.counts.most_common()
        ]
        return {**asdict(self), "counts": counts}
