"""A sub-agent: an agent that another one calls like any operation; it is told a task, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Protocol, Self

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent import closing
from dragoman.agent.callings import Task
from dragoman.agent.loop import Loop
from dragoman.agent.turn import Turn
from dragoman.agent.word import Word, response, word_id
from dragoman.drafts import Draft
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
    message_from,
)
from dragoman.operations.approval import Waiting
from dragoman.operations.arguments.schema import checker
from dragoman.operations.context import Above, Context
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import to_json, to_jsonable

# ---- A glimpse of a sub-agent at work: its answer so far, cut short, as preliminary output of its call.

FIRST_PERIOD = 0.1  # seconds between two glimpses of one that has just begun
LAST_PERIOD = 5.0  # and of one that has worked for long
SHARE = 20  # the period is this part of the time that it has worked
SIZE = 16_000  # bytes of a glimpse
PARTS = 24  # the last ones
TEXT = 2_000  # characters of a text, and of what a tool is given or gives
SMALL = (e.TextDelta, e.ReasoningDelta, e.ToolInputDelta)


class Glimpse:
    """Tells how far a sub-agent is, soon after something happens, and now and then while text grows.

    The longer it works the less often it tells, so that all that it tells stays small beside what it does.
    Use it in `with`.
    """

    def __init__(self, fold: Fold, context: Context) -> None:
        self._fold = fold
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._began = self._next = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._short: dict[int, tuple[ToolPart, Part]] = {}  # by place: the part, and it cut short

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._still()

    def note(self, batch: Sequence[e.Event]) -> None:
        """A batch was folded."""
        if self._context.report is None or isinstance(batch[-1], e.Finish) or not self._fold.entries:
            return
        now = self._loop.time()
        if now >= self._next:
            self._tell()
        elif self._timer is None and not all(isinstance(event, SMALL) for event in batch):
            self._timer = self._loop.call_at(self._next, self._tell)

    def _tell(self) -> None:
        self._still()
        now = self._loop.time()
        self._next = now + min(max(FIRST_PERIOD, (now - self._began) / SHARE), LAST_PERIOD)
        with suppress(CallError):  # what is no JSON is not shown
            self._context.progress(self._seen())

    def _still(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _seen(self) -> dict[str, Any]:
        """The answer so far, as a message that a front end knows how to draw: the last of it that fits."""
        entries, parts, left = self._fold.entries, list[Any](), SIZE
        floor = max(0, len(entries) - PARTS)
        self._short = {at: kept for at, kept in self._short.items() if at >= floor}
        for at in reversed(range(floor, len(entries))):
            part = to_jsonable(self._shortened(at, entries[at]))
            left -= len(msgspec.json.encode(part))
            if left < 0 and parts:
                break
            parts.append(part)
        left_out = len(entries) - len(parts)
        more = {"metadata": {"leftOut": left_out}} if left_out else {}
        return {"id": self._fold.id, "role": "assistant", "parts": parts[::-1], **more}

    def _shortened(self, at: int, entry: Draft) -> Part:
        """The part at a place, cut short; a tool's, which may be big, once only as long as it is the same."""
        part = entry.part()
        if not isinstance(part, ToolPart):
            return shortened(part)
        kept = self._short.get(at)
        if kept is None or kept[0] is not part:
            kept = self._short[at] = part, shortened(part)
        return kept[1]


def shortened(part: Part) -> Part:
    """The part, cut short: of a text the end, of what a tool is given and gives the beginning."""
    if isinstance(part, TextPart | ReasoningPart):
        long = len(part.text) > TEXT
        text = f"…{part.text[-TEXT:]}" if long else part.text
        return msgspec.structs.replace(part, text=text, provider_metadata=None)
    if isinstance(part, FilePart) and len(part.url) > TEXT:
        return TextPart(f"[a file: {part.filename or part.media_type}]")
    if isinstance(part, DataPart):
        return msgspec.structs.replace(part, data=cut(part.data))
    if not isinstance(part, ToolPart):
        return part
    return msgspec.structs.replace(
        part,
        input=cut(part.input),
        output=cut(part.output),
        raw_input=cut(part.raw_input),
        error_text=None if part.error_text is None else part.error_text[:TEXT],
        call_provider_metadata=None,
        result_provider_metadata=None,
    )


def cut(value: Any) -> Any:
    """The value, or the beginning of it as JSON text where it is long."""
    if value is msgspec.UNSET:
        return value
    said = value if isinstance(value, str) else to_json(value).decode()
    return value if len(said) <= TEXT else f"{said[:TEXT]}…"


