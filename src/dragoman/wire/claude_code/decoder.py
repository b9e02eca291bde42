"""Decode Claude Code's stream: the lines of `claude --print --output-format stream-json` to events.

One answer is a whole run: several messages, and the tools that Claude Code called between them, which become
calls that the provider executed. Output of its sub-agents is omitted. A result need not be the end: the CLI
waits for background commands and reports them in another turn. Sources: its reference, and the output of
version 2.1.197 (system, stream_event, assistant, user, result).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import asdict

from dragoman import events as e
from dragoman.errors import BudgetExhausted, ProviderCategory, ProviderError
from dragoman.json_decoding import DECODE_ERRORS, mend_json, replace_surrogates
from dragoman.wire.anthropic.chunk import read_chunk
from dragoman.wire.anthropic.event_builder import FINISH_REASONS, AnthropicEventBuilder
from dragoman.wire.anthropic.usage import AnthropicUsage
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.provider_errors import provider_error


class ClaudeCodeMessage(msgspec.Struct, frozen=True):
    """A message of the CLI; `type` and `subtype` identify it."""

    type: str
    subtype: str = ""
    session_id: str | None = None
    parent_tool_use_id: str | None = None
    model: str | None = None
    agents: Any = None
    task_id: str | None = None
    patch: Any = None
    event: msgspec.Raw = msgspec.Raw()
    message: Any = None
    error: Any = None
    is_error: bool = False
    result: Any = None
    errors: Any = None
    usage: Any = None
    models: Any = msgspec.field(default=None, name="modelUsage")
    total_cost_usd: float | None = None
    num_turns: int | None = None
    stop_reason: str | None = None
    api_error_status: int | None = None


_decoder = msgspec.json.Decoder(ClaudeCodeMessage)


def read_line(raw: bytes) -> ClaudeCodeMessage | None:
    """Parse a line; None if it is not a message."""
    try:
        return _decoder.decode(raw)
    except DECODE_ERRORS:
        return _read_with_surrogates(raw)


def _read_with_surrogates(raw: bytes) -> ClaudeCodeMessage | None:
    """Parse a line with lone surrogates. In a stream event they are kept: the other half may follow."""
    if mend_json(raw) is None:
        return None
    try:
        value = parse_lenient_json(raw, keeps_halves=True)
        event = value.pop("event", None)
        message = msgspec.convert(replace_surrogates(value), ClaudeCodeMessage)
    except (ValueError, AttributeError, RecursionError):
        return None
    return (
        message if event is None else msgspec.structs.replace(message, event=msgspec.Raw(json.dumps(event)))
    )


FAMILY = "claude-code"
SESSION_KEY = "sessionId"
_SYNTHETIC_MODEL = "<synthetic>"  # the model name of the CLI's own messages
_ENDED_STATUSES = frozenset({"completed", "failed", "killed", "stopped"})

_BlockEvent: TypeAlias = (
    e.TextStart | e.TextDelta | e.TextEnd | e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd
)
_CallEvent: TypeAlias = e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError


class ClaudeCodeDecoder:
    """Decodes one answer. `session_id` is known after the first line.

    `agent` is the agent that must answer: the CLI silently uses another one if it does not know it.
    """

    def __init__(self, *, provider: str, model: str, agent: str | None = None) -> None:
        self.session_id: str | None = None
        self.unparsed_line = ""
        """The last line that is not a message."""
        self._provider = provider
        self._model = model
        self._agent = agent
        self._message_numbers = count(1)
        self._builder: AnthropicEventBuilder | None = None
        self._message_number = 0
        self._streamed_ids: set[str] = set()  # ids of messages that were streamed
        self._open_blocks: dict[str, type[e.TextEnd | e.ReasoningEnd]] = {}  # end event types, by id
        self._open_calls: dict[str, str] = {}  # tool names of calls with incomplete arguments, by id
        self._calls_without_output: dict[str, None] = {}  # an ordered set of ids
        self._early_calls: set[str] = set()  # ids of calls emitted before their message reached them
        self._background_tasks: set[str] = set()  # ids
        self._error_kind: str | None = None  # from the last message
        self._turn_count = 0
        self._finish_event: e.FinishStep | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result and no background command is running."""
        return self._finish_event is not None and not self._background_tasks

    def close(self) -> list[e.Event]:
        """Return the finish at the end of the output; nothing if there is no result."""
        self._background_tasks.clear()
        return [] if self._finish_event is None else [*self._close_calls(), self._finish_event]

    def feed(self, raw: bytes) -> list[e.Event]:
        """Return the events of one line. Raises ProviderError if it reports a failure.

        A line that is not a message is ignored, and kept in `unparsed_line`.
        """
        message = read_line(raw)
        if message is None:
            self.unparsed_line = raw.decode(errors="replace").strip() or self.unparsed_line
            return []
        self.session_id = message.session_id or self.session_id
        if message.parent_tool_use_id is not None:
            return []
        match message.type:
            case "system":
                self._read_system(message)
                return []
            case "stream_event":
                return self._read_stream_event(bytes(message.event))
            case "assistant":
                return self._read_message(message)
            case "user":
                return self._read_tool_outputs(message.message)
            case "result":
                return self._finish(message)
            case _:
                return []

    def _read_system(self, message: ClaudeCodeMessage) -> None:
        """Handle a system message: the start of a turn, and background commands."""
        match message.subtype:
            case "init":
                self._start_turn(message)
            case "task_started" if message.task_id is not None:
                self._background_tasks.add(message.task_id)
            case "task_updated" if (
                isinstance(message.patch, Mapping) and message.patch.get("status") in _ENDED_STATUSES
            ):
                self._background_tasks.discard(message.task_id or "")
            case "task_notification":
                self._background_tasks.discard(message.task_id or "")
            case _:
                pass

    def _start_turn(self, message: ClaudeCodeMessage) -> None:
        self._model = message.model or self._model
        self._finish_event = None
        if self._agent is not None and isinstance(message.agents, list) and self._agent not in message.agents:
            raise ProviderError(
                f"Claude Code has no agent {self._agent!r}",
                category="bad_request",
                hint=f"available agents: {', '.join(map(str, message.agents))}; "
                "agents of a project are found by `cwd`",
            )

    def _read_stream_event(self, raw: bytes) -> list[e.Event]:
        """Handle a stream event in the format of Anthropic's API."""
        try:
            chunk = read_chunk(raw)
        except ValueError:
            return []
        if chunk is None or chunk.type in ("message_stop", "ping"):
            return []
        if chunk.type == "error":
            return []  # the CLI retries by itself, or reports it in its result
        closing: list[e.Event] = []
        if chunk.type == "message_start" or self._builder is None:
            closing = self._close_open()
            self._builder = self._new_builder()
            if isinstance(chunk.message, Mapping) and isinstance(chunk.message.get("id"), str):
                self._streamed_ids.add(chunk.message["id"])
        self._builder.add_chunk(chunk)
        return [*closing, *self._take_events(self._builder)]

    def _new_builder(self) -> AnthropicEventBuilder:
        message_number = self._message_number = next(self._message_numbers)
        numbers = count(1)
        return AnthropicEventBuilder(
            provider=self._provider,
            model=self._model,
            new_id=lambda: f"call_{message_number}_{next(numbers)}",
            used_ids=(),
        )

    def _read_message(self, outer: ClaudeCodeMessage) -> list[e.Event]:
        """Handle a complete message; it is ignored if it was streamed."""
        message = outer.message if isinstance(outer.message, Mapping) else {}
        if isinstance(outer.error, str):
            self._error_kind = outer.error
        if outer.error or message.get("model") == _SYNTHETIC_MODEL:
            return []
        if message.get("id") in self._streamed_ids:
            return self._early_inputs(message.get("content"))
        self._builder = None  # the streamed message was another one
        closing, answer = self._close_open(), self._new_builder()
        answer.add_message(message)
        return [*closing, *self._take_events(answer)]

    def _early_inputs(self, content: Any) -> list[e.Event]:
        """Return calls of a message that is still streaming: the CLI runs them at once, so their outputs may
        come before the end of the message.
        """
        calls: list[e.Event] = []
        for block in content if isinstance(content, list) else ():
            call_id = (
                block.get("id") if isinstance(block, Mapping) and block.get("type") == "tool_use" else None
            )
            if isinstance(call_id, str) and call_id in self._open_calls:
                name, tool_input = self._open_calls[call_id], block.get("input")
                calls.append(self._convert_call(e.ToolInputAvailable(call_id, name, tool_input)))
                self._early_calls.add(call_id)
        return calls

    def _close_open(self) -> list[e.Event]:
        """Close what a message has left open: the CLI abandoned it and retries."""
        error_text = "the answer was cut off before the arguments were complete; nothing was run"
        ends: list[e.Event] = [end(id) for id, end in self._open_blocks.items()]
        ends += [
            e.ToolInputError(call_id, name, "", error_text, provider_executed=True, dynamic=True)
            for call_id, name in self._open_calls.items()
        ]
        self._open_blocks.clear()
        self._open_calls.clear()
        return ends

    def _take_events(self, answer: AnthropicEventBuilder) -> list[e.Event]:
        return [self._convert(event) for event in answer.take_events() if not self._is_repeat(event)]

    def _is_repeat(self, event: e.Event) -> bool:
        return isinstance(event, e.ToolInputAvailable | e.ToolInputError) and (
            event.tool_call_id in self._early_calls
        )

    def _convert(self, event: e.Event) -> e.Event:
        """Make ids unique in the run and mark calls as executed by the provider."""
        match event:
            case e.TextStart() | e.TextDelta() | e.TextEnd():
                return self._convert_block(event, e.TextEnd)
            case e.ReasoningStart() | e.ReasoningDelta() | e.ReasoningEnd():
                return self._convert_block(event, e.ReasoningEnd)
            case e.ToolInputStart() | e.ToolInputAvailable() | e.ToolInputError():
                return self._convert_call(event)
            case e.ToolOutputAvailable() | e.ToolOutputError():
                self._calls_without_output.pop(event.tool_call_id, None)
                return event
            case _:
                return event

    def _convert_block(self, event: _BlockEvent, end_type: type[e.TextEnd | e.ReasoningEnd]) -> e.Event:
        block_id = f"{self._message_number}-{event.id}"
        if isinstance(event, e.TextEnd | e.ReasoningEnd):
            self._open_blocks.pop(block_id, None)
            metadata = {**(event.provider_metadata or {}), **self._session_metadata()}
            return msgspec.structs.replace(event, id=block_id, provider_metadata=metadata)
        self._open_blocks[block_id] = end_type
        return msgspec.structs.replace(event, id=block_id)

    def _convert_call(self, event: _CallEvent) -> e.Event:
        call_id = event.tool_call_id
        if isinstance(event, e.ToolInputStart):
            self._open_calls[call_id] = event.tool_name
            return msgspec.structs.replace(event, provider_executed=True, dynamic=True)
        self._open_calls.pop(call_id, None)
        if isinstance(event, e.ToolInputError):
            return msgspec.structs.replace(event, provider_executed=True, dynamic=True)
        self._calls_without_output[call_id] = None
        metadata = self._session_metadata() or None
        return msgspec.structs.replace(
            event, provider_executed=True, dynamic=True, provider_metadata=metadata
        )

    def _session_metadata(self) -> dict[str, dict[str, Any]]:
        """Return the metadata with which the next request resumes this session."""
        return {FAMILY: {SESSION_KEY: self.session_id, "provider": self._provider}} if self.session_id else {}

    def _read_tool_outputs(self, message: Any) -> list[e.Event]:
        """Return the outputs of the tools that Claude Code ran."""
        content = message.get("content") if isinstance(message, Mapping) else None
        events: list[e.Event] = []
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, Mapping) or block.get("type") != "tool_result":
                continue
            call_id = block.get("tool_use_id")
            if not isinstance(call_id, str) or call_id not in self._calls_without_output:
                continue
            del self._calls_without_output[call_id]
            output = _plain_output(block.get("content"))
            if block.get("is_error"):
                error_text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
                events.append(e.ToolOutputError(call_id, error_text, provider_executed=True, dynamic=True))
            else:
                events.append(e.ToolOutputAvailable(call_id, output, provider_executed=True, dynamic=True))
        return events

    def _finish(self, result: ClaudeCodeMessage) -> list[e.Event]:
        """Handle a result. Its counts cover the whole process, except `num_turns`."""
        error_kind, self._error_kind = self._error_kind, None
        reason = finish_reason(result, error_kind)
        if reason is None:
            raise run_error(result, error_kind)
        if reason != "max-steps" and (self._open_blocks or self._open_calls):
            raise ProviderError("Claude Code's answer is incomplete", category="network", transient=True)
        self._turn_count += result.num_turns or 0
        self._finish_event = e.FinishStep(
            reason,
            read_usage(result),
            self._model,
            self._provider,
            provider_metadata={FAMILY: self._finish_metadata(result)},
        )
        return self._close_calls()

    def _close_calls(self) -> list[e.Event]:
        """Close calls without an output: the run was cut, or the CLI did not report it."""
        error_text = "Claude Code reported no output for this call"
        errors = [
            e.ToolOutputError(call_id, error_text, provider_executed=True, dynamic=True)
            for call_id in self._calls_without_output
        ]
        self._calls_without_output.clear()
        return [*self._close_open(), *errors]

    def _finish_metadata(self, result: ClaudeCodeMessage) -> dict[str, Any]:
        fields = {SESSION_KEY: self.session_id, "costUsd": result.total_cost_usd, "turns": self._turn_count}
        return {name: value for name, value in fields.items() if value is not None}


