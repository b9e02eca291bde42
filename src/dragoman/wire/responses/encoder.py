"""Encode events as a response: the complete sequence of stream events, or one object.

The last event has the whole response: clients read output and usage from it. A finish is never invented: an
answer without one is an error. Source: wire notes on the Responses API, sections 2 to 4 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman import events as e
from dragoman.errors import BudgetExhausted, DragomanError, ProviderError
from dragoman.large_json import SMALL
from dragoman.wire import json_codec
from dragoman.wire.encoder import SSE_HEADERS
from dragoman.wire.provider_errors import incomplete_answer_error
from dragoman.wire.responses.client_tools import ClientTools
from dragoman.wire.responses.compaction import COMPACTION, seal_summary
from dragoman.wire.responses.final_text import FinalText
from dragoman.wire.responses.item_encoder import (
    INPUT_EVENTS,
    OUTPUT_EVENTS,
    REASONING_EVENTS,
    TEXT_EVENTS,
    ItemEncoder,
)
from dragoman.wire.responses.output_items import CompactionItem, EventSequence

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ANNOUNCED_EVENTS = 3  # created, queued and in_progress
_CONTENT_EVENTS = (*TEXT_EVENTS, *REASONING_EVENTS, *INPUT_EVENTS, *OUTPUT_EVENTS, e.SourceUrl, e.File)
_ITEM_EVENTS = (*_CONTENT_EVENTS, e.Data)
_DELTAS = (e.TextDelta, e.ReasoningDelta)
_INCOMPLETE_REASONS: Mapping[str, str] = {
    "length": "max_output_tokens",
    "content-filter": "content_filter",
    "max-steps": "max_tool_calls",
}
_CUT_REASONS = ("length", "content-filter")  # the model had more to write


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a response before its answer.

    `fields` are those of the request that the response object repeats. `hub_runs_calls`: the hub runs calls
    of tools that are not the client's; `shows_approvals`: the client answers approvals of such calls.
    """

    id: str
    model: str
    created_at: int
    tools: ClientTools = msgspec.field(default_factory=ClientTools)
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    queued: bool = False
    next_event: int = 0
    """The number of the next event, if the first ones were sent before."""
    hub_runs_calls: bool = False
    shows_approvals: bool = False
    compacts: bool = False
    """The answer is a compaction: its text is the summary."""
    compaction: str | None = None
    """The `encrypted_content` of the compaction that the answer follows."""
    shows_compactions: bool = False
    """Summaries of what an agent leaves out are compactions."""
    has_format: bool = False
    """The answer is in a format of the client's, such as JSON."""


