"""Answers of scripted models that stop in the middle until the test lets them go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from dragoman import events as e
from dragoman.model_request import ModelRequest
from dragoman.providers import scripted

PLAY = scripted.play


class Gate:
    """Model answers stop behind the piece of text `behind` until `opened` is set.

    `reached` counts those that came so far, `closed` those that ended early.
    """

    def __init__(self, behind: str = "three ") -> None:
        self.behind = behind
        self.opened = asyncio.Event()
        self.reached = 0
        self.closed = 0

    async def play(
        self, step: scripted.Step, request: ModelRequest, *, key: int, name: str
    ) -> AsyncGenerator[Sequence[e.Event], None]:
        """In place of `scripted.play`."""
        async with aclosing(PLAY(step, request, key=key, name=name)) as batches:
            async for batch in batches:
                yield batch
                if any(isinstance(event, e.TextDelta) and event.delta == self.behind for event in batch):
                    self.reached += 1
                    try:
                        await self.opened.wait()
                    except (asyncio.CancelledError, GeneratorExit):
                        self.closed += 1
                        raise
