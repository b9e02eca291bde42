"""Events that operations of a spoke publish in the session of their call, which only the hub knows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from dragoman.errors import BadRequest
from dragoman.operations.context import Context
from dragoman.operations.ledger import CallCompletion, CallRecord
from dragoman.operations.outcome import to_jsonable
from dragoman.spokes.client.jobs import JobRunner, current_job


class SpokeEvents:
    """Sends events to the hub. It implements `CallEvents` for a spoke."""

    def __init__(self) -> None:
        self.job_runner: JobRunner | None = None
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def call_started(self, record: CallRecord) -> None:
        """See `CallEvents`. Nothing to send: the hub publishes the start and end of its calls itself."""

    def call_ended(self, record: CallRecord, completion: CallCompletion) -> None:
        """See `CallEvents`."""

    def publish(self, context: Context, name: str, *, data: Any, in_answer: bool = False) -> None:
        """See `CallEvents`. The hub checks the name and the data, and logs what it refuses.

        Any thread may call it. Raises BadRequest, TooLarge, RateLimited, Unavailable.
        """
        body, job = to_jsonable(data), current_job.get(None)
        if not isinstance(body, dict):
            raise BadRequest(f"the data of the event {name!r} must be an object", field="data")
        if job is None or self.job_runner is None:
            return
        submit = partial(self.job_runner.publish, job, name, data=body, in_answer=in_answer)
        if threading.get_ident() == self._thread:
            submit()
        else:  # the connection belongs to the event loop
            asyncio.run_coroutine_threadsafe(_run(submit), self._loop).result()


async def _run(function: Callable[[], None]) -> None:
    function()
