"""Claude Code's stream in: lines of JSON, as `claude --print --output-format stream-json` writes them.

One answer of it is a whole run: several messages, and the tools that it called itself between them. Those
come out as calls that the provider executed. What its own sub-agents say is left out. A result need not be
the end: the CLI waits for commands in the background, and tells what comes of them in another turn. Sources:
its reference, and what version 2.1.197 writes (system, stream_event, assistant, user, result).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import asdict

from dragoman import events as e
from dragoman.errors import BudgetExhausted, ProviderCategory, ProviderError
from dragoman.events import FinishReason, Usage
from dragoman.wire.anthropic import chunk as frames
from dragoman.wire.anthropic.event_builder import FINISH_REASONS, AnthropicEventBuilder
from dragoman.wire.anthropic.usage import AnthropicUsage
from dragoman.wire.provider_errors import provider_error

# ---- A line of Claude Code's stream, as far as it is read.


class ClaudeCodeMessage(msgspec.Struct, frozen=True):
    """A message of the CLI; `type` and `subtype` say which."""

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
    """The message in a line; None when it is noise."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


# ---- How a run of Claude Code ended: the reason, what it used, or the error that its words stand for.

LOGIN_HINT = "run the CLI once by hand and log in, or give it a key of its own (ANTHROPIC_API_KEY)"
_LOGIN_WORDS = re.compile(r"log ?in|api[_ -]?key|authenticat|unauthori[sz]ed|token|credential", re.IGNORECASE)
_ERROR_KINDS: Mapping[str, tuple[ProviderCategory, bool]] = {
    "authentication_failed": ("auth", False),
    "billing_error": ("rate_limit", False),
    "rate_limit": ("rate_limit", True),
    "invalid_request": ("bad_request", False),
    "server_error": ("api_error", True),
}
_OUTPUT_LIMIT = "max_output_tokens"  # the CLI asked to go on a few times, and gave up
_BUDGET_SUBTYPES = frozenset({"error_max_budget_usd"})
_USAGE_FIELDS: Mapping[str, str] = {  # what a model's usage has, in the words of `usage`
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheCreationInputTokens": "cache_creation_input_tokens",
}


def finish_reason(line: ClaudeCodeMessage, kind: str | None) -> FinishReason | None:
    """Why it ended; None when it failed. `kind` is the error that its last message told."""
    if line.subtype == "error_max_turns":
        return "max-steps"
    if kind == _OUTPUT_LIMIT:
        return "length"
    if line.stop_reason == "refusal":
        return "content-filter"
    if line.is_error or line.subtype != "success":
        return None
    reason = FINISH_REASONS.get(line.stop_reason or "", "stop")
    return "stop" if reason == "tool-calls" else reason


def read_usage(line: ClaudeCodeMessage) -> Usage | None:
    """All that the process used, also for sub-agents and earlier turns; else what it tells of this turn."""
    tally = AnthropicUsage()
    used = [each for each in line.models.values() if isinstance(each, Mapping)] if line.models else []
    counts = {ours: sum(_count(each, theirs) for each in used) for theirs, ours in _USAGE_FIELDS.items()}
    tally.start(counts if any(counts.values()) else line.usage, complete=True)
    return tally.to_usage()


def _count(used: Mapping[str, object], name: str) -> int:
    value = used.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def run_error(line: ClaudeCodeMessage, kind: str | None) -> ProviderError:
    """Why the run failed: what the CLI says of it, in whichever of its ways, and what it took."""
    error = _read_error(line, kind)
    used = read_usage(line)
    error.cost = line.total_cost_usd
    error.usage = None if used is None else asdict(used)
    return error


def _read_error(line: ClaudeCodeMessage, kind: str | None) -> ProviderError:
    errors = line.errors if isinstance(line.errors, list) else []
    words = [text for text in (line.result, *errors) if isinstance(text, str) and text.strip()]
    text = "; ".join(words) or f"Claude Code ended with {line.subtype or 'an error'} and said nothing more"
    if line.subtype in _BUDGET_SUBTYPES:
        error = ProviderError(f"Claude Code stopped at its own budget: {text}", category="rate_limit")
        error.code = BudgetExhausted.code
        return error
    return explain_error(text, kind=kind, status=line.api_error_status)


def explain_error(text: str, *, kind: str | None = None, status: int | None = None) -> ProviderError:
    """The error that words of the CLI stand for; `kind` and `status` are what it says of it besides."""
    error = provider_error(text, status=status)
    if kind is not None and kind in _ERROR_KINDS and not (kind == "server_error" and status):
        category, transient = _ERROR_KINDS[kind]
        error = ProviderError(error.message, category=category, transient=transient, upstream_status=status)
    elif status is None and error.category == "api_error":
        error.transient = False  # nothing says that it would go better
    elif status is None and error.category == "auth" and not _LOGIN_WORDS.search(text):
        return ProviderError(error.message, category="bad_request")  # such as a mode that root may not use
    if error.category == "auth":
        error.hint = LOGIN_HINT
    return error


