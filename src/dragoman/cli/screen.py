"""The screen: a run's events drawn as they come; the answer on one stream, all about it on another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman import events as e
from dragoman.agent.word import QUESTION
from dragoman.cli.approvals import Question, lines_of
from dragoman.cli.terminal import cut, printable

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 600  # characters of arguments or of a result that are shown
CALL, DONE, WRONG = "→", "✓", "✗"


class Drawn(msgspec.Struct):
    """A tool call as far as it was drawn."""

    name: str
    written: str = ""
    shown: bool = False
    began: float = 0.0
    approval: str = ""  # that it waits for, or did


class Screen:
    """Draws events. `failed` and `metadata` say afterwards how the run ended.

    `text` takes the answer, `aside` reasoning, tool calls and what came of them; both may be one terminal.
    Without a clock, durations are left out.
    """

    def __init__(
        self, text: Console, aside: Console, *, clock: Callable[[], float] | None = time.monotonic
    ) -> None:
        self.failed = False
        self.reason: str | None = None
        self.metadata: dict[str, Any] = {}
        self.waiting: dict[str, str] = {}  # approvals, and the calls that wait for them
        self.questions: dict[str, Question] = {}  # that are asked, by the approvals that answer them
        self._text = text
        self._aside = aside
        self._clock = clock
        self._calls: dict[str, Drawn] = {}
        self._open: Console | None = None  # where a line is unfinished

    def draw(self, batch: Sequence[e.Event]) -> None:
        """Draw what happened."""
        for event in batch:
            drawing = DRAWINGS.get(type(event))
            if drawing is not None:
                drawing(self, event)

    def end(self) -> None:
        """Finish the line that is open."""
        if self._open is not None:
            self._open.print()
            self._open = None

    def remark(self, words: str, style: str = "dim") -> None:
        """A line beside the answer."""
        self.end()
        self._aside.print(printable(words), style=style)

    def _write(self, place: Console, delta: str, *, style: str | None = None) -> None:
        if self._open is not None and self._open is not place:
            self.end()
        words = printable(delta)
        if words:
            place.print(words, end="", style=style)
            self._open = None if words.endswith("\n") else place

    def on_start(self, event: e.Start) -> None:
        self._merge(event.message_metadata)

    def on_text(self, event: e.TextDelta) -> None:
        self._write(self._text, event.delta)

    def on_reasoning(self, event: e.ReasoningDelta) -> None:
        self._write(self._aside, event.delta, style="dim italic")

    def on_block_end(self, _: e.TextEnd | e.ReasoningEnd) -> None:
        self.end()

    def on_call_start(self, event: e.ToolInputStart) -> None:
        self._calls[event.tool_call_id] = Drawn(event.tool_name)

    def on_call_delta(self, event: e.ToolInputDelta) -> None:
        self._calls[event.tool_call_id].written += event.input_text_delta

    def on_call(self, event: e.ToolInputAvailable) -> None:
        call = self._calls.setdefault(event.tool_call_id, Drawn(event.tool_name))
        self._show(call, compact(event.input))

    def on_bad_call(self, event: e.ToolInputError) -> None:
        call = self._calls.setdefault(event.tool_call_id, Drawn(event.tool_name))
        self._show(call, event.input if isinstance(event.input, str) else compact(event.input))
        self._result(call, event.error_text, sign=WRONG)

    def on_approval(self, event: e.ToolApprovalRequest) -> None:
        call = self._called(event.tool_call_id)
        call.approval = event.approval_id
        self.waiting[event.approval_id] = call.name
        self.remark(f"  {call.name} waits for somebody's approval", "yellow")

    def on_data(self, event: e.Data) -> None:
        if event.type != QUESTION:
            return
        id, question = event.data["id"], event.data
        call = self._called(question["toolCallId"])
        if question["status"] == "pending":
            call.approval = id
            self.waiting[id], self.questions[id] = call.name, question
            for line in lines_of(question):
                self.remark(f"  {line}", "yellow")
        else:
            self.waiting.pop(id, None)
            self.remark(f"  {question['status']}: {question.get('answer') or question.get('reason') or '-'}")

    def on_output(self, event: e.ToolOutputAvailable) -> None:
        call = self._called(event.tool_call_id)
        self._result(call, compact(event.output), sign="…" if event.preliminary else DONE)

    def on_output_error(self, event: e.ToolOutputError) -> None:
        self._result(self._called(event.tool_call_id), event.error_text, sign=WRONG)

    def on_denied(self, event: e.ToolOutputDenied) -> None:
        self._result(self._called(event.tool_call_id), "not allowed, so it was not run", sign=WRONG)

    def on_page(self, event: e.SourceUrl) -> None:
        self.remark(f"  source: {event.title}, {event.url}" if event.title else f"  source: {event.url}")

    def on_document(self, event: e.SourceDocument) -> None:
        self.remark(f"  source: {event.title}")

    def on_file(self, event: e.File) -> None:
        self.remark(f"  file: {event.media_type} {cut(event.url, 100)}")

    def on_reset(self, _: e.ResetStep) -> None:
        self.remark("  this step is taken back, and made once more:")

    def on_metadata(self, event: e.MessageMetadata) -> None:
        self._merge(event.message_metadata)

    def on_error(self, event: e.ErrorEvent) -> None:
        self.failed = True
        self.remark(f"{WRONG} {event.error_text}", "bold red")

    def on_abort(self, event: e.Abort) -> None:
        self.reason = "aborted"
        reason = event.reason or "stopped"
        self.remark(reason if reason.startswith("stopped") else f"stopped: {reason}", "yellow")

    def on_finish(self, event: e.Finish) -> None:
        self.end()
        self._merge(event.message_metadata)
        self.reason = self.reason or event.finish_reason or "stop"

    def _merge(self, metadata: Any) -> None:
        if isinstance(metadata, dict):
            self.metadata |= metadata

    def _called(self, tool_call_id: str) -> Drawn:
        return self._calls.get(tool_call_id, Drawn("a call"))

    def _show(self, call: Drawn, arguments: str) -> None:
        self.end()
        call.shown = True
        call.began = self._clock() if self._clock else 0.0
        self._aside.print(f"{CALL} {printable(call.name)} ", end="", style="bold cyan")
        self._aside.print(printable(cut(arguments, LONGEST)), style="cyan")

    def _result(self, call: Drawn, words: str, *, sign: str = DONE) -> None:
        self.waiting.pop(call.approval, None)
        if not call.shown:
            self._show(call, call.written or "{}")
        self.end()
        style = "red" if sign == WRONG else "green"
        took = f"  {duration(self._clock() - call.began)}" if self._clock else ""
        self._aside.print(f"  {sign} ", end="", style=style)
        self._aside.print(printable(cut(words, LONGEST)), end="")
        self._aside.print(f"  {printable(call.name)}{took}", style="dim")


DRAWINGS: Mapping[type, Callable[[Screen, Any], None]] = {
    e.Start: Screen.on_start,
    e.TextDelta: Screen.on_text,
    e.TextEnd: Screen.on_block_end,
    e.ReasoningDelta: Screen.on_reasoning,
    e.ReasoningEnd: Screen.on_block_end,
    e.ToolInputStart: Screen.on_call_start,
    e.ToolInputDelta: Screen.on_call_delta,
    e.ToolInputAvailable: Screen.on_call,
    e.ToolInputError: Screen.on_bad_call,
    e.ToolApprovalRequest: Screen.on_approval,
    e.Data: Screen.on_data,
    e.ToolOutputAvailable: Screen.on_output,
    e.ToolOutputError: Screen.on_output_error,
    e.ToolOutputDenied: Screen.on_denied,
    e.SourceUrl: Screen.on_page,
    e.SourceDocument: Screen.on_document,
    e.File: Screen.on_file,
    e.ResetStep: Screen.on_reset,
    e.MessageMetadata: Screen.on_metadata,
    e.ErrorEvent: Screen.on_error,
    e.Abort: Screen.on_abort,
    e.Finish: Screen.on_finish,
}


def compact(value: Any) -> str:
    """A value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def duration(seconds: float) -> str:
    """A time span in a word."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def summary(metadata: Mapping[str, Any]) -> str:
    """How a message was made, on one line: model, steps, tokens, time."""
    usage = metadata.get("usage") or {}
    steps = metadata.get("steps")
    said = [
        metadata.get("model"),
        f"{steps} step{'s' * (steps != 1)}" if steps else None,
        f"{usage['inputTokens']} tokens in" if "inputTokens" in usage else None,
        f"{usage['outputTokens']} tokens out" if "outputTokens" in usage else None,
        duration(metadata["duration"]) if "duration" in metadata else None,
    ]
    return " · ".join(str(word) for word in said if word)
