"""Sub-agents: an agent that another agent calls like any operation, with its progress as preliminary
output.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Protocol, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent import run_end
from dragoman.agent.approval_events import ApprovalAnswer, pending_approval_id, response_event
from dragoman.agent.loop import Loop
from dragoman.agent.restoration import RestoredAnswer, restore_answer
from dragoman.agent.tools.tool_execution import NestedApprovals
from dragoman.agent.turn_spec import TurnSpec
from dragoman.errors import ApprovalNeeded, BudgetExhausted, CallError, CallUncertain
from dragoman.fold import Fold
from dragoman.ids import new_id
from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolPart,
    encode,
    parse_message,
)
from dragoman.operations.approval import SuspendedCall
from dragoman.operations.arguments.validation import make_late_parser
from dragoman.operations.budget import CostTotal
from dragoman.operations.context import Context, ParentAgent
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import encode_result, to_jsonable
from dragoman.part_builders import PartBuilder

# Progress previews

MIN_PREVIEW_INTERVAL = 0.1  # seconds between two previews of a sub-agent that has just begun
MAX_PREVIEW_INTERVAL = 5.0  # and of one that has worked for long
INTERVAL_DIVISOR = 20  # the interval is a twentieth of the time that it has worked
PREVIEW_BYTES = 16_000
PREVIEW_PARTS = 24  # the last parts of the answer
PREVIEW_TEXT = 2_000  # characters of a text, and of a tool's input and output
DELTA_EVENTS = (e.TextDelta, e.ReasoningDelta, e.ToolInputDelta)
SAVED_AT = frozenset(
    {
        e.ToolInputAvailable,
        e.ToolInputError,
        e.ToolOutputAvailable,
        e.ToolOutputError,
        e.ToolOutputDenied,
        e.ToolApprovalRequest,
        e.ToolApprovalResponse,
        e.Data,
        e.StartStep,
    }
)
"""Events after which the answer is saved, so that it can continue after a crash without repeating a call."""


class ProgressPreview:
    """Sends the progress of a sub-agent to its caller: soon after an event, and now and then while text
    grows.

    The longer the sub-agent runs, the longer the interval, so that the progress stays small beside the
    work.
    Use as a context manager.
    """

    def __init__(self, fold: Fold, context: Context) -> None:
        self._fold = fold
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._started_at = self._next_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._shortened_parts: dict[int, tuple[ToolPart, Part]] = {}  # by index: the part, and its short form

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel_timer()

    def update(self, batch: Sequence[e.Event]) -> None:
        """Schedule a preview after a batch was folded."""
        if self._context.on_progress is None or isinstance(batch[-1], e.Finish) or not self._fold.builders:
            return
        now = self._loop.time()
        if now >= self._next_at:
            self._send()
        elif self._timer is None and not all(isinstance(event, DELTA_EVENTS) for event in batch):
            self._timer = self._loop.call_at(self._next_at, self._send)

    def _send(self) -> None:
        self._cancel_timer()
        now = self._loop.time()
        self._next_at = now + min(
            max(MIN_PREVIEW_INTERVAL, (now - self._started_at) / INTERVAL_DIVISOR), MAX_PREVIEW_INTERVAL
        )
        with suppress(CallError):  # a value that cannot be JSON is not shown
            self._context.progress(self._preview_message())

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _preview_message(self) -> dict[str, Any]:
        """Return the end of the answer so far, as a UI message that fits PREVIEW_BYTES."""
        entries, parts, bytes_left = self._fold.builders, list[Any](), PREVIEW_BYTES
        first = max(0, len(entries) - PREVIEW_PARTS)
        self._shortened_parts = {
            index: shortened for index, shortened in self._shortened_parts.items() if index >= first
        }
        for index in reversed(range(first, len(entries))):
            part = to_jsonable(self._shortened_part(index, entries[index]))
            bytes_left -= len(msgspec.json.encode(part))
            if bytes_left < 0 and parts:
                break
            parts.append(part)
        left_out = len(entries) - len(parts)
        more = {"metadata": {"leftOut": left_out}} if left_out else {}
        return {"id": self._fold.id, "role": "assistant", "parts": parts[::-1], **more}

    def _shortened_part(self, index: int, entry: PartBuilder) -> Part:
        """Return a part cut short; a tool part, which may be big, is cut once while it is unchanged."""
        part = entry.part()
        if not isinstance(part, ToolPart):
            return shorten_part(part)
        cached = self._shortened_parts.get(index)
        if cached is None or cached[0] is not part:
            cached = self._shortened_parts[index] = part, shorten_part(part)
        return cached[1]


def shorten_part(part: Part) -> Part:
    """Return the part cut short: the end of a text, the beginning of tool inputs and outputs."""
    if isinstance(part, TextPart | ReasoningPart):
        long = len(part.text) > PREVIEW_TEXT
        text = f"…{part.text[-PREVIEW_TEXT:]}" if long else part.text
        return msgspec.structs.replace(part, text=text, provider_metadata=None)
    if isinstance(part, FilePart) and len(part.url) > PREVIEW_TEXT:
        return TextPart(f"[a file: {part.filename or part.media_type}]")
    if isinstance(part, DataPart):
        return msgspec.structs.replace(part, data=shorten_value(part.data))
    if not isinstance(part, ToolPart):
        return part
    return msgspec.structs.replace(
        part,
        input=shorten_value(part.input),
        output=shorten_value(part.output),
        raw_input=shorten_value(part.raw_input),
        error_text=None if part.error_text is None else part.error_text[:PREVIEW_TEXT],
        call_provider_metadata=None,
        result_provider_metadata=None,
    )


def shorten_value(value: Any) -> Any:
    """Return the value, or the beginning of its JSON text if it is long."""
    if value is msgspec.UNSET:
        return value
    text = value if isinstance(value, str) else encode_result(value).decode()
    return value if len(text) <= PREVIEW_TEXT else f"{text[:PREVIEW_TEXT]}…"


NAMESPACE = "agents"
MAX_DEPTH = 5  # nested sub-agents
ABORT_HOOK_TIMEOUT = 5.0  # how long hooks may delay the end of an abort
MAX_ERROR_TEXT = 1_000
INPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "prompt": {
            "type": "string",
            "minLength": 1,
            "description": "The whole task, with all that is needed for it: it sees nothing else.",
        },
    },
    "required": ["prompt"],
    "additionalProperties": False,
}


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a sub-agent: answer the `prompt` within `context`.

    If it resumes, `answer` is its message so far; `input_events` and `nested_approvals` go into its turn.
    `restored` is the same message when a crash had cut it off.
    """

    prompt: Message
    context: Context
    nested_approvals: NestedApprovals
    answer: Message | None = None
    input_events: tuple[e.Event, ...] = ()
    restored: RestoredAnswer | None = None


