"""Read usage and the end from a relayed answer of the Responses API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.openai.document_tap import read_document
from dragoman.wire.openai.stream_repair import encode_repaired
from dragoman.wire.openai.tap import invalid_frame_error
from dragoman.wire.provider_errors import find_error, incomplete_answer_error, with_usage
from dragoman.wire.responses.call_repair import CLIENT_CALLS, ResponseCallRepair
from dragoman.wire.responses.chunk import responses_error
from dragoman.wire.responses.usage import usage_of_response
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame
from dragoman.wire.tap import AnswerDefaults, AnswerSummary, AnswerTap, join_frames

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_EMPTY_OUTPUT = re.compile(rb'"output"\s*:\s*\[\s*\]')
_ITEM_END = "response.output_item.done"
_ITEM_EVENTS = ("response.output_item.added", _ITEM_END)
MAX_ITEMS_BYTES = 4_000_000
_NOT_COMPLETE = ("failed", "cancelled", "queued", "in_progress")  # other values are vendors' own
_HEADS = ("response.created", "response.in_progress", "response.queued")


_ABSENT = msgspec.Raw(b"")


class ResponsesTapEvent(msgspec.Struct, gc=False):
    """The fields of an event that are read. Raw values are empty if they are absent: msgspec takes none of
    them where null is allowed as well.
    """

    type: str | None = None
    delta: str | None = None
    response: msgspec.Raw = _ABSENT
    item: msgspec.Raw = _ABSENT
    output_index: int | None = None
    error: Any = None
    code: Any = None
    message: Any = None


class ResponsesTapItem(msgspec.Struct, gc=False):
    """The fields of an item that are read."""

    type: Any = None
    call_id: Any = None


class AnnouncedResponse(msgspec.Struct, frozen=True):
    """What the first event of a stream says of its response."""

    id: str
    created_at: int
    model: str


_decoder = msgspec.json.Decoder(ResponsesTapEvent)
_item_decoder = msgspec.json.Decoder(ResponsesTapItem)


class ResponsesTap(AnswerTap):
    """See `AnswerTap`. A failed response, and an error event, are failures and are not passed on."""

    def __init__(self, *, defaults: AnswerDefaults | None = None, limit: int = MAX_FRAME_BYTES) -> None:
        super().__init__(limit=limit)
        self.announced: AnnouncedResponse | None = None
        """The response whose first event was passed on."""
        self.passed_events = 0
        self._calls = ResponseCallRepair(defaults)
        self._usage: Usage | None = None
        self._items: dict[int, msgspec.Raw] = {}
        self._items_size = 0

    @property
    def usage(self) -> Usage | None:
        """See `AnswerTap`."""
        return self._usage

    def _forward(self, frames: Sequence[bytes], *, last: bool = False) -> bytes:
        passed = self._inspect(frames)
        self.passed_events += len(passed)
        return join_frames(passed)

    def _end(self) -> bytes:
        self.failure = incomplete_answer_error("ended without its response", started=self._started)
        return b""

    def _inspect(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Return the frames to pass on, up to a failure."""
        passed: list[bytes] = []
        for frame in frames:
            if frame.strip() in (b"", b"null", b"[DONE]"):
                continue
            event = _read_event(frame)
            if event is None:
                if isinstance(frame, NamedFrame) and not frame.event.startswith(("response.", "error")):
                    continue  # a heartbeat of the server's own
                self.failure = invalid_frame_error(frame)
                break
            repaired = self._with_own_call_id(event, frame) if event.type in _ITEM_EVENTS else frame
            self._record(event, frame)
            if self.failure is not None:
                break
            passed.append(_with_name(self._with_output(event, repaired), event.type))
            if self.done:
                break
        return passed

    def _record(self, event: ResponsesTapEvent, frame: bytes) -> None:
        if event.delta is not None:
            self._started = True
            self.text_length += len(event.delta)
        elif event.type in _ENDS:
            self._record_end(event)
        elif event.type == _ITEM_END:
            self._keep_item(event)
        elif event.type in _HEADS:
            self._started = True
            self._record_head(_read_response(event) if self.announced is None else None)
        elif event.type == "error" or event.error or (event.type is None and _is_error(frame)):
            error = event.error or {"code": event.code, "message": event.message}
            self.failure = responses_error(error)

    def _record_end(self, event: ResponsesTapEvent) -> None:
        response = _read_response(event)
        if response is None:
            self.failure = incomplete_answer_error("ended without its response", started=self._started)
            return
        self._record_model(response)
        self._usage = usage_of_response(response, model=self.model or "") or self._usage
        reason = end_of(response)
        if reason is None or event.type in ("response.failed", "response.cancelled"):
            self.failure = failure_in(response)
            return
        self.finish_reason, self.done = reason, True

    def _keep_item(self, event: ResponsesTapEvent) -> None:
        """Keep an item for a response whose end has none; of a very large response, none."""
        self._started = True
        item = bytes(event.item)
        if not item or event.output_index is None or self._items_size > MAX_ITEMS_BYTES:
            return
        self._items[event.output_index] = msgspec.Raw(item)
        self._items_size += len(item)
        if self._items_size > MAX_ITEMS_BYTES:
            self._items.clear()

    def _with_own_call_id(self, event: ResponsesTapEvent, frame: bytes) -> bytes:
        """Return the frame of an item that is a call with an id of its own."""
        try:
            head = _item_decoder.decode(event.item)
        except DECODE_ERRORS:
            return frame
        index = event.output_index
        if index is None or not isinstance(head.type, str) or head.type not in CLIENT_CALLS:
            return frame
        if self._calls.own_id(head.call_id, index=index) == head.call_id:
            return frame
        value = parse_lenient_json(frame)
        value["item"] = self._calls.repair_item(value["item"], index)
        event.item = msgspec.Raw(encode_repaired(value["item"]))
        return _replace_frame(frame, value)

    def _with_output(self, event: ResponsesTapEvent, frame: bytes) -> bytes:
        """Return the frame of the end with the items that were sent before, if the server leaves them out of
        it: the SDKs, and conversations that continue with the response, read them there.
        """
        if not self.done:
            return frame
        if not self._items or _EMPTY_OUTPUT.search(event.response) is None:
            response = _read_response(event) if b'"call_id"' in bytes(event.response) else None
            repaired = self._calls.repair_response(response) if response is not None else None
            return frame if repaired is None else self._with_response(frame, repaired)
        response = _read_response(event) or {}
        if response.get("output") != []:
            return frame
        items = [self._items[index] for index in sorted(self._items)]
        return self._with_response(frame, {**response, "output": items})

    @staticmethod
    def _with_response(frame: bytes, response: Mapping[str, Any]) -> bytes:
        return _replace_frame(frame, {**parse_lenient_json(frame), "response": response})

    def _record_head(self, response: Mapping[str, Any] | None) -> None:
        """Record the first event with a response that has an id."""
        self._record_model(response)
        id, created_at = (response or {}).get("id"), (response or {}).get("created_at")
        if isinstance(id, str):
            created = created_at if isinstance(created_at, int) else 0
            self.announced = AnnouncedResponse(id, created, self.model or "")

    def _record_model(self, response: Mapping[str, Any] | None) -> None:
        model = (response or {}).get("model")
        self.model = model if isinstance(model, str) and model else self.model


