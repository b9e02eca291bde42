"""A chat with a hub in the terminal: one turn after another; Ctrl-C stops the current one."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Literal, TypeAlias

from dragoman.agent.approval_events import QUESTION_PART, pending_questions
from dragoman.agent.meta_tool_calls import part_title
from dragoman.cli.access.approvals import approval_items
from dragoman.cli.access.question_prompt import Question
from dragoman.cli.chat.renderer import EventRenderer, describe_answer
from dragoman.cli.hub_client.client import EventBatches, HubClient
from dragoman.errors import DragomanError
from dragoman.events import Data
from dragoman.messages import Message, ToolPart

TurnEnd: TypeAlias = Literal["done", "stopped", "failed"]


class ChatSession:
    """One session of a hub, as the terminal chat uses it."""

    def __init__(
        self,
        client: HubClient,
        new_renderer: Callable[[], EventRenderer],
        *,
        session: str | None = None,
        model: str | None = None,
        agent: str | None = None,
    ) -> None:
        self.client = client
        self.model = model
        self.agent = agent
        self.session = session or new_session_id()
        self.pending_approvals: dict[str, str] = {}
        """Approvals that the last answer waits for: call names by approval id."""
        self.questions: dict[str, Question] = {}
        """Questions that the last answer waits for, by approval id."""
        self.answered: set[str] = set()
        """Approvals that were answered here."""
        self.attachments: list[dict[str, str]] = []
        """File parts that go with the next message."""
        self._new_renderer = new_renderer

    def open(self, session: str) -> None:
        """Continue in another session."""
        self.session, self.pending_approvals, self.questions = session, {}, {}

    async def send(self, text: str) -> TurnEnd:
        """Send a message and print the answer."""
        body = chat_request(text, session=self.session, model=self.model, agent=self.agent)
        body["messages"][0]["parts"] += self.attachments
        self.attachments = []
        return await self._render(self.client.chat(body))

    async def answer_approval(self, approval: str, answer: bool | str) -> TurnEnd:
        """Answer an approval or a question, and print how the chat continues."""
        self.answered.add(approval)
        if isinstance(answer, str):
            await self.client.answer(approval, answer)
        else:
            await self.client.decide(approval, approved=answer)
        return await self.resume()

    async def calls_to_approve(self, approval: str) -> list[dict[str, Any]]:
        """Return the calls that an approval is for, as the API shows them; none if the request fails."""
        try:
            return approval_items(await self.client.approval(approval, compare=True))
        except DragomanError:
            return []

    async def resume(self) -> TurnEnd:
        """Print the active answer."""
        return await self._render(self.client.resume(self.session))

    def restore_pending(self, messages: Sequence[Message]) -> None:
        """Print the approvals and questions that the last of these messages waits for."""
        parts = messages[-1].parts if messages else ()
        calls = [part for part in parts if isinstance(part, ToolPart) and part.state == "approval-requested"]
        screen = self._new_renderer()
        screen.waiting = {call.approval.id: part_title(call) for call in calls if call.approval is not None}
        screen.render([Data(QUESTION_PART, part.data, part.id) for part in pending_questions(parts).values()])
        self.pending_approvals, self.questions = screen.waiting, screen.questions

    async def _render(self, batches: EventBatches) -> TurnEnd:
        """Print events until the run ends. The first Ctrl-C stops the run, a second one leaves it running."""
        screen = self._new_renderer()
        screen.answered = self.answered
        following = asyncio.ensure_future(self._follow(batches, screen))
        stopping: list[asyncio.Task[None]] = []

        def interrupt() -> None:
            if stopping:
                for task in (following, *stopping):
                    task.cancel()
            else:
                screen.print_aside("stopping …")
                stopping.append(asyncio.create_task(self.client.stop(self.session)))

        with screen, on_interrupt(interrupt):
            await asyncio.wait([following])
            await asyncio.gather(*stopping, return_exceptions=True)
        if following.cancelled():
            screen.print_aside("left; the hub may still be answering")
            return "stopped"
        following.result()
        return self._finish(screen)

    async def _follow(self, batches: EventBatches, renderer: EventRenderer) -> None:
        async with aclosing(batches):
            async for batch in batches:
                renderer.render(batch)

    def _finish(self, renderer: EventRenderer) -> TurnEnd:
        if renderer.failed:
            return "failed"
        if renderer.reason is None:
            raise DragomanError(
                "the stream ended during the answer; the hub may still continue it",
                hint=f"`dragoman chat --session {self.session}` follows it again",
            )
        self.pending_approvals, self.questions = renderer.waiting, renderer.questions
        renderer.print_aside(describe_answer(renderer.metadata))
        return "stopped" if renderer.reason == "aborted" else "done"


def chat_request(text: str, *, session: str, model: str | None, agent: str | None) -> dict[str, Any]:
    """Return the body of a chat request with one new message."""
    parts = [{"type": "text", "text": text}]
    message = {"id": f"msg_{secrets.token_urlsafe(12)}", "role": "user", "parts": parts}
    choices = {name: value for name, value in (("model", model), ("agent", agent)) if value}
    return {"id": session, "messages": [message], **choices}


def new_session_id() -> str:
    """Return an id for a session that the first message will create."""
    return f"cli-{secrets.token_urlsafe(9)}"


async def run_interruptible(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work ends, or until Ctrl-C cancels it."""
    task = asyncio.ensure_future(work)
    with on_interrupt(task.cancel):
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


@contextmanager
def on_interrupt(handle: Callable[[], object]) -> Iterator[None]:
    """While the block runs, Ctrl-C calls `handle` instead of raising KeyboardInterrupt."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, handle)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
