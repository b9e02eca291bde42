"""Prints the events of a run as they arrive: the answer on one stream, everything else on another."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from dragoman import events as e
from dragoman.agent.approval_events import QUESTION_PART
from dragoman.agent.meta_tool_calls import batch_entries, call_title
from dragoman.cli.access.question_prompt import Question, question_lines
from dragoman.cli.terminal import join_styled, strip_controls, truncate
from dragoman.json_decoding import DECODE_ERRORS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

MAX_SHOWN = 600  # characters of arguments or of a result that are shown
CALL, DONE, WRONG = "→", "✓", "✗"


class RenderedCall(msgspec.Struct):
    """The state of a tool call that was printed."""

    name: str  # of what runs: the operations, where they are known
    title: str | None = None
    arguments: str = ""
    is_shown: bool = False
    started_at: float = 0.0
    approval_id: str = ""  # the approval it waits or waited for


class EventRenderer:
    """Prints events. `failed` and `metadata` tell afterwards how the run ended.

    `text` gets the answer, `aside` gets reasoning, tool calls and results; both may be the same terminal.
    Without a clock, durations are left out. In `with`, a run is being followed.
    """

    def __init__(
        self, text: Console, aside: Console, *, clock: Callable[[], float] | None = time.monotonic
    ) -> None:
        self.failed = False
        self.reason: str | None = None
        self.metadata: dict[str, Any] = {}
        self.answered: Collection[str] = ()  # approvals that this client has answered
        self.waiting: dict[str, str] = {}  # call names by approval id
        self.questions: dict[str, Question] = {}  # open questions by approval id
        self._text = text
        self._aside = aside
        self._clock = clock
        self._calls: dict[str, RenderedCall] = {}
        self._unfinished: Console | None = None  # the console whose last line is unfinished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.end_line()

    def render(self, batch: Sequence[e.Event]) -> None:
        """Print a batch of events."""
        for event in batch:
            drawing = RENDERERS.get(type(event))
            if drawing is not None:
                drawing(self, event)

    def end_line(self) -> None:
        """End the unfinished line."""
        if self._unfinished is not None:
            self._unfinished.print()
            self._unfinished = None

    def print_aside(self, words: str, style: str = "dim") -> None:
        """Print a line beside the answer."""
        self._print_line(join_styled((words, style)))

    def _print_line(self, line: Text) -> None:
        self.end_line()
        self._aside.print(line)

    def _write_text(self, delta: str) -> None:
        self._write(self._text, delta)

    def _write_reasoning(self, delta: str) -> None:
        self._write(self._aside, delta, style="dim italic")

    def _write(self, console: Console, delta: str, *, style: str | None = None) -> None:
        if self._unfinished is not None and self._unfinished is not console:
            self.end_line()
        words = strip_controls(delta)
        if words:
            console.print(words, end="", style=style)
            self._unfinished = None if words.endswith("\n") else console

    def on_start(self, event: e.Start) -> None:
        self._merge(event.message_metadata)

    def on_text(self, event: e.TextDelta) -> None:
        self._write_text(event.delta)

    def on_reasoning(self, event: e.ReasoningDelta) -> None:
        self._write_reasoning(event.delta)

    def on_block_end(self, _: e.TextEnd | e.ReasoningEnd) -> None:
        self.end_line()

    def on_call_start(self, event: e.ToolInputStart) -> None:
        self._calls[event.tool_call_id] = RenderedCall(event.tool_name, event.title)

    def on_call_delta(self, event: e.ToolInputDelta) -> None:
        self._calls[event.tool_call_id].arguments += event.input_text_delta

    def on_call(self, event: e.ToolInputAvailable) -> None:
        call = self._calls.setdefault(event.tool_call_id, RenderedCall(event.tool_name))
        call.title = event.title
        self._print_inner_calls(call, event.input)

    def on_bad_call(self, event: e.ToolInputError) -> None:
        call = self._calls.setdefault(event.tool_call_id, RenderedCall(event.tool_name))
        self._print_call(call, event.input if isinstance(event.input, str) else compact_json(event.input))
        self._print_result(call, event.error_text, sign=WRONG)

    def on_approval(self, event: e.ToolApprovalRequest) -> None:
        call = self._find_call(event.tool_call_id)
        call.approval_id = event.approval_id
        self.waiting[event.approval_id] = call.name
        if event.approval_id in self.answered:  # the message is streamed again from its beginning
            return
        self.print_aside(f"  {call.name} waits for somebody's approval", "yellow")

    def on_data(self, event: e.Data) -> None:
        if event.type != QUESTION_PART:
            return
        id, question = event.data["id"], event.data
        call = self._find_call(question["toolCallId"])
        if question["status"] == "pending":
            call.approval_id = id
            self.waiting[id], self.questions[id] = call.name, question
            for line in question_lines(question):
                self.print_aside(f"  {line}", "yellow")
        else:
            self.waiting.pop(id, None)
            self.print_aside(
                f"  {question['status']}: {question.get('answer') or question.get('reason') or '-'}"
            )

    def on_output(self, event: e.ToolOutputAvailable) -> None:
        call = self._find_call(event.tool_call_id)
        self._print_result(call, compact_json(event.output), sign="…" if event.preliminary else DONE)

    def on_output_error(self, event: e.ToolOutputError) -> None:
        self._print_result(self._find_call(event.tool_call_id), event.error_text, sign=WRONG)

    def on_denied(self, event: e.ToolOutputDenied) -> None:
        self._print_result(self._find_call(event.tool_call_id), "not allowed, so it was not run", sign=WRONG)

    def on_source_url(self, event: e.SourceUrl) -> None:
        self.print_aside(f"  source: {event.title}, {event.url}" if event.title else f"  source: {event.url}")

    def on_source_document(self, event: e.SourceDocument) -> None:
        self.print_aside(f"  source: {event.title}")

    def on_file(self, event: e.File) -> None:
        self.print_aside(f"  file: {event.media_type} {truncate(event.url, 100)}")

    def on_reset(self, _: e.ResetStep) -> None:
        self.print_aside("  this step is taken back, and made once more:")

    def on_metadata(self, event: e.MessageMetadata) -> None:
        self._merge(event.message_metadata)

    def on_error(self, event: e.ErrorEvent) -> None:
        self.failed = True
        self.print_aside(f"{WRONG} {event.error_text}", "bold red")

    def on_abort(self, event: e.Abort) -> None:
        self.reason = "aborted"
        reason = event.reason or "stopped"
        self.print_aside(reason if reason.startswith("stopped") else f"stopped: {reason}", "yellow")

    def on_finish(self, event: e.Finish) -> None:
        self.end_line()
        self._merge(event.message_metadata)
        self.reason = self.reason or event.finish_reason or "stop"

    def _merge(self, metadata: Any) -> None:
        if isinstance(metadata, dict):
            self.metadata |= metadata

    def _find_call(self, tool_call_id: str) -> RenderedCall:
        return self._calls.get(tool_call_id, RenderedCall("a call"))

    def _print_inner_calls(self, call: RenderedCall, input: Any) -> None:
        """Print a call, named for the operations that it runs."""
        entries = batch_entries(call.name, input)
        call.name = call.title or call_title([entry.tool for entry in entries]) or call.name
        match entries:
            case []:
                self._print_call(call, compact_json(input))
            case [only]:
                self._print_call(call, compact_json(only.input))
            case _:
                calls = "; ".join(f"{each.tool} {compact_json(each.input)}" for each in entries)
                self._print_call(call, calls, name="")

    def _print_call(self, call: RenderedCall, arguments: str, *, name: str | None = None) -> None:
        """Print a call, with another name than its own where the arguments name what is called."""
        call.is_shown = True
        call.started_at = self._clock() if self._clock else 0.0
        arguments = truncate(arguments, MAX_SHOWN)
        label = " ".join(filter(None, (CALL, call.name if name is None else name)))
        self._print_line(join_styled((f"{label} ", "bold cyan"), (arguments, "cyan")))

    def _print_result(self, call: RenderedCall, words: str, *, sign: str = DONE) -> None:
        self.waiting.pop(call.approval_id, None)
        if not call.is_shown:
            try:
                self._print_inner_calls(call, msgspec.json.decode(call.arguments or "{}"))
            except DECODE_ERRORS:
                self._print_call(call, call.arguments)
        style = "red" if sign == WRONG else "green"
        took = f"  {format_duration(self._clock() - call.started_at)}" if self._clock else ""
        result = (truncate(words, MAX_SHOWN), "")
        self._print_line(join_styled((f"  {sign} ", style), result, (f"  {call.name}{took}", "dim")))


RENDERERS: Mapping[type, Callable[[EventRenderer, Any], None]] = {
    e.Start: EventRenderer.on_start,
    e.TextDelta: EventRenderer.on_text,
    e.TextEnd: EventRenderer.on_block_end,
    e.ReasoningDelta: EventRenderer.on_reasoning,
    e.ReasoningEnd: EventRenderer.on_block_end,
    e.ToolInputStart: EventRenderer.on_call_start,
    e.ToolInputDelta: EventRenderer.on_call_delta,
    e.ToolInputAvailable: EventRenderer.on_call,
    e.ToolInputError: EventRenderer.on_bad_call,
    e.ToolApprovalRequest: EventRenderer.on_approval,
    e.Data: EventRenderer.on_data,
    e.ToolOutputAvailable: EventRenderer.on_output,
    e.ToolOutputError: EventRenderer.on_output_error,
    e.ToolOutputDenied: EventRenderer.on_denied,
    e.SourceUrl: EventRenderer.on_source_url,
    e.SourceDocument: EventRenderer.on_source_document,
    e.File: EventRenderer.on_file,
    e.ResetStep: EventRenderer.on_reset,
    e.MessageMetadata: EventRenderer.on_metadata,
    e.ErrorEvent: EventRenderer.on_error,
    e.Abort: EventRenderer.on_abort,
    e.Finish: EventRenderer.on_finish,
}


def compact_json(value: Any) -> str:
    """Format a value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def format_duration(seconds: float) -> str:
    """Format a time span."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def describe_answer(metadata: Mapping[str, Any]) -> str:
    """Describe on one line how a message was made: model, steps, tokens, time."""
    usage = metadata.get("usage") or {}
    steps = metadata.get("steps")
    parts = [
        metadata.get("model"),
        f"{steps} step{'s' * (steps != 1)}" if steps else None,
        f"{usage['inputTokens']} tokens in" if "inputTokens" in usage else None,
        f"{usage['outputTokens']} tokens out" if "outputTokens" in usage else None,
        format_duration(metadata["duration"]) if "duration" in metadata else None,
        f"${metadata['cost']:.4f}" if metadata.get("cost") else None,
    ]
    return " · ".join(str(word) for word in parts if word)
