"""A talk with a hub in the terminal: one turn after another, each of which Ctrl-C stops."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Literal, TypeAlias

from dragoman.cli.client import Batches, HubClient, segment
from dragoman.cli.screen import Screen, summary
from dragoman.errors import DragomanError

End: TypeAlias = Literal["done", "stopped", "failed"]


class Talk:
    """A session of a hub that one person talks in."""

    def __init__(
        self,
        client: HubClient,
        screens: Callable[[], Screen],
        *,
        session: str | None = None,
        model: str | None = None,
    ) -> None:
        self.client = client
        self.model = model
        self.session = session or new_session()
        self.waiting: dict[str, str] = {}
        """The approvals that the last answer waits for, and the calls that want them."""
        self._screens = screens

    async def say(self, text: str) -> End:
        """Send a message and draw the answer."""
        message = {
            "id": f"msg_{secrets.token_urlsafe(12)}",
            "role": "user",
            "parts": [{"type": "text", "text": text}],
        }
        body: dict[str, Any] = {"id": self.session, "messages": [message]}
        if self.model:
            body["model"] = self.model
        return await self._draw(self.client.chat(body))

    async def answer(self, approval: str, *, approved: bool) -> End:
        """Answer a request for approval, and draw how the talk goes on."""
        path = f"/api/approvals/{segment(approval)}"
        await self.client.ask("POST", path, body={"approved": approved})
        return await self.resume()

    async def resume(self) -> End:
        """Draw the answer under way."""
        return await self._draw(self.client.resume(self.session))

    async def _draw(self, batches: Batches) -> End:
        """Draw until the run ends. The first Ctrl-C stops the run, a second one leaves it alone."""
        screen = self._screens()
        following = asyncio.ensure_future(self._follow(batches, screen))
        stopping: list[asyncio.Task[None]] = []

        def interrupt() -> None:
            if stopping:
                for task in (following, *stopping):
                    task.cancel()
            else:
                screen.remark("stopping …")
                stopping.append(asyncio.create_task(self.client.stop(self.session)))

        with interrupted(interrupt):
            await asyncio.wait([following])
            await asyncio.gather(*stopping, return_exceptions=True)
        screen.end()
        if following.cancelled():
            screen.remark("left; the hub may still be answering")
            return "stopped"
        following.result()
        return self._close(screen)

    async def _follow(self, batches: Batches, screen: Screen) -> None:
        async with aclosing(batches):
            async for batch in batches:
                screen.draw(batch)

    def _close(self, screen: Screen) -> End:
        if screen.failed:
            return "failed"
        if screen.reason is None:
            raise DragomanError(
                "the stream ended in mid-answer; the hub may go on with it",
                hint=f"`dragoman chat --session {self.session}` follows it again",
            )
        self.waiting = screen.waiting
        screen.remark(summary(screen.metadata))
        return "stopped" if screen.reason == "aborted" else "done"


def new_session() -> str:
    """The id of a session that is to come into being."""
    return f"cli-{secrets.token_urlsafe(9)}"


@contextmanager
def interrupted(handle: Callable[[], None]) -> Iterator[None]:
    """While it lasts, Ctrl-C calls `handle` and raises nothing."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, handle)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
