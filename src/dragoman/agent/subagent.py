"""A sub-agent: an agent that another one calls like any operation; it is told a task, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Protocol, Self

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent import outcome
from dragoman.agent.approvals import ApprovalAnswer, pending_approval_id, response_event
from dragoman.agent.loop import Loop
from dragoman.agent.tool_execution import NestedApprovals
from dragoman.agent.turn import TurnSpec
from dragoman.errors import ApprovalNeeded, BudgetExhausted, CallError
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
from dragoman.operations.arguments.validation import make_parser
from dragoman.operations.context import Context, ParentAgent
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import encode_result, to_jsonable
from dragoman.part_builders import PartBuilder

# ---- A glimpse of a sub-agent at work: its answer so far, cut short, as preliminary output of its call.

MIN_PREVIEW_INTERVAL = 0.1  # seconds between two glimpses of one that has just begun
MAX_PREVIEW_INTERVAL = 5.0  # and of one that has worked for long
INTERVAL_DIVISOR = 20  # the period is this part of the time that it has worked
PREVIEW_BYTES = 16_000  # bytes of a glimpse
PREVIEW_PARTS = 24  # the last ones
PREVIEW_TEXT = 2_000  # characters of a text, and of what a tool is given or gives
DELTA_EVENTS = (e.TextDelta, e.ReasoningDelta, e.ToolInputDelta)


class ProgressPreview:
    """Tells how far a sub-agent is, soon after something happens, and now and then while text grows.

    The longer it works the less often it tells, so that all that it tells stays small beside what it does.
    Use it in `with`.
    """

    def __init__(self, fold: Fold, context: Context) -> None:
        self._fold = fold
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._started_at = self._next_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._shortened_parts: dict[int, tuple[ToolPart, Part]] = {}  # by place: the part, and it cut short

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel_timer()

    def update(self, batch: Sequence[e.Event]) -> None:
        """A batch was folded."""
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
        with suppress(CallError):  # what is no JSON is not shown
            self._context.progress(self._preview_message())

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _preview_message(self) -> dict[str, Any]:
        """The answer so far, as a message that a front end knows how to draw: the last of it that fits."""
        entries, parts, left = self._fold.builders, list[Any](), PREVIEW_BYTES
        floor = max(0, len(entries) - PREVIEW_PARTS)
        self._shortened_parts = {at: kept for at, kept in self._shortened_parts.items() if at >= floor}
        for at in reversed(range(floor, len(entries))):
            part = to_jsonable(self._shortened_part(at, entries[at]))
            left -= len(msgspec.json.encode(part))
            if left < 0 and parts:
                break
            parts.append(part)
        left_out = len(entries) - len(parts)
        more = {"metadata": {"leftOut": left_out}} if left_out else {}
        return {"id": self._fold.id, "role": "assistant", "parts": parts[::-1], **more}

    def _shortened_part(self, index: int, entry: PartBuilder) -> Part:
        """The part at a place, cut short; a tool's, which may be big, once only as long as it is the same."""
        part = entry.part()
        if not isinstance(part, ToolPart):
            return shorten_part(part)
        kept = self._shortened_parts.get(index)
        if kept is None or kept[0] is not part:
            kept = self._shortened_parts[index] = part, shorten_part(part)
        return kept[1]


def shorten_part(part: Part) -> Part:
    """The part, cut short: of a text the end, of what a tool is given and gives the beginning."""
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
    """The value, or the beginning of it as JSON text where it is long."""
    if value is msgspec.UNSET:
        return value
    said = value if isinstance(value, str) else encode_result(value).decode()
    return value if len(said) <= PREVIEW_TEXT else f"{said[:PREVIEW_TEXT]}…"


NAMESPACE = "agents"
MAX_DEPTH = 5  # agents, each of which works for the one before
ABORT_HOOK_TIMEOUT = 5.0  # how long hooks that hear of an abort may hold its end up
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
    """What a sub-agent is to do: answer the `prompt`, for whom `context` says.

    Where it goes on, `answer` is what it had said; `input_events` and `nested_approvals` are for its turn,
    as that has them.
    """

    prompt: Message
    context: Context
    nested_approvals: NestedApprovals
    answer: Message | None = None
    input_events: tuple[e.Event, ...] = ()


class MakeTurn(Protocol):
    """What makes the turn of an assignment."""

    async def __call__(self, assignment: Assignment) -> TurnSpec: ...


class SuspendedAnswer(msgspec.Struct, frozen=True):
    """How far a sub-agent had come when it had to wait: its answer so far, and the calls that wait."""

    answer: msgspec.Raw
    waiting: dict[str, SuspendedCall]