class AnswerJournal(Protocol):
    """Stores the answers of sub-agents while they work. A library run has none."""

    def save(self, call_id: str, answer: Fold) -> None:
        """Store what has changed, before any call that is recorded later."""

    async def load(self, call_id: str) -> Sequence[Part]:
        """Return what was stored of an answer."""


SaveAnswer: TypeAlias = Callable[[Fold], None]
MakeTurn: TypeAlias = Callable[[Assignment], Awaitable[TurnSpec]]


class SuspendedAnswer(msgspec.Struct, frozen=True):
    """The state of a sub-agent that waits: its answer so far, and the waiting calls. Stored as JSON with the
    call.
    """

    answer: msgspec.Raw
    waiting: dict[str, SuspendedCall]


class Subagent:
    """Runs an agent as an operation. It has its own turn; deadline, budget and abort are the caller's."""

    def __init__(self, name: str, make_turn: MakeTurn, *, journal: AnswerJournal | None = None) -> None:
        self._name = name
        self._make_turn = make_turn
        self._journal = journal

    def operation(
        self, description: str, *, namespace: str = NAMESPACE, timeout: float | None = None
    ) -> Operation:
        """Return it as an operation that takes a prompt and returns the final text, or the value."""
        return Operation(
            namespace=namespace,
            name=self._name,
            description=description,
            input_schema=INPUT_SCHEMA,
            parse=make_late_parser(INPUT_SCHEMA),
            run=self.run,
            timeout=timeout,
            resumes=True,
            source="agent",
        )

    async def run(self, input: Mapping[str, Any], context: Context) -> Any:
        """Return the answer. Raises CallError without one; ApprovalNeeded when it has to wait."""
        assignment = make_assignment(input["prompt"], context, name=self._name)
        assignment = await self._restore(assignment, context)
        turn, save = await self._make_turn(assignment), self._saver(context)
        if assignment.restored is not None:
            turn.fold.dirty = set(range(assignment.restored.part_count + 1))
            save(turn.fold)
        loop = Loop(turn)
        try:
            with ProgressPreview(turn.fold, context) as preview:
                await run_loop(loop, preview, save=save)
        finally:
            if context.node is not None:
                context.node.cost += loop.message_cost or 0.0
            if context.cost_total is not None:
                context.cost_total.add(loop.cost)
        return self._read_result(loop)

    async def _restore(self, assignment: Assignment, context: Context) -> Assignment:
        """Return the assignment with the answer as far as it had got before a crash."""
        if self._journal is None or context.replayed_calls is None or context.call_id is None:
            return assignment
        if context.state is not None:  # it waited for an approval, and has not resumed yet
            return assignment
        parts = await self._journal.load(context.call_id)
        if not parts:
            return assignment
        calls = context.replayed_calls.children(context.call_id)
        restored = restore_answer(Message(new_id("msg"), "assistant", tuple(parts)), calls)
        if not restored.can_repeat:
            raise CallUncertain(
                f"{self._name} was interrupted by a crash, and its provider runs tools itself"
            )
        return replace(assignment, answer=restored.message, restored=restored, input_events=())

    def _saver(self, context: Context) -> SaveAnswer:
        journal, call_id = self._journal, context.call_id
        if journal is None or call_id is None or context.run_id is None:
            return lambda _: None
        return lambda answer: journal.save(call_id, answer)

    def _read_result(self, loop: Loop) -> Any:
        """Return the result of the finished loop."""
        turn, outcome = loop.turn, loop.outcome
        if turn.nested_approvals is not None and turn.nested_approvals.waiting:
            raise approval_needed(turn.fold.message(), turn.nested_approvals.waiting)
        text = "".join(block.text() for block in run_end.last_text_blocks(turn.fold))
        if outcome is not None and outcome.halt.exit == "success":
            return loop.output.value if turn.output is not None else text
        halted = outcome.halt.why if outcome is not None else ""
        why = loop.error.message if loop.error is not None else halted
        text_so_far = f"; its text so far: {text[:MAX_ERROR_TEXT]}" if text else ""
        message = f"{self._name} did not finish: {why or 'it ended without a reason'}{text_so_far}"
        transient = loop.error is not None and loop.error.transient
        if is_out_of_budget(loop):
            raise BudgetExhausted(message, transient=transient)
        error = CallError(message)
        error.transient = transient
        raise error