def _plain_output(content: Any) -> Any:
    """Return a tool's content; its text if it contains only text."""
    if not isinstance(content, list):
        return "" if content is None else content
    texts = [
        block.get("text") if isinstance(block, Mapping) and block.get("type") == "text" else None
        for block in content
    ]
    return "\n".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else content


# ---- Results: finish reason, usage, errors

LOGIN_HINT = "run the CLI once and log in, or set an API key (ANTHROPIC_API_KEY)"
_LOGIN_WORDS = re.compile(r"log ?in|api[_ -]?key|authenticat|unauthori[sz]ed|token|credential", re.IGNORECASE)
_ERROR_KINDS: Mapping[str, tuple[ProviderCategory, bool]] = {
    "authentication_failed": ("auth", False),
    "billing_error": ("rate_limit", False),
    "rate_limit": ("rate_limit", True),
    "invalid_request": ("bad_request", False),
    "server_error": ("api_error", True),
}
_OUTPUT_LIMIT = "max_output_tokens"  # the CLI asked the model to continue a few times, then gave up
_BUDGET_SUBTYPES = frozenset({"error_max_budget_usd"})
_USAGE_FIELDS: Mapping[str, str] = {  # fields of a model's usage to those of `usage`
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheCreationInputTokens": "cache_creation_input_tokens",
}


