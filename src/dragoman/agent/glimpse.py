"""A glimpse of a sub-agent at work: its answer so far, cut short, as preliminary output of its call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec

from dragoman import events as e
from dragoman.drafts import Draft
from dragoman.errors import CallError
from dragoman.fold import Fold
from dragoman.messages import DataPart, FilePart, Part, ReasoningPart, TextPart, ToolPart
from dragoman.operations.context import Context
from dragoman.operations.outcome import to_json, to_jsonable

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
