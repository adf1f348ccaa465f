"""The tests of this folder need a CUDA device.

They run on a real GPU (`pytest -m cuda`), and on the fake device (tests/test_fake_cuda.py).
"""

from __future__ import annotations

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.cuda)
    item.add_marker(pytest.mark.filterwarnings("ignore"))