def finish_reason(message: ClaudeCodeMessage, error_kind: str | None) -> e.FinishReason | None:
    """Return the finish reason; None if the run failed. `error_kind` is the error of its last message."""
    if message.subtype == "error_max_turns":
        return "max-steps"
    if error_kind == _OUTPUT_LIMIT:
        return "length"
    if message.stop_reason == "refusal":
        return "content-filter"
    if message.is_error or message.subtype != "success":
        return None
    reason = FINISH_REASONS.get(message.stop_reason or "", "stop")
    return "stop" if reason == "tool-calls" else reason


def read_usage(message: ClaudeCodeMessage) -> e.Usage | None:
    """Return the usage of the process, with sub-agents and earlier turns; else that of this turn."""
    tally = AnthropicUsage()
    models = (
        [model_usage for model_usage in message.models.values() if isinstance(model_usage, Mapping)]
        if message.models
        else []
    )
    counts = {
        name: sum(_count(model_usage, key) for model_usage in models) for key, name in _USAGE_FIELDS.items()
    }
    tally.start(counts if any(counts.values()) else message.usage, complete=True)
    return tally.to_usage()


def _count(model_usage: Mapping[str, object], name: str) -> int:
    value = model_usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def run_error(message: ClaudeCodeMessage, error_kind: str | None) -> ProviderError:
    """Return the error of a failed run, with its cost and usage."""
    error = _read_error(message, error_kind)
    usage = read_usage(message)
    error.cost = message.total_cost_usd
    error.usage = None if usage is None else asdict(usage)
    return error