NAMESPACE = "agents"
DEEPEST = 5  # agents, each of which works for the one before
END_SECONDS = 5.0  # how long hooks that hear of an abort may hold its end up
SAID_LIMIT = 1_000
SCHEMA: Mapping[str, Any] = {
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

    Where it goes on, `answer` is what it had said; `given` and `task` are for its turn, as that has them.
    """

    prompt: Message
    context: Context
    task: Task
    answer: Message | None = None
    given: tuple[e.Event, ...] = ()


class Begin(Protocol):
    """What makes the turn of an assignment."""

    async def __call__(self, assignment: Assignment) -> Turn: ...


class Held(msgspec.Struct, frozen=True):
    """How far a sub-agent had come when it had to wait: its answer so far, and the calls that wait."""

    answer: msgspec.Raw
    waiting: dict[str, Waiting]


class Subagent:
    """Runs an agent as an operation. Its turn is its own; deadline, budget and abort are the caller's."""

    def __init__(self, name: str, begin: Begin) -> None:
        self._name = name
        self._begin = begin

    def operation(
        self, description: str, *, namespace: str = NAMESPACE, timeout: float | None = None
    ) -> Operation:
        """It as an operation: it takes a prompt, and gives its final text, or its value."""
        return Operation(
            namespace=namespace,
            name=self._name,
            description=description,
            input_schema=SCHEMA,
            parse=checker(SCHEMA),
            run=self.run,
            timeout=timeout,
            resumes=True,
            source="agent",
        )

    async def run(self, input: Mapping[str, Any], context: Context) -> Any:
        """Its answer. CallError when there is none; ApprovalNeeded when it has to wait for a word."""
        turn = await self._begin(assigned(input["prompt"], context, name=self._name))
        loop = Loop(turn)
        try:
            with Glimpse(turn.fold, context) as glimpse:
                await played(loop, glimpse)
        finally:
            if context.node is not None:
                context.node.cost += loop.bill or 0.0
        return self._ended(loop)

    def _ended(self, loop: Loop) -> Any:
        """What it comes to."""
        turn, over = loop.turn, loop.over
        if turn.task is not None and turn.task.waiting:
            raise suspended(turn.fold.message(), turn.task.waiting)
        text = "".join(block.text() for block in closing.said(turn.fold))
        if over is not None and over.halt.exit == "success":
            return loop.conclusion.value if turn.output is not None else text
        why = loop.error.message if loop.error is not None else over.halt.why if over is not None else ""
        said = f"; it had come to: {text[:SAID_LIMIT]}" if text else ""
        message = f"{self._name} did not finish: {why or 'it ended without a reason'}{said}"
        transient = loop.error is not None and loop.error.transient
        if is_spent(loop):
            raise BudgetExhausted(message, transient=transient)
        error = CallError(message)
        error.transient = transient
        raise error


async def played(loop: Loop, glimpse: Glimpse) -> None:
    """Run it to its end."""
    async with heard(loop), aclosing(loop.run()) as batches:
        async for batch in batches:
            loop.turn.fold.add(batch)
            glimpse.note(batch)


def is_spent(loop: Loop) -> bool:
    """Whether it ended because there was no more money for it."""
    if loop.error is not None:
        return isinstance(loop.error.__cause__, BudgetExhausted)
    return loop.over is not None and loop.over.halt.exit == "budget_exhausted"


@asynccontextmanager
async def heard(loop: Loop) -> AsyncIterator[None]:
    """Hooks hear of the end also when it is aborted."""
    try:
        yield
    except asyncio.CancelledError:
        telling = asyncio.ensure_future(loop.listening.ended("aborted", loop.so_far()))
        await asyncio.wait([telling], timeout=END_SECONDS)
        raise


def assigned(prompt: str, context: Context, *, name: str) -> Assignment:
    """The assignment: a new one, or one that had to wait and goes on. CallError when it is too deep down."""
    if len(context.within) >= DEEPEST:
        chain = [*(above.agent for above in context.within), context.agent, name]
        names = " > ".join(each for each in chain if each is not None)
        raise CallError(f"agents have agents work for them {DEEPEST} deep at most: {names}")
    said = Message(new_id("msg"), "user", (TextPart(prompt),))
    inside = below(context, name)
    if context.state is None or context.grant is None:
        return Assignment(prompt=said, context=inside, task=Task({}, {}))
    held = msgspec.json.decode(context.state, type=Held)
    waiting, key = dict(held.waiting), next(iter(held.waiting))
    grant = context.grant.below(waiting.pop(key))
    answer = message_from(msgspec.json.decode(held.answer))
    word = Word(word_id(answer.parts, key), grant.approved, grant.said)
    return Assignment(
        prompt=said,
        context=inside,
        answer=answer,
        given=(response(word, answer.parts),),
        task=Task({key: grant}, waiting),
    )


def below(context: Context, name: str) -> Context:
    """What the calls of a sub-agent stand under."""
    judges = () if context.node is None else (Above(context.agent, context.node.caller),)
    return replace(
        context,
        within=(*context.within, *judges),
        agent=name,
        told=True,
        tool_call_id=None,
        report=None,
        grant=None,
        state=None,
        answer=None,
    )


def suspended(answer: Message, waiting: Mapping[str, Waiting]) -> ApprovalNeeded:
    """What is raised when it has to wait: for the first of its calls that do."""
    first = next(iter(waiting.values()))
    held = Held(msgspec.Raw(encode(answer)), dict(waiting))
    state = msgspec.json.encode(held)
    return ApprovalNeeded("it waits for somebody's word", items=first.items, state=state)
