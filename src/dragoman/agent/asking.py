"""Asking: a provider's answer to a step's request, asked for again where that may help and is wanted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

from dragoman.agent.turn import Asking, Batch, Turn
from dragoman.errors import ProviderError
from dragoman.providers.retry import RetryPolicy

Answer: TypeAlias = AsyncGenerator[Batch, None]
log = logging.getLogger(__name__)


async def ask(asking: Asking, turn: Turn) -> Answer:
    """The batches of the answer. It is asked for again only as long as nothing of it was passed on."""
    answer, first, said = await begin(asking, turn)
    async with aclosing(answer):
        for batch in (said, first):
            if batch:
                yield batch
        async for batch in answer:
            yield batch


async def begin(asking: Asking, turn: Turn) -> tuple[Answer, Batch | None, Batch]:
    """An answer that has begun, its first batch, and what is to be told before it."""
    number = 0
    said: Batch = ()
    while True:
        answer = turn.tracing.stream(asking.request, asking.provider)
        try:
            return answer, await anext(answer, None), said
        except ProviderError as error:
            failed = error
        if failed.category == "context_limit" and not said:
            asking, said = await shorter(asking, turn, error=failed)
            continue
        await pause(number, failed, policy=turn.retry)
        number += 1


async def shorter(asking: Asking, turn: Turn, *, error: ProviderError) -> tuple[Asking, Batch]:
    """What is asked instead of what was too long, and what it leaves out. Raises the error if nothing can."""
    if turn.window is None:
        raise error
    request, said = await turn.window.refit(asking.request, turn.context, provider=asking.provider)
    if not said:
        raise error
    return Asking(asking.provider, request), said


async def pause(number: int, error: ProviderError, *, policy: RetryPolicy) -> None:
    """Wait before it is asked again; raises the error when it is not to be."""
    wait = policy.delay(number, error, random=random.random)
    if wait is None:
        raise error
    log.info("the model is asked again in %.1f s: %s", wait, error.message)
    await asyncio.sleep(wait)