FAMILY = "claude-code"
SESSION_KEY = "sessionId"
_SYNTHETIC_MODEL = "<synthetic>"  # the model of what the CLI says itself
_ENDED_STATUSES = frozenset({"completed", "failed", "killed", "stopped"})

_BlockEvent: TypeAlias = (
    e.TextStart | e.TextDelta | e.TextEnd | e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd
)
_CallEvent: TypeAlias = e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError


class ClaudeCodeDecoder:
    """Reads one answer. `session_id` is known from the first line on.

    `agent` is the one that must answer: the CLI takes another one, without a word, when it does not know it.
    """

    def __init__(self, *, provider: str, model: str, agent: str | None = None) -> None:
        self.session_id: str | None = None
        self.unparsed_line = ""
        """The last line that was no message."""
        self._provider = provider
        self._model = model
        self._agent = agent
        self._message_numbers = count(1)
        self._builder: AnthropicEventBuilder | None = None
        self._message_number = 0
        self._streamed_ids: set[str] = set()  # messages that came in pieces
        self._open_blocks: dict[str, type[e.TextEnd | e.ReasoningEnd]] = {}  # blocks without an end, by id
        self._open_calls: dict[str, str] = {}  # calls whose arguments have not come whole, and their names
        self._calls_without_output: dict[str, None] = {}  # calls without an output
        self._early_calls: set[str] = set()  # calls that were told before their message came to them
        self._background_tasks: set[str] = set()  # what runs in the background
        self._error_kind: str | None = None  # of the error that a message told
        self._turn_count = 0
        self._finish_event: e.FinishStep | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result, behind which nothing is known to come."""
        return self._finish_event is not None and not self._background_tasks

    def close(self) -> list[e.Event]:
        """The finish, once nothing more comes; nothing when there is no result."""
        self._background_tasks.clear()
        return [] if self._finish_event is None else [*self._close_calls(), self._finish_event]

    def feed(self, raw: bytes) -> list[e.Event]:
        """The events of one line; ProviderError when it says that the run failed. Noise is passed over."""
        line = read_line(raw)
        if line is None:
            self.unparsed_line = raw.decode(errors="replace").strip() or self.unparsed_line
            return []
        self.session_id = line.session_id or self.session_id
        if line.parent_tool_use_id is not None:
            return []
        match line.type:
            case "system":
                self._read_system(line)
                return []
            case "stream_event":
                return self._read_stream_event(bytes(line.event))
            case "assistant":
                return self._read_message(line)
            case "user":
                return self._read_tool_outputs(line.message)
            case "result":
                return self._finish(line)
            case _:
                return []

    def _read_system(self, line: ClaudeCodeMessage) -> None:
        """What the CLI says of itself: how a turn begins, and what goes on in the background."""
        match line.subtype:
            case "init":
                self._start_turn(line)
            case "task_started" if line.task_id is not None:
                self._background_tasks.add(line.task_id)
            case "task_updated" if (
                isinstance(line.patch, Mapping) and line.patch.get("status") in _ENDED_STATUSES
            ):
                self._background_tasks.discard(line.task_id or "")
            case "task_notification":
                self._background_tasks.discard(line.task_id or "")
            case _:
                pass

    def _start_turn(self, line: ClaudeCodeMessage) -> None:
        self._model = line.model or self._model
        self._finish_event = None
        if self._agent is not None and isinstance(line.agents, list) and self._agent not in line.agents:
            raise ProviderError(
                f"Claude Code knows no agent {self._agent!r}",
                category="bad_request",
                hint=f"it knows {', '.join(map(str, line.agents))}; its own are found by `cwd`",
            )

    def _read_stream_event(self, raw: bytes) -> list[e.Event]:
        """An event of the message under way, in the words of Anthropic's API."""
        try:
            frame = frames.read_chunk(raw)
        except ValueError:
            return []
        if frame is None or frame.type in ("message_stop", "ping"):
            return []
        if frame.type == "error":
            return []  # the CLI tries again itself, or says so in its result
        cut: list[e.Event] = []
        if frame.type == "message_start" or self._builder is None:
            cut = self._close_open()
            self._builder = self._new_builder()
            if isinstance(frame.message, Mapping) and isinstance(frame.message.get("id"), str):
                self._streamed_ids.add(frame.message["id"])
        self._builder.add_chunk(frame)
        return [*cut, *self._take_events(self._builder)]

    def _new_builder(self) -> AnthropicEventBuilder:
        place = self._message_number = next(self._message_numbers)
        numbers = count(1)
        return AnthropicEventBuilder(
            provider=self._provider,
            model=self._model,
            new_id=lambda: f"call_{place}_{next(numbers)}",
            used_ids=(),
        )

    def _read_message(self, line: ClaudeCodeMessage) -> list[e.Event]:
        """A message that is whole: told already if it came in pieces."""
        message = line.message if isinstance(line.message, Mapping) else {}
        if isinstance(line.error, str):
            self._error_kind = line.error
        if line.error or message.get("model") == _SYNTHETIC_MODEL:
            return []
        if message.get("id") in self._streamed_ids:
            return self._early_inputs(message.get("content"))
        self._builder = None  # whatever came in pieces was another message
        cut, answer = self._close_open(), self._new_builder()
        answer.add_message(message)
        return [*cut, *self._take_events(answer)]

    def _early_inputs(self, content: Any) -> list[e.Event]:
        """Calls of a message that still comes in pieces: they run at once, so outputs may come first."""
        calls: list[e.Event] = []
        for block in content if isinstance(content, list) else ():
            key = block.get("id") if isinstance(block, Mapping) and block.get("type") == "tool_use" else None
            if isinstance(key, str) and key in self._open_calls:
                name, given = self._open_calls[key], block.get("input")
                calls.append(self._convert_call(e.ToolInputAvailable(key, name, given)))
                self._early_calls.add(key)
        return calls

    def _close_open(self) -> list[e.Event]:
        """Ends for what a message has left open: the CLI gave it up, and asks again."""
        text = "the answer was cut before the arguments were complete; nothing was run"
        ends: list[e.Event] = [end(id) for id, end in self._open_blocks.items()]
        ends += [
            e.ToolInputError(key, name, "", text, provider_executed=True, dynamic=True)
            for key, name in self._open_calls.items()
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
        """The event with ids that are unique in the run; calls are marked as run by the provider."""
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

    def _convert_block(self, event: _BlockEvent, end: type[e.TextEnd | e.ReasoningEnd]) -> e.Event:
        id = f"{self._message_number}-{event.id}"
        if isinstance(event, e.TextEnd | e.ReasoningEnd):
            self._open_blocks.pop(id, None)
            marked = {**(event.provider_metadata or {}), **self._session_metadata()}
            return msgspec.structs.replace(event, id=id, provider_metadata=marked)
        self._open_blocks[id] = end
        return msgspec.structs.replace(event, id=id)

    def _convert_call(self, event: _CallEvent) -> e.Event:
        key = event.tool_call_id
        if isinstance(event, e.ToolInputStart):
            self._open_calls[key] = event.tool_name
            return msgspec.structs.replace(event, provider_executed=True, dynamic=True)
        self._open_calls.pop(key, None)
        if isinstance(event, e.ToolInputError):
            return msgspec.structs.replace(event, provider_executed=True, dynamic=True)
        self._calls_without_output[key] = None
        mark = self._session_metadata() or None
        return msgspec.structs.replace(event, provider_executed=True, dynamic=True, provider_metadata=mark)

    def _session_metadata(self) -> dict[str, dict[str, Any]]:
        """What a part keeps, so that the next request goes on with this session."""
        return {FAMILY: {SESSION_KEY: self.session_id, "provider": self._provider}} if self.session_id else {}

    def _read_tool_outputs(self, message: Any) -> list[e.Event]:
        """What the tools gave that Claude Code ran."""
        content = message.get("content") if isinstance(message, Mapping) else None
        found: list[e.Event] = []
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, Mapping) or block.get("type") != "tool_result":
                continue
            key = block.get("tool_use_id")
            if not isinstance(key, str) or key not in self._calls_without_output:
                continue
            del self._calls_without_output[key]
            output = _plain_output(block.get("content"))
            if block.get("is_error"):
                text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
                found.append(e.ToolOutputError(key, text, provider_executed=True, dynamic=True))
            else:
                found.append(e.ToolOutputAvailable(key, output, provider_executed=True, dynamic=True))
        return found

    def _finish(self, line: ClaudeCodeMessage) -> list[e.Event]:
        """Take a result. What it counts is of the whole process, but for its turns."""
        kind, self._error_kind = self._error_kind, None
        reason = finish_reason(line, kind)
        if reason is None:
            raise run_error(line, kind)
        if reason != "max-steps" and (self._open_blocks or self._open_calls):
            raise ProviderError(
                "Claude Code's answer was cut in the middle", category="network", transient=True
            )
        self._turn_count += line.num_turns or 0
        self._finish_event = e.FinishStep(
            reason,
            read_usage(line),
            self._model,
            self._provider,
            provider_metadata={FAMILY: self._finish_metadata(line)},
        )
        return self._close_calls()

    def _close_calls(self) -> list[e.Event]:
        """An end for calls that have none: the run was cut, or nobody told."""
        text = "Claude Code told no output of this call"
        left = [
            e.ToolOutputError(key, text, provider_executed=True, dynamic=True)
            for key in self._calls_without_output
        ]
        self._calls_without_output.clear()
        return [*self._close_open(), *left]

    def _finish_metadata(self, line: ClaudeCodeMessage) -> dict[str, Any]:
        said = {SESSION_KEY: self.session_id, "costUsd": line.total_cost_usd, "turns": self._turn_count}
        return {word: value for word, value in said.items() if value is not None}


def _plain_output(content: Any) -> Any:
    """A tool's content: its text if it is nothing but text."""
    if not isinstance(content, list):
        return "" if content is None else content
    texts = [
        block.get("text") if isinstance(block, Mapping) and block.get("type") == "text" else None
        for block in content
    ]
    return "\n".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else content