class Subagent:
    """Runs an agent as an operation. Its turn is its own; deadline, budget and abort are the caller's."""

    def __init__(self, name: str, make_turn: MakeTurn) -> None:
        self._name = name
        self._make_turn = make_turn

    def operation(
        self, description: str, *, namespace: str = NAMESPACE, timeout: float | None = None
    ) -> Operation:
        """It as an operation: it takes a prompt, and gives its final text, or its value."""
        return Operation(
            namespace=namespace,
            name=self._name,
            description=description,
            input_schema=INPUT_SCHEMA,
            parse=make_parser(INPUT_SCHEMA),
            run=self.run,
            timeout=timeout,
            resumes=True,
            source="agent",
        )

    async def run(self, input: Mapping[str, Any], context: Context) -> Any:
        """Its answer. CallError when there is none; ApprovalNeeded when it has to wait for a word."""
        turn = await self._make_turn(make_assignment(input["prompt"], context, name=self._name))
        loop = Loop(turn)
        try:
            with ProgressPreview(turn.fold, context) as glimpse:
                await run_loop(loop, glimpse)
        finally:
            if context.node is not None:
                context.node.cost += loop.message_cost or 0.0
        return self._read_result(loop)

    def _read_result(self, loop: Loop) -> Any:
        """What it comes to."""
        turn, over = loop.turn, loop.outcome
        if turn.nested_approvals is not None and turn.nested_approvals.waiting:
            raise approval_needed(turn.fold.message(), turn.nested_approvals.waiting)
        text = "".join(block.text() for block in outcome.last_text_blocks(turn.fold))
        if over is not None and over.halt.exit == "success":
            return loop.output.value if turn.output is not None else text
        why = loop.error.message if loop.error is not None else over.halt.why if over is not None else ""
        said = f"; it had come to: {text[:MAX_ERROR_TEXT]}" if text else ""
        message = f"{self._name} did not finish: {why or 'it ended without a reason'}{said}"
        transient = loop.error is not None and loop.error.transient
        if is_out_of_budget(loop):
            raise BudgetExhausted(message, transient=transient)
        error = CallError(message)
        error.transient = transient
        raise error


async def run_loop(loop: Loop, preview: ProgressPreview) -> None:
    """Run it to its end."""
    async with notify_abort(loop), aclosing(loop.run()) as batches:
        async for batch in batches:
            loop.turn.fold.add(batch)
            preview.update(batch)


def is_out_of_budget(loop: Loop) -> bool:
    """Whether it ended because there was no more money for it."""
    if loop.error is not None:
        return isinstance(loop.error.__cause__, BudgetExhausted)
    return loop.outcome is not None and loop.outcome.halt.exit == "budget_exhausted"


@asynccontextmanager
async def notify_abort(loop: Loop) -> AsyncIterator[None]:
    """Hooks hear of the end also when it is aborted."""
    try:
        yield
    except asyncio.CancelledError:
        telling = asyncio.ensure_future(loop.hooks.run_end("aborted", loop.so_far()))
        await asyncio.wait([telling], timeout=ABORT_HOOK_TIMEOUT)
        raise


def make_assignment(prompt: str, context: Context, *, name: str) -> Assignment:
    """The assignment: a new one, or one that had to wait and goes on. CallError when it is too deep down."""
    if len(context.parent_agents) >= MAX_DEPTH:
        chain = [*(above.agent for above in context.parent_agents), context.agent, name]
        names = " > ".join(each for each in chain if each is not None)
        raise CallError(f"agents have agents work for them {MAX_DEPTH} deep at most: {names}")
    said = Message(new_id("msg"), "user", (TextPart(prompt),))
    inside = subagent_context(context, name)
    if context.state is None or context.grant is None:
        return Assignment(prompt=said, context=inside, nested_approvals=NestedApprovals({}, {}))
    held = msgspec.json.decode(context.state, type=SuspendedAnswer)
    waiting, key = dict(held.waiting), next(iter(held.waiting))
    grant = context.grant.for_nested_call(waiting.pop(key))
    answer = parse_message(msgspec.json.decode(held.answer))
    word = ApprovalAnswer(pending_approval_id(answer.parts, key), grant.approved, grant.text)
    return Assignment(
        prompt=said,
        context=inside,
        answer=answer,
        input_events=(response_event(word, answer.parts),),
        nested_approvals=NestedApprovals({key: grant}, waiting),
    )


def subagent_context(context: Context, name: str) -> Context:
    """What the calls of a sub-agent stand under."""
    judges = () if context.node is None else (ParentAgent(context.agent, context.node.caller),)
    return replace(
        context,
        parent_agents=(*context.parent_agents, *judges),
        agent=name,
        for_model=True,
        tool_call_id=None,
        on_progress=None,
        grant=None,
        state=None,
        answer=None,
    )


def approval_needed(answer: Message, waiting: Mapping[str, SuspendedCall]) -> ApprovalNeeded:
    """What is raised when it has to wait: for the first of its calls that do."""
    first = next(iter(waiting.values()))
    held = SuspendedAnswer(msgspec.Raw(encode(answer)), dict(waiting))
    state = msgspec.json.encode(held)
    return ApprovalNeeded("it waits for somebody's word", items=first.items, state=state)
