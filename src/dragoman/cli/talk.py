"""A talk with a hub in the terminal: one turn after another, each of which Ctrl-C stops."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Literal, TypeAlias

from dragoman.agent.word import QUESTION, pending
from dragoman.cli.approvals import Question
from dragoman.cli.client import Batches, HubClient, segment
from dragoman.cli.screen import Screen, summary
from dragoman.errors import DragomanError
from dragoman.events import Data
from dragoman.messages import Message, ToolPart

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
        self.questions: dict[str, Question] = {}
        """What is asked, where it is no yes or no."""
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

    async def answer(self, approval: str, said: bool | str) -> End:
        """Answer a request for approval, or a question, and draw how the talk goes on."""
        path = f"/api/approvals/{segment(approval)}"
        body = {"answer": said} if isinstance(said, str) else {"approved": said}
        await self.client.ask("POST", path, body=body)
        return await self.resume()

    async def resume(self) -> End:
        """Draw the answer under way."""
        return await self._draw(self.client.resume(self.session))

    def recall(self, messages: Sequence[Message]) -> None:
        """Draw what the last of these messages waits for."""
        parts = messages[-1].parts if messages else ()
        calls = [part for part in parts if isinstance(part, ToolPart) and part.state == "approval-requested"]
        screen = self._screens()
        screen.waiting = {call.approval.id: call.name for call in calls if call.approval is not None}
        screen.draw([Data(QUESTION, part.data, part.id) for part in pending(parts).values()])
        self.waiting, self.questions = screen.waiting, screen.questions

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
        self.waiting, self.questions = screen.waiting, screen.questions
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
