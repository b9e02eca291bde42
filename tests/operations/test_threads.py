"""Threads are started when first needed."""

from __future__ import annotations

import pytest

from dragoman.operations.worker_threads import LazyThreadPool
from tests.waiting import LIMIT


@pytest.mark.parametrize("used", [False, True])
def test_abandoned_threads_take_no_further_work(used: bool) -> None:
    threads = LazyThreadPool(1, "lab")
    if used:
        assert threads.pool.submit(lambda: 1).result(LIMIT) == 1
    threads.close()
    with pytest.raises(RuntimeError):
        threads.pool.submit(lambda: 2)
