"""Encode events as AG-UI's event stream. Source: wire notes on AG-UI, sections A0 to A5.

AG-UI clients take one wrong event as a failed run, and show nothing of what came with it. The encoder
therefore keeps track of what is open, and closes it in time: whatever it is given, its stream is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.wire.ag_ui.blocks import Bodies, Body, CallBlock, ReasoningBlock, TextBlock
from dragoman.wire.ag_ui.received_answer import NOTHING_RECEIVED, ReceivedAnswer
from dragoman.wire.ag_ui.state import state_events
from dragoman.wire.encoder import SSE_HEADERS
from dragoman.wire.step_splitting import DENIED

PROTOCOL_VERSION = "1.0"
QUESTION = "data-question"
STATE = "data-state"
CUT_SHORT = "the stream ended before the answer was complete; run the agent again to get the rest"
USAGE_FIELDS = {
    "inputTokens": "inputTokens",
    "outputTokens": "outputTokens",
    "totalTokens": "totalTokens",
    "reasoningTokens": "reasoningTokens",
    "cachedInputTokens": "cachedInputTokens",
    "cacheWriteTokens": "cacheWriteInputTokens",
}
_encoder = msgspec.json.Encoder()


class ResponseIds(msgspec.Struct, frozen=True, kw_only=True):
    """What a response is about: the client's thread and run, the hub's run, and the message that answers.

    `first_block` is the number of the last text of the message that the client got in earlier responses.
    """

    thread_id: str
    run_id: str
    hub_run_id: str
    message_id: str
    first_block: int = 0


class AgUiStreamEncoder:
    """Encodes one response as AG-UI events.

    Of what the client has `received` already, nothing is sent again.
    """

    headers: Mapping[str, str] = SSE_HEADERS

    def __init__(self, ids: ResponseIds, *, received: ReceivedAnswer = NOTHING_RECEIVED) -> None:
        self._ids = ids
        self._received = received
        self._has_started = self._has_ended = False
        self._block_count = ids.first_block
        self._blocks: dict[tuple[str, str], TextBlock | ReasoningBlock] = {}
        self._calls: dict[str, CallBlock] = {}
        self._text_id: str | None = None
        self._step_count = 0
        self._in_step = False
        self._interrupts: dict[str, Body] = {}
        self._state: Any = msgspec.UNSET

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the batch as `data:` frames; nothing after the event that ends the run."""
        frames = bytearray(self._begin())
        for event in batch:
            convert = _CONVERTERS.get(type(event))
            for body in convert(self, event) if convert is not None and not self._has_ended else ():
                frames += encode_event(body)
        return bytes(frames)

    def end(self) -> bytes:
        """Return the event that ends a run that was cut short: a stream that just ends counts as complete."""
        opening = self._begin()
        return opening if self._has_ended else opening + encode_event(self._fail(CUT_SHORT, "interrupted"))

    def _begin(self) -> bytes:
        if self._has_started:
            return b""
        self._has_started = True
        ids = self._ids
        metadata = {"runId": ids.hub_run_id, "messageId": ids.message_id}
        return encode_event(
            {
                "type": "RUN_STARTED",
                "threadId": ids.thread_id,
                "runId": ids.run_id,
                "protocolVersion": PROTOCOL_VERSION,
                "metadata": metadata,
            }
        )

    def _fail(self, message: str, code: str | None) -> Body:
        """Return the event that ends the run; it may leave things open."""
        self._has_ended = True
        return _without_none({"type": "RUN_ERROR", "message": message, "code": code})

    def start_step(self, _: e.StartStep) -> Bodies:
        yield from self._close_step()
        self._step_count += 1
        self._in_step, self._text_id = True, None
        yield {"type": "STEP_STARTED", "stepName": f"step-{self._step_count}"}

    def finish_step(self, _: e.FinishStep) -> Bodies:
        yield from self._close_step()

    def _close_step(self) -> Bodies:
        for block in self._blocks.values():
            yield from block.close()
        self._blocks.clear()
        for call in self._calls.values():
            yield from call.close()
        if self._in_step:
            self._in_step = False
            yield {"type": "STEP_FINISHED", "stepName": f"step-{self._step_count}"}

    def start_block(self, event: e.TextStart | e.ReasoningStart) -> Bodies:
        is_text = isinstance(event, e.TextStart)
        key = ("text" if is_text else "reasoning", event.id)
        if key in self._blocks:
            yield from self._blocks[key].close()
        self._block_count += 1
        id = f"{self._ids.message_id}-{self._block_count}"
        block_type = TextBlock if is_text else ReasoningBlock
        self._blocks[key] = block_type(id, self._received.texts.get(id))
        if is_text:
            self._text_id = id

    def grow_block(self, event: e.TextDelta | e.ReasoningDelta) -> Bodies:
        key = ("text" if isinstance(event, e.TextDelta) else "reasoning", event.id)
        block = self._blocks.get(key)
        return iter(()) if block is None else block.grow(event.delta)

    def end_block(self, event: e.TextEnd | e.ReasoningEnd) -> Bodies:
        key = ("text" if isinstance(event, e.TextEnd) else "reasoning", event.id)
        block = self._blocks.pop(key, None)
        return iter(()) if block is None else block.close()

    def start_call(self, event: e.ToolInputStart) -> Bodies:
        yield from self._open_call(event.tool_call_id, event.tool_name).open()

    def grow_call(self, event: e.ToolInputDelta) -> Bodies:
        call = self._calls.get(event.tool_call_id)
        return iter(()) if call is None else call.grow(event.input_text_delta)

    def end_call(self, event: e.ToolInputAvailable) -> Bodies:
        yield from self._open_call(event.tool_call_id, event.tool_name).close_with(event.input)

    def refuse_call(self, event: e.ToolInputError) -> Bodies:
        yield from self._open_call(event.tool_call_id, event.tool_name).close_with(event.input)
        yield from self._result(event.tool_call_id, event.error_text)

    def _open_call(self, id: str, name: str) -> CallBlock:
        call = self._calls.get(id)
        if call is None:
            call = self._calls[id] = CallBlock(
                id, name, parent=self._text_id, received=self._received.arguments.get(id)
            )
        return call

    def request_approval(self, event: e.ToolApprovalRequest) -> Bodies:
        call = self._calls.get(event.tool_call_id)
        name = "a call" if call is None else repr(call.name)
        self._interrupts[event.approval_id] = {
            "id": event.approval_id,
            "reason": "tool_call",
            "message": f"{name} needs an approval",
            "toolCallId": event.tool_call_id,
            "responseSchema": APPROVAL_SCHEMA,
        }
        return iter(()) if call is None else call.close()

    def record_approval(self, event: e.ToolApprovalResponse) -> Bodies:
        self._interrupts.pop(event.approval_id, None)
        return iter(())

    def send_output(self, event: e.ToolOutputAvailable) -> Bodies:
        if event.preliminary:
            return self._progress(event)
        output = event.output
        return self._result(
            event.tool_call_id, output if isinstance(output, str) else _encoder.encode(output).decode()
        )

    def _progress(self, event: e.ToolOutputAvailable) -> Bodies:
        call = self._calls.get(event.tool_call_id)
        if call is not None:
            yield from call.close()
        yield {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": f"{event.tool_call_id}-progress",
            "activityType": "tool-progress",
            "content": {"toolCallId": event.tool_call_id, "output": event.output},
            "replace": True,
        }

    def send_error(self, event: e.ToolOutputError) -> Bodies:
        return self._result(event.tool_call_id, event.error_text)

    def send_denial(self, event: e.ToolOutputDenied) -> Bodies:
        return self._result(event.tool_call_id, DENIED)

    def _result(self, id: str, text: str) -> Bodies:
        """Yield the result of a call, unless the client has it, or has reported it itself."""
        call = self._calls.get(id)
        if call is not None:
            yield from call.close()
        answered = [key for key, each in self._interrupts.items() if each["toolCallId"] == id]
        for key in answered:  # a call with a result waits for nobody
            del self._interrupts[key]
        if id not in self._received.results:
            yield {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{id}-result",
                "toolCallId": id,
                "content": text,
                "role": "tool",
            }

    def send_data(self, event: e.Data) -> Bodies:
        if event.type == QUESTION:
            yield from self._ask(event.data)
        elif event.type == STATE:
            yield from state_events(self._state, event.data)
            self._state = event.data
        else:
            yield _custom(event.name, event.data, id=event.id)

    def _ask(self, question: Mapping[str, Any]) -> Bodies:
        """Ask a question at the end of the run; drop it if it has an answer."""
        if question["status"] != "pending":
            self._interrupts.pop(question["id"], None)
            return
        self._interrupts[question["id"]] = {
            "id": question["id"],
            "reason": "input_required",
            "message": question["text"],
            "toolCallId": question["toolCallId"],
            "responseSchema": ANSWER_SCHEMA,
            "metadata": {"options": question.get("options", [])},
        }
        call = self._calls.get(question["toolCallId"])
        if call is not None:
            yield from call.close()

    def send_source(self, event: e.SourceUrl | e.SourceDocument | e.File) -> Bodies:
        fields = msgspec.to_builtins(event)
        kind = fields.pop("type")
        fields.pop("providerMetadata", None)
        yield _custom(kind, fields)

    def send_metadata(self, event: e.MessageMetadata) -> Bodies:
        yield _custom("message-metadata", event.message_metadata)

    def fail(self, event: e.ErrorEvent) -> Bodies:
        yield self._fail(event.error_text, event.code)

    def abort(self, event: e.Abort) -> Bodies:
        yield self._fail(event.reason or "the run was stopped", "aborted")

    def finish(self, event: e.Finish) -> Bodies:
        if event.finish_reason in ("error", "aborted"):
            yield self._fail("the answer failed", event.finish_reason)
            return
        yield from self._close_step()
        self._has_ended = True
        interrupts = list(self._interrupts.values())
        outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
        finished: Body = {"type": "RUN_FINISHED", "threadId": self._ids.thread_id, "runId": self._ids.run_id}
        metadata = {"finishReason": event.finish_reason, "message": event.message_metadata}
        yield {
            **finished,
            "outcome": outcome,
            "metadata": _without_none(metadata),
            **_usage(event.message_metadata),
        }