async def run_loop(loop: Loop, preview: ProgressPreview, *, save: SaveAnswer) -> None:
    """Run the loop to its end. The answer is saved before the calls of a step run, and after each of them."""
    fold = loop.turn.fold
    async with notify_abort(loop), aclosing(loop.run()) as batches:
        async for batch in batches:
            fold.add(batch)
            if any(is_saved_at(event) for event in batch):
                save(fold)
            preview.update(batch)


def is_saved_at(event: e.Event) -> bool:
    """Return whether the answer is saved after this event."""
    return type(event) in SAVED_AT and not getattr(event, "preliminary", None)


def is_out_of_budget(loop: Loop) -> bool:
    """Return whether a budget ended the loop."""
    if loop.error is not None:
        return isinstance(loop.error.__cause__, BudgetExhausted)
    return loop.outcome is not None and loop.outcome.halt.exit == "budget_exhausted"


@asynccontextmanager
async def notify_abort(loop: Loop) -> AsyncIterator[None]:
    """Report the end to hooks also when the loop is cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        report = asyncio.ensure_future(loop.hooks.run_end("aborted", loop.so_far()))
        await asyncio.wait([report], timeout=ABORT_HOOK_TIMEOUT)
        raise


def check_depth(above: CostTotal | None, name: str) -> None:
    """Raise CallError for a run within a call of another that is nested too deep; `above` is its total."""
    if above is not None and above.depth >= MAX_DEPTH:
        raise CallError(f"agents may be nested {MAX_DEPTH} deep at most, and {name} would be deeper")


def make_assignment(prompt: str, context: Context, *, name: str) -> Assignment:
    """Return a new assignment, or one that resumes. Raises CallError when agents are nested too deep."""
    if len(context.parent_agents) >= MAX_DEPTH:
        chain = [*(above.agent for above in context.parent_agents), context.agent, name]
        names = " > ".join(each for each in chain if each is not None)
        raise CallError(f"agents may be nested {MAX_DEPTH} deep at most: {names}")
    message = Message(new_id("msg"), "user", (TextPart(prompt),))
    own_context = subagent_context(context, name)
    if context.state is None or context.grant is None:
        return Assignment(prompt=message, context=own_context, nested_approvals=NestedApprovals({}, {}))
    suspended = msgspec.json.decode(context.state, type=SuspendedAnswer)
    waiting, key = dict(suspended.waiting), next(iter(suspended.waiting))
    grant = context.grant.for_nested_call(waiting.pop(key))
    answer = parse_message(msgspec.json.decode(suspended.answer))
    approval = ApprovalAnswer(pending_approval_id(answer.parts, key), grant.approved, grant.text)
    return Assignment(
        prompt=message,
        context=own_context,
        answer=answer,
        input_events=(response_event(approval, answer.parts),),
        nested_approvals=NestedApprovals({key: grant}, waiting),
    )


def subagent_context(context: Context, name: str) -> Context:
    """Return the context of a sub-agent's calls."""
    parent = () if context.node is None else (ParentAgent(context.agent, context.node.caller),)
    return replace(
        context,
        parent_agents=(*context.parent_agents, *parent),
        agent=name,
        for_model=True,
        tool_call_id=None,
        on_progress=None,
        grant=None,
        state=None,
        answer=None,
        activations=[] if context.activations is None else context.activations,
    )


def approval_needed(answer: Message, waiting: Mapping[str, SuspendedCall]) -> ApprovalNeeded:
    """Return the error that suspends the sub-agent until the first of its waiting calls is answered."""
    first = next(iter(waiting.values()))
    suspended = SuspendedAnswer(msgspec.Raw(encode(answer)), dict(waiting))
    state = msgspec.json.encode(suspended)
    return ApprovalNeeded("the sub-agent waits for an approval", items=first.items, state=state)