class ResponsesStreamEncoder:
    """Encodes one response as stream events; pure."""

    headers: Mapping[str, str] = SSE_HEADERS

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._events = EventSequence()
        base_id = head.id.removeprefix("resp_")
        self._items = ItemEncoder(
            self._events, head.tools, base_id=base_id, hub_runs_calls=head.hub_runs_calls
        )
        self._final_text = FinalText() if head.has_format else None
        self.status: ResponseStatus = "queued" if head.queued else "in_progress"
        self._usage: e.Usage | None = None
        self._finish: e.FinishReason | None = None
        self._service_tier: str | None = None
        self._error: dict[str, Any] | None = None
        self._incomplete: dict[str, Any] | None = None
        self._compaction: CompactionItem | None = None
        self._started = False
        self._ended = False
        self._length = 0

    def size_of(self, batch: Sequence[e.Event] | None) -> int:
        """Return about how many bytes the frames of a batch, or of the end, take.

        What ends an item, or the response, repeats all of its text.
        """
        if batch is not None and (
            self._length <= SMALL or all(isinstance(event, _DELTAS) for event in batch)
        ):
            return 0
        return self._length

    @property
    def response(self) -> dict[str, Any]:
        """The current response object."""
        head = self._head
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created_at,
            "status": self.status,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "model": head.model,
            "output": self._items.output if self._ended else [],
            "usage": encode_usage(self._usage) if self._ended else None,
            **head.fields,
            **({} if self._service_tier is None else {"service_tier": self._service_tier}),
        }

    def start(self) -> bytes:
        """Return the first frames, before there is any event of the answer."""
        self._start()
        return self._events.take()

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the frames for a batch; empty once the response has ended."""
        if self._ended or not batch:
            return b""
        self._start()
        for event in batch if self._final_text is None else self._final_text.select(batch):
            if isinstance(event, _DELTAS):
                self._length += len(event.delta)
            if isinstance(event, _ITEM_EVENTS):
                self._items.end_last_item()
            self._encode_event(event)
        return self._events.take()

    def encode_error(self, error: DragomanError) -> bytes:
        """Return the frames that report the failure of the answer."""
        return self._fail(failure_of(error))

    def cancel(self, *, by_request: bool) -> bytes:
        """Return the frames of an answer that was stopped: by a cancel request, or otherwise."""
        if self._ended:
            return b""
        self._start()
        self._items.close("incomplete")
        if not by_request:
            self._incomplete = {"reason": "cancelled"}
        return self._end("cancelled" if by_request else "incomplete")

    def end_unanswered(self) -> bytes:
        """Return the frames of a response that no model was asked for."""
        self._start()
        self._usage = e.Usage(0, 0, 0)
        return self._end("completed")

    def end(self) -> bytes:
        """Return the last frames. Raises ProviderError if there was no finish."""
        if self._ended:
            return b""
        reason = self._finish
        if reason is None or reason in ("error", "aborted"):
            raise incomplete_answer_error(started=bool(self._items.output))
        self._start()
        self._items.close(_item_status(reason))
        if self._head.compacts:
            self._end_compaction()
        incomplete = _INCOMPLETE_REASONS.get(reason)
        if incomplete is not None:
            self._incomplete = {"reason": incomplete}
            return self._end("incomplete")
        if all(item["type"] == COMPACTION for item in self._items.output) and not self._head.compacts:
            self._items.add_empty_message()
        return self._end("completed")

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        if self._head.next_event:
            self._events.number, self.status = self._head.next_event, "in_progress"
        else:
            self._announce()
        if self._head.compaction is not None:
            self._items.add_compaction(self._head.compaction)

    def _announce(self) -> None:
        self._events.write("response.created", {"response": self.response})
        if self._head.queued:
            self._events.write("response.queued", {"response": self.response})
            self.status = "in_progress"
        self._events.write("response.in_progress", {"response": self.response})

    def _encode_event(self, event: e.Event) -> None:
        if self._head.compacts and isinstance(event, _CONTENT_EVENTS):
            self._encode_summary(event)
        elif isinstance(event, TEXT_EVENTS):
            self._items.encode_text(event)
        elif isinstance(event, REASONING_EVENTS):
            self._items.encode_reasoning(event)
        elif isinstance(event, INPUT_EVENTS):
            self._items.encode_input(event)
        elif isinstance(event, OUTPUT_EVENTS):
            self._items.encode_output(event)
            if isinstance(event, e.ToolApprovalRequest) and self._head.shows_approvals:
                self._items.request_approval(event.approval_id, event.tool_call_id)
        elif isinstance(event, e.Data):
            self._encode_data(event)
        else:
            self._encode_other(event)

    def _encode_summary(self, event: e.Event) -> None:
        """Encode the text of a summary, and leave out all other content of the answer."""
        if isinstance(event, e.TextDelta) and event.delta:
            if self._compaction is None:
                self._compaction = self._items.open_compaction()
            self._compaction.append(event.delta)

    def _end_compaction(self) -> None:
        if self._compaction is None:
            raise ProviderError("the model returned an empty summary", category="api_error")
        self._compaction.close()

    def _encode_data(self, event: e.Data) -> None:
        """Encode the summary of what an agent leaves out; other data have no item."""
        if self._head.shows_compactions and event.name == "context" and event.data["kind"] == "summarise":
            self._items.add_compaction(seal_summary(event.data["summary"]))

    def _encode_other(self, event: e.Event) -> None:
        match event:
            case e.SourceUrl():
                self._items.encode_source(event)
            case e.File():
                self._items.encode_file(event)
            case e.FinishStep(finish_reason=reason, usage=usage):
                self._finish, self._service_tier = reason, event.service_tier
                self._items.end_last_item(_item_status(reason))
                if usage is not None:
                    self._usage = usage if self._usage is None else self._usage + usage
            case e.Finish(finish_reason=reason, usage=usage):
                self._finish = reason or self._finish
                self._items.end_last_item(_item_status(self._finish))
                self._usage = usage or self._usage
            case e.ErrorEvent(error_text=text, code=code):
                self._fail_now(failure_code(code), text)
            case e.Abort():
                self._items.close("incomplete")
                self._incomplete = {"reason": "cancelled"}
                self._write_end("incomplete")
            case _:
                pass

    def _fail(self, failure: Mapping[str, str]) -> bytes:
        if self._ended:
            return b""
        self._start()
        self._fail_now(failure["code"], failure["message"])
        return self._events.take()

    def _fail_now(self, code: str, message: str) -> None:
        if not self._ended:
            self._items.close("incomplete")
            self._error = {"code": code, "message": message}
            self._write_end("failed")

    def _end(self, status: ResponseStatus) -> bytes:
        self._write_end(status)
        return self._events.take()

    def _write_end(self, status: ResponseStatus) -> None:
        """Write the last event; clients know no event of a cancelled response, so that is incomplete."""
        if self._ended:
            return
        self._ended = True
        self.status = status
        kind = "incomplete" if status == "cancelled" else status
        self._events.write(f"response.{kind}", {"response": self.response})


def _item_status(reason: e.FinishReason | None) -> Literal["completed", "incomplete"]:
    """Return the status of the last item of a step that ended for `reason`."""
    return "incomplete" if reason in _CUT_REASONS else "completed"


def encode_document(events: Sequence[e.Event], head: ResponseHead) -> bytes:
    """Encode the response object. Raises ProviderError if the answer has no finish."""
    encoder = ResponsesStreamEncoder(head)
    for event in events:
        encoder.encode([event])
    encoder.end()
    return json_codec.encode_document(encoder.response)


def compaction_document(
    events: Sequence[e.Event], *, head: ResponseHead, user_items: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the object that answers a request for a compaction; ProviderError without a whole summary."""
    encoder = ResponsesStreamEncoder(head)
    for event in events:
        encoder.encode([event])
    encoder.end()
    base_id = head.id.removeprefix("resp_")
    users = [{"id": f"msg_{base_id}{index:04d}", **item} for index, item in enumerate(user_items)]
    response = encoder.response
    if response["status"] != "completed":
        raise ProviderError("the model's summary is not complete", category="api_error")
    return {
        "id": head.id,
        "object": "response.compaction",
        "created_at": head.created_at,
        "output": [*users, *response["output"]],
        "usage": response["usage"],
    }