def _read_error(message: ClaudeCodeMessage, error_kind: str | None) -> ProviderError:
    errors = message.errors if isinstance(message.errors, list) else []
    texts = [text for text in (message.result, *errors) if isinstance(text, str) and text.strip()]
    text = "; ".join(texts) or f"Claude Code ended with {message.subtype or 'an error'}, without a message"
    if message.subtype in _BUDGET_SUBTYPES:
        error = ProviderError(f"Claude Code stopped at its own budget: {text}", category="rate_limit")
        error.code = BudgetExhausted.code
        return error
    return explain_error(text, kind=error_kind, status=message.api_error_status)


def explain_error(text: str, *, kind: str | None = None, status: int | None = None) -> ProviderError:
    """Return the error for a message of the CLI; `kind` and `status` are from its other fields."""
    error = provider_error(text, status=status)
    if kind is not None and kind in _ERROR_KINDS and not (kind == "server_error" and status):
        category, transient = _ERROR_KINDS[kind]
        error = ProviderError(error.message, category=category, transient=transient, upstream_status=status)
    elif status is None and error.category == "api_error":
        error.transient = False  # nothing indicates that a retry would help
    elif status is None and error.category == "auth" and not _LOGIN_WORDS.search(text):
        # for example a permission mode that root may not use
        return ProviderError(error.message, category="bad_request")
    if error.category == "auth":
        error.hint = LOGIN_HINT
    return error
