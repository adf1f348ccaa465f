"""Severity of the findings of `tmt doctor` and `tmt check`."""

from __future__ import annotations

from enum import IntEnum


class Severity(IntEnum):
    """Severity of a finding. The value is the exit status of the command."""

    OK = 0
    WARNING = 1  # worth a look; training works, but worse than it could
    ERROR = 2  # training cannot work, or its result cannot be trusted