def _read_event(frame: bytes) -> ResponsesTapEvent | None:
    """Return the event in a frame; None if it is not a JSON object."""
    try:
        return _decoder.decode(frame)
    except DECODE_ERRORS:
        pass
    try:
        value = parse_lenient_json(frame)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    kind, delta = value.get("type"), value.get("delta")
    response = value.get("response")
    return ResponsesTapEvent(
        type=kind if isinstance(kind, str) else None,
        delta=delta if isinstance(delta, str) else None,
        response=_ABSENT if response is None else msgspec.Raw(json.dumps(response).encode()),
        error=value.get("error") or (None if isinstance(kind, str) else find_error(value)),
        code=value.get("code"),
        message=value.get("message"),
    )


def _read_response(event: ResponsesTapEvent) -> dict[str, Any] | None:
    try:
        value = parse_lenient_json(bytes(event.response))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_error(frame: bytes) -> bool:
    return isinstance(frame, NamedFrame) and frame.event == "error"


def _replace_frame(frame: bytes, value: Mapping[str, Any]) -> bytes:
    """Return a frame with another value, under its name."""
    raw = encode_repaired(value)
    return NamedFrame(raw, frame.event) if isinstance(frame, NamedFrame) else raw


def _with_name(frame: bytes, kind: str | None) -> bytes:
    """Return a frame with the name that some clients dispatch on."""
    return frame if isinstance(frame, NamedFrame) or not kind else NamedFrame(frame, kind)


def end_of(response: Mapping[str, Any]) -> str | None:
    """Return how a response ended: its status, or why it is incomplete. None if it failed or is not over."""
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else None
        return reason if isinstance(reason, str) and reason else "incomplete"
    return None if response.get("error") or status in _NOT_COMPLETE else "completed"


def failure_in(response: Mapping[str, Any]) -> ProviderError:
    """Return the error of a response that failed."""
    error = response.get("error") or {"message": f"the provider's response is {response.get('status')}"}
    return with_usage(responses_error(error), usage_of_response(response))


def read_response(raw: bytes, defaults: AnswerDefaults | None = None) -> AnswerSummary:
    """Read a response document. Raises ProviderError if it is invalid, failed or not over."""
    value = read_document(raw, "object")
    model, reason = value.get("model"), end_of(value)
    if reason is None:
        raise failure_in(value)
    name = model if isinstance(model, str) else None
    repaired = ResponseCallRepair(defaults).repair_response(value)
    document = None if repaired is None else encode_repaired(repaired)
    return AnswerSummary(usage_of_response(value, model=name or ""), name, reason, document)