def encode_usage(usage: e.Usage | None) -> dict[str, Any] | None:
    """Encode usage as clients require it, with numbers throughout; None unless both sides are counted."""
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    input_tokens, output_tokens = usage.input_tokens, usage.output_tokens
    written = usage.cache_write_tokens
    details = {} if written is None else {"cache_write_tokens": written}
    fields: dict[str, Any] = {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0, **details},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.total_tokens or input_tokens + output_tokens,
    }
    return fields | ({"estimated": True} if usage.estimated else {})


# ---- Errors
# The hub has retried already, so a failed response has a code after which no client sends the request again.
# Codex does after `server_error`, `rate_limit_exceeded` and unknown codes, after a flat `error` event and
# after a stream without an end; the AI SDK after `server_is_overloaded` too, if there was no output.

FINAL_CODE = "invalid_prompt"
_FINAL_CODES: Mapping[str, str] = {
    "context_limit": "context_length_exceeded",
    "insufficient_quota": "insufficient_quota",
    "budget_exhausted": "insufficient_quota",
}


def failure_of(error: DragomanError) -> dict[str, str]:
    """Return the `error` of a failed response."""
    is_quota = isinstance(error, ProviderError) and error.category == "rate_limit" and not error.transient
    code = (
        "insufficient_quota" if is_quota or isinstance(error, BudgetExhausted) else failure_code(error.code)
    )
    return {"code": code, "message": error.message_and_hint}


def failure_code(code: str | None) -> str:
    """Return the code of a failed response for the code of one of our errors."""
    return _FINAL_CODES.get(code or "", FINAL_CODE)
