"""Chooses the renderer for the streams that an answer is printed to."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import IO

from dragoman.cli.chat.renderer import EventRenderer
from dragoman.cli.hub_client.client import EventBatches
from dragoman.cli.terminal import make_console


def renderer_for(
    text: IO[str], aside: IO[str], *, clock: Callable[[], float] | None = time.monotonic
) -> EventRenderer:
    """Return a renderer: with Markdown at a terminal that can move its cursor, else of the plain text.

    The answer goes to `text`, all about it to `aside`. Without a clock, durations are left out.
    """
    out = make_console(text)
    if not (text.isatty() and aside.isatty()) or out.is_dumb_terminal:
        return EventRenderer(out, make_console(aside), clock=clock)
    from dragoman.cli.chat.live_renderer import LiveRenderer  # late: Markdown takes 0.1 s

    return LiveRenderer(make_console(text, soft_wrap=False), clock=clock)


@asynccontextmanager
async def drawn_on(screen: EventRenderer, batches: EventBatches) -> AsyncIterator[EventBatches]:
    """Close a stream of events, and its live output, at the end of the block."""
    with screen:
        async with aclosing(batches):
            yield batches


def make_renderer() -> EventRenderer:
    """Return a renderer of an answer on stdout, with everything about it on stderr."""
    return renderer_for(sys.stdout, sys.stderr)
