"""Apart: work that is done in a task of its own, so that it holds nobody up who is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

log = logging.getLogger(__name__)

END_SECONDS = 5.0  # how long an operation may take to end once it is cancelled


async def apart(work: Awaitable[Any], name: str) -> Any:
    """What the work gives, which is done in a task of its own: who is cancelled while he awaits it is not
    held up by work that will not end, nor goes on when that ends as if nothing was.
    """
    task = asyncio.ensure_future(kept(work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=END_SECONDS)
        if not task.done():
            log.error("%s was stopped, and still runs after %g seconds", name, END_SECONDS)
        raise
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def kept(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What the work gives, or what it raises: a task that raises SystemExit would end the hub."""
    try:
        return await work, None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whoever awaits it raises it again
        return None, error
