"""A run of a library agent: its events as they happen, its result, and the methods that control it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from dragoman import events as e
from dragoman.agent import run_end
from dragoman.agent.approval_events import (
    ApprovalAnswer,
    pending_questions,
    question_call_id,
    question_parts,
    response_event,
    stored_answer,
)
from dragoman.agent.external_inputs import ExternalInput, ExternalInputs
from dragoman.agent.loop import Batch, Loop
from dragoman.agent.result import (
    RESULT_TYPES,
    Crashed,
    ErrorDetails,
    OutOfContext,
    Result,
    conversation_to_continue,
    error_details,
    summarise_calls,
    summarise_usage,
)
from dragoman.errors import Conflict, DragomanError, NotFound, ProviderError
from dragoman.messages import Message, ToolPart
from dragoman.operations.approval import EXPIRED_REASON
from dragoman.operations.outcome import describe_exception, to_jsonable
from dragoman.operations.worker_threads import running_loop

NOT_RETRIED = "the agent did not retry (retries=0); error.retry_delay says when a retry may help"
CONTENT_FILTERED = ErrorDetails(
    message="the provider's content filter cut the answer", category="content_filter", transient=False
)


def make_result(
    loop: Loop,
    *,
    text: str,
    aborted: str | None = None,
    error: ProviderError | None = None,
    notices: Sequence[str] = (),
) -> Result:
    """Return the result of a finished loop. `text` is what the last step had written when it ended."""
    shared = shared_fields(loop, text=text, notices=notices)
    failure = error or loop.error
    if aborted is not None:
        return RESULT_TYPES["aborted"](stopped_by=aborted, **shared)
    if failure is not None:
        if failure.transient and not loop.turn.retry_policy.retries:
            shared["notices"] = (*notices, NOT_RETRIED)
        if failure.category == "context_limit":
            return OutOfContext(stopped_by=failure.message, **shared)
        return Crashed(error=error_details(failure), **shared)
    outcome = loop.outcome
    if outcome is not None and outcome.reason == "content-filter":
        return Crashed(error=CONTENT_FILTERED, **shared)
    if outcome is None:
        return RESULT_TYPES["unknown"](stopped_by="it ended without a reason", **shared)
    return RESULT_TYPES[outcome.halt.exit](stopped_by=outcome.halt.why or None, **shared)


def unreported_result(loop: Loop, text: str) -> Result:
    """Return the result of a run whose own result could not be made: a crash with what is certain."""
    return Crashed(
        error=ErrorDetails(message=text, category="unknown"),
        text="",
        steps=loop.step_count,
        usage=summarise_usage(loop.usage),
        cost=total_cost(loop),
        duration=0.0,
        session_id=loop.turn.context.session_id or "",
        tool_calls=summarise_calls(()),
        messages=tuple(loop.history),
    )


def total_cost(loop: Loop) -> float | None:
    """Return the US dollars of a run's model calls and of all below it; None while no cost is known."""
    below = loop.turn.context.cost_total
    costs = [usd for usd in (loop.cost, below.usd if below is not None else None) if usd is not None]
    return round(sum(costs), 9) if costs else None


def first_cause(error: BaseException) -> BaseException:
    """Return the first exception of a chain of which each was raised while another was handled."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def shared_fields(loop: Loop, *, text: str, notices: Sequence[str]) -> dict[str, Any]:
    """Return the fields that all results have."""
    turn, so_far = loop.turn, loop.so_far()
    answer = turn.fold.message()
    texts = [step.text for step in so_far.steps if step.text]
    return {
        "text": text or (texts[-1] if texts else ""),
        "steps": loop.step_count,
        "usage": summarise_usage(loop.usage),
        "cost": total_cost(loop),
        "duration": so_far.seconds,
        "session_id": turn.context.session_id or "",
        "tool_calls": summarise_calls([part for part in answer.parts if isinstance(part, ToolPart)]),
        "messages": conversation_to_continue(loop.history, answer),
        "output": loop.output.value,
        "model": so_far.steps[-1].model if so_far.steps else turn.routes.first.model,
        "notices": tuple(notices),
    }


log = logging.getLogger(__name__)
T = TypeVar("T", default=Any)
DEFAULT_ABORT_REASON = "it was aborted"
SHUTDOWN_REASON = "the program is ending"
ABANDONED_REASON = "whoever waited for it was cancelled"
LEFT_REASON = "its async with block was left"
MAX_BATCH = 5_000  # events that a late reader gets at once
RUN_END_HOOK_TIMEOUT = 5.0  # how long hooks may delay the result of an abort


def require_own_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise Conflict in another event loop than the run's: its sockets and tasks belong to that one."""
    if running_loop() is not loop:
        raise Conflict(
            "this run belongs to another event loop",
            hint="wait for it there: asyncio.run_coroutine_threadsafe(...), with the loop that started it",
        )