APPROVAL_SCHEMA: Body = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
ANSWER_SCHEMA: Body = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}


def encode_event(body: Body) -> bytes:
    """Return one frame of the stream."""
    return b"data: " + _encoder.encode(body) + b"\n\n"


def _usage(metadata: Any) -> Body:
    """Return the tokens of the message by AG-UI's names; nothing when they are not known."""
    usage = metadata.get("usage") if isinstance(metadata, Mapping) else None
    if not isinstance(usage, Mapping):
        return {}
    counts = {theirs: usage[ours] for ours, theirs in USAGE_FIELDS.items() if ours in usage}
    names = {"provider": metadata.get("provider"), "model": metadata.get("servedModel")}
    return {"usage": [{**_without_none(names), **counts}]}


def _custom(name: str, value: Any, *, id: str | None = None) -> Body:
    body = {"type": "CUSTOM", "name": f"dragoman.{name}", "value": value}
    return body if id is None else {**body, "metadata": {"id": id}}


def _without_none(fields: Body) -> Body:
    return {name: value for name, value in fields.items() if value is not None}


_CONVERTERS: Mapping[type, Callable[[AgUiStreamEncoder, Any], Bodies]] = {
    e.StartStep: AgUiStreamEncoder.start_step,
    e.FinishStep: AgUiStreamEncoder.finish_step,
    e.TextStart: AgUiStreamEncoder.start_block,
    e.TextDelta: AgUiStreamEncoder.grow_block,
    e.TextEnd: AgUiStreamEncoder.end_block,
    e.ReasoningStart: AgUiStreamEncoder.start_block,
    e.ReasoningDelta: AgUiStreamEncoder.grow_block,
    e.ReasoningEnd: AgUiStreamEncoder.end_block,
    e.ToolInputStart: AgUiStreamEncoder.start_call,
    e.ToolInputDelta: AgUiStreamEncoder.grow_call,
    e.ToolInputAvailable: AgUiStreamEncoder.end_call,
    e.ToolInputError: AgUiStreamEncoder.refuse_call,
    e.ToolApprovalRequest: AgUiStreamEncoder.request_approval,
    e.ToolApprovalResponse: AgUiStreamEncoder.record_approval,
    e.ToolOutputAvailable: AgUiStreamEncoder.send_output,
    e.ToolOutputError: AgUiStreamEncoder.send_error,
    e.ToolOutputDenied: AgUiStreamEncoder.send_denial,
    e.SourceUrl: AgUiStreamEncoder.send_source,
    e.SourceDocument: AgUiStreamEncoder.send_source,
    e.File: AgUiStreamEncoder.send_source,
    e.Data: AgUiStreamEncoder.send_data,
    e.MessageMetadata: AgUiStreamEncoder.send_metadata,
    e.ErrorEvent: AgUiStreamEncoder.fail,
    e.Abort: AgUiStreamEncoder.abort,
    e.Finish: AgUiStreamEncoder.finish,
}
"""`start` is in RUN_STARTED. `reset-step` is left out: what is withdrawn was closed before, and stays."""
