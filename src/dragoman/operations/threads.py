"""Threads: a pool that is made when something is first run in it, since most agents never need one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class Threads:
    """At most `most` threads, called `name`, for `loop.run_in_executor`."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The pool. Once closed it takes nothing more: RuntimeError, where something is given to it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            if self._closed:
                self._pool.shutdown(wait=False)
        return self._pool

    def close(self) -> None:
        """Let the threads go, without waiting for busy ones; what has not begun is cancelled."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