class Waiters:
    """Counts those who wait for a run. `on_abandoned` is called when the last one is cancelled or closed."""

    def __init__(self, on_abandoned: Callable[[], None]) -> None:
        self._on_abandoned = on_abandoned
        self._count = 0

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._count -= 1
        was_left = kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit)
        if was_left and not self._count:
            self._on_abandoned()


class AwaitableResult(Generic[T]):
    """A future that can be awaited any number of times. Cancelling its last waiter calls `on_abandoned`."""

    def __init__(self, future: asyncio.Future[T], waiters: Waiters) -> None:
        self._future = future
        self._waiters = waiters

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        if self._future.done():
            return self._future.result()
        require_own_loop(self._future.get_loop())
        with self._waiters:
            return await asyncio.shield(self._future)

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._future.done()


class Run(Generic[T]):
    """One answer in progress. It continues whether or not anybody reads its events.

    It is aborted when the last of those who wait for its result or events is cancelled, unless it is
    detached, and when its `async with` block is left.
    """

    def __init__(
        self,
        loop: Loop,
        external_inputs: ExternalInputs | None,
        *,
        on_end: Callable[[Run[T]], None] = lambda _: None,
        notices: Sequence[str] = (),
        is_detached: bool = False,
    ) -> None:
        """`on_end` is called when it is over; `notices` go into its result."""
        self._loop = loop
        self.waiters = Waiters(lambda: None if is_detached else self.abort(ABANDONED_REASON))
        self._fold = loop.turn.fold
        self._external_inputs = external_inputs
        if external_inputs is not None:
            external_inputs.on_wait = self._watch_approvals
        self._on_end = on_end
        self._notices = tuple(notices)
        self._events: list[e.Event] = []
        self._wakeup: asyncio.Event | None = None
        self._abort_reason: str | None = None
        self._expiry_tasks: dict[str, asyncio.Task[None]] = {}  # by approval id
        self._event_loop = asyncio.get_running_loop()
        self._result: asyncio.Future[Result[T]] = self._event_loop.create_future()
        self._task = self._event_loop.create_task(self._run(), name=self.id)
        self._task.add_done_callback(self._ensure_result)
        deadline = loop.turn.context.deadline
        if deadline is not None:
            timer = self._event_loop.call_at(deadline, self.abort, "its time is over")
            self._task.add_done_callback(lambda _: timer.cancel())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort(LEFT_REASON)
        await self.wait_closed()

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {'done' if self._result.done() else 'running'})"

    @property
    def id(self) -> str:
        """The run's id."""
        return self._loop.turn.context.run_id or ""

    @property
    def session_id(self) -> str:
        """The id of the conversation."""
        return self._loop.turn.context.session_id or ""

    @property
    def result(self) -> AwaitableResult[Result[T]]:
        """How the run ended; await it. Raises nothing for what went wrong in the run: see `exit_reason`."""
        return AwaitableResult(self._result, self.waiters)

    @property
    def message(self) -> Message:
        """The answer so far."""
        return self._fold.message()

    async def events(self) -> AsyncIterator[e.Event]:
        """Yield every event from the first as it happens, `finish` last, to any number of readers."""
        async for batch in self.batches():
            for event in batch:
                yield event

    async def batches(self) -> AsyncIterator[Sequence[e.Event]]:
        """Yield what `events` yields, in lists of those that are there already."""
        index = 0
        while True:
            while index < len(self._events):
                batch = self._events[index : index + MAX_BATCH]
                index += len(batch)
                yield batch
            if self._result.done():
                return
            require_own_loop(self._event_loop)
            self._wakeup = self._wakeup or asyncio.Event()
            with self.waiters:
                await self._wakeup.wait()

    def abort(self, reason: str = DEFAULT_ABORT_REASON) -> None:
        """Stop the run now: the provider connection is closed, calls are cancelled. May be called in any
        thread; does nothing once the run has ended.
        """
        if self._abort_reason is None and not self._result.done():
            self._abort_reason = reason
            # not at once: the task's first step has to run before it can be cancelled
            with suppress(RuntimeError):  # its event loop was closed
                self._event_loop.call_soon_threadsafe(self._task.cancel)

    async def wait_closed(self) -> None:
        """Wait until the run and the hooks on its end are done."""
        await asyncio.wait([self._task])

    def add_tool_result(self, tool_call_id: str, output: Any = None, *, error: str | None = None) -> None:
        """Submit the output of a call that runs outside, or its error. May be called in any thread.

        Raises NotFound for an unknown call; Conflict for one that has its output already or does not run
        outside.
        """
        call = self._find_call(tool_call_id)
        if tool_call_id in pending_questions(self.message.parts):
            raise Conflict(f"the tool call {tool_call_id!r} asks a question", hint="await run.answer(...)")
        if call.state != "input-available" or self._loop.turn.toolbox.kind(call.name) != "client":
            state = "waits for an approval" if call.state == "approval-requested" else "is not run outside"
            raise Conflict(f"the tool call {tool_call_id!r} ({call.name}) {state}")
        if error is not None:
            self._submit_input(e.ToolOutputError(tool_call_id, error))
        else:
            self._submit_input(e.ToolOutputAvailable(tool_call_id, to_jsonable(output)))

    async def approve(self, approval_id: str, approved: bool = True, *, reason: str | None = None) -> None:
        """Answer an approval request; the run continues. Raises NotFound, Forbidden, Conflict."""
        require_own_loop(self._event_loop)
        turn = self._loop.turn
        by = turn.context.identity
        stored = await turn.toolbox.answer_approval(approval_id, approved=approved, by=by, reason=reason)
        self._submit_input(response_event(stored_answer(stored), self.message.parts))

    async def deny(self, approval_id: str, *, reason: str | None = None) -> None:
        """Decline an approval request: the call does not run and the model is told."""
        await self.approve(approval_id, approved=False, reason=reason)

    async def answer(self, question: str, text: str) -> None:
        """Answer a question of the model; the run continues. `question` is its id, or that of its tool call.

        Raises NotFound, Forbidden, Conflict.
        """
        parts = [
            part
            for part in question_parts(self.message.parts)
            if question in (part.id, question_call_id(part.data))
        ]
        if not parts:
            raise NotFound(f"there is no question {question!r} in this run")
        await self.approve(parts[-1].id or "", reason=text)

    def _find_call(self, tool_call_id: str) -> ToolPart:
        calls = [call for call in self._fold.step_calls() if call.tool_call_id == tool_call_id]
        if not calls:
            raise NotFound(f"there is no tool call {tool_call_id!r} in this step")
        return calls[0]

    def _submit_input(self, input: ExternalInput) -> None:
        if self._result.done():
            raise Conflict(f"run {self.id} has ended; it accepts no more inputs")
        if self._external_inputs is None:
            return
        if running_loop() is self._event_loop:
            self._external_inputs.submit(input)
        else:
            self._event_loop.call_soon_threadsafe(self._external_inputs.submit_first, input)

    async def _run(self) -> None:
        try:
            await self._consume_loop()
        except asyncio.CancelledError:
            await self._finish_aborted(self._abort_reason or SHUTDOWN_REASON)
        except Exception as error:  # noqa: BLE001 - the top of this task; _crashed logs it
            await self._finish_crashed(error)

    async def _consume_loop(self) -> None:
        async with aclosing(self._loop.run()) as batches:
            async for batch in batches:
                if type(batch[-1]) is e.Finish:
                    self._finish(batch)
                else:
                    self._append_batch(batch)

    def _append_batch(self, batch: Batch) -> None:
        self._fold.add(batch)
        self._events.extend(batch)
        self._wake_listeners()

    def _watch_approvals(self, calls: Sequence[ToolPart]) -> None:
        """Start the expiry timers of the approvals and questions that the run waits for."""
        ids = {call.approval.id for call in calls if call.approval is not None}
        ids |= {str(part.id) for part in pending_questions(self.message.parts).values()}
        for id in ids - set(self._expiry_tasks):
            self._expiry_tasks[id] = asyncio.ensure_future(self._expire_approval(id))

    async def _expire_approval(self, id: str) -> None:
        """Wait until the approval expires; an expired approval is declined."""
        toolbox = self._loop.turn.toolbox
        while True:
            left = await toolbox.seconds_left(id)
            if left <= 0:
                break
            await asyncio.sleep(left)  # then look again: the store's clock may differ
        stored = await toolbox.expire_approval(id)
        if stored.status == "expired":
            with suppress(Conflict):
                self._submit_input(
                    response_event(
                        ApprovalAnswer(id, approved=False, text=EXPIRED_REASON), self.message.parts
                    )
                )

    def _wake_listeners(self) -> None:
        if self._wakeup is not None:
            wakeup, self._wakeup = self._wakeup, None
            wakeup.set()

    def _finish(
        self, last_batch: Batch, *, aborted: str | None = None, error: ProviderError | None = None
    ) -> None:
        """Fold the last batch and set the result."""
        text = "".join(block.text() for block in run_end.last_text_blocks(self._fold))
        self._fold.add(last_batch)
        self._events.extend(last_batch)
        result = make_result(self._loop, text=text, aborted=aborted, error=error, notices=self._notices)
        total = self._loop.turn.context.cost_total
        if total is not None and total.parent is not None:  # a run within a call of another
            total.parent.add(self._loop.cost)
        if not self._result.done():
            self._result.set_result(result)
        self._wake_listeners()
        for expiry in self._expiry_tasks.values():
            expiry.cancel()
        self._on_end(self)

    async def _finish_aborted(self, reason: str) -> None:
        if self._result.done():
            return
        loop = self._loop
        await self._wait_for_cost()
        self._finish(
            run_end.abort_events(self._fold, reason=reason, metadata=loop.message_metadata("aborted")),
            aborted=reason,
        )
        await self._notify_hooks("aborted", None)

    async def _finish_crashed(self, error: Exception) -> None:
        if self._result.done():
            log.error("run %s failed after its end", self.id, exc_info=error)
            return
        log.error("run %s failed", self.id, exc_info=error)
        text = error.message if isinstance(error, DragomanError) else describe_exception(error)
        failure = error if isinstance(error, ProviderError) else ProviderError(text, category="unknown")
        await self._wait_for_cost()
        ending = run_end.failure_events(
            self._fold, text=text, code="internal", metadata=self._loop.message_metadata("error")
        )
        self._finish(ending, error=failure)
        await self._notify_hooks("error", text, failure=failure)

    async def _wait_for_cost(self) -> None:
        """Wait until the cost of the run is available."""
        await self._loop.turn.payment.ready()

    async def _notify_hooks(
        self, reason: str, error: str | None, *, failure: ProviderError | None = None
    ) -> None:
        """Report the end to hooks, for at most RUN_END_HOOK_TIMEOUT seconds."""
        report = self._loop.hooks.run_end(reason, self._loop.so_far(), error=error, failure=failure)
        try:
            async with asyncio.timeout(RUN_END_HOOK_TIMEOUT):
                await report
        except TimeoutError:
            log.warning("hooks on the end of run %s timed out", self.id)

    def _ensure_result(self, task: asyncio.Task[None]) -> None:
        """Set a result however the task ended, also when reporting its end has failed."""
        if self._result.done():
            return
        failure = None if task.cancelled() else task.exception()
        if failure is None:
            ending = run_end.abort_events(self._fold, reason=SHUTDOWN_REASON)
            with suppress(Exception):
                self._finish(ending, aborted=SHUTDOWN_REASON)
        if not self._result.done():
            text = "its end could not be reported"
            text = text if failure is None else f"{text}: {describe_exception(first_cause(failure))}"
            log.error("run %s: %s", self.id, text, exc_info=failure)
            self._result.set_result(unreported_result(self._loop, text))
            self._wake_listeners()
            self._on_end(self)
