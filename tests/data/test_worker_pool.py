"""Worker processes end with their pool, and with no other one."""

from __future__ import annotations

import operator
import time
from multiprocessing import get_context

import pytest

from transformer_mt.data.worker_pool import open_pool


def test_an_error_ends_the_busy_workers_of_its_own_pool_only() -> None:
    process = get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    with open_pool(1, int) as other:
        assert other.submit(operator.add, 1).result() == 1
        started = time.monotonic()
        with pytest.raises(KeyError), open_pool(1, time.sleep, 60) as pool:
            pool.submit(operator.is_, None)
            raise KeyError
        assert time.monotonic() - started < 50
        assert other.submit(operator.add, 2).result() == 2
    assert process.is_alive()
    process.terminate()
    process.join()
