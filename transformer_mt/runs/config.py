"""Configuration section `keep`: which checkpoints of a run are kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from transformer_mt.config.section import MAY_CHANGE, Section


class KeepConfig(Section):
    """Which checkpoints are kept."""

    best: Annotated[int, MAY_CHANGE] = Field(default=1, ge=1)
    """number of best checkpoints, by validation.metric"""
    last: Annotated[int, MAY_CHANGE] = Field(default=2, ge=1)
    """number of newest checkpoints; 2 or more let a run resume if the newest one is damaged"""
