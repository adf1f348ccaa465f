"""CONTRIBUTING.md lists the modules that training and translating really execute."""

from __future__ import annotations

import pytest
import walk


@pytest.mark.slow
def test_the_tables_of_the_page_list_the_executed_modules() -> None:
    page = walk.PAGE.read_text(encoding="utf-8")
    for name, steps in walk.walk().items():
        assert walk.listed_modules(page, name) == {step.module for step in steps}, "run scripts/walk.py --write"
