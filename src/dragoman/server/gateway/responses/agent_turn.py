"""The responses of agents: where the answer of each is stored, and the fields known before the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.ids import new_id
from dragoman.store.responses import StoredResponse
from dragoman.wire.responses.client_request import ResponsesRequest, parse_responses_request
from dragoman.wire.responses.encoder import ResponseHead

ANSWER_FIELDS = (
    "id",
    "object",
    "created_at",
    "status",
    "error",
    "incomplete_details",
    "model",
    "output",
    "usage",
)
_encode = msgspec.json.Encoder().encode


class AgentTurn(msgspec.Struct, rename={"message_id": "messageId"}, omit_defaults=True):
    """The message with a response's answer, stored in the field `dragoman` of the response object.

    `parts` is the number of parts that belong to earlier responses.
    """

    session: str
    message_id: str
    parts: int = 0


class AgentResponse(msgspec.Struct):
    """The field of a response object with its turn; None if a model has answered."""

    dragoman: AgentTurn | None = None


def response_head(
    parsed: ResponsesRequest, turn: AgentTurn, *, model: str, is_queued: bool = False
) -> ResponseHead:
    """Return the fields of a response that are known before its answer."""
    fields = {**parsed.response_fields, "dragoman": msgspec.to_builtins(turn)}
    return ResponseHead(
        id=new_id("resp"),
        model=model,
        created_at=int(time.time()),
        tools=parsed.tools,
        fields=fields,
        queued=is_queued,
        hub_runs_calls=True,
        shows_approvals=parsed.tools.declares_hub,
        shows_compactions=parsed.compact_threshold is not None,
        has_format=has_format(parsed.response_fields),
    )


def stored_head(response: StoredResponse) -> ResponseHead:
    """Return the fields of a stored response that were known before its answer."""
    body: dict[str, Any] = msgspec.json.decode(response.body)
    repeated = {name: body.get(name) or [] for name in ("tools", "context_management")}
    request = parse_responses_request(_encode({"model": body["model"], "input": "-", **repeated}))
    tools = request.tools
    return ResponseHead(
        id=response.id,
        model=body["model"],
        created_at=body["created_at"],
        tools=tools,
        fields={name: value for name, value in body.items() if name not in ANSWER_FIELDS},
        hub_runs_calls=True,
        shows_approvals=tools.declares_hub,
        shows_compactions=request.compact_threshold is not None,
        has_format=has_format(body),
    )


def has_format(fields: Mapping[str, Any]) -> bool:
    """Return whether an answer has another format than text."""
    format = (fields.get("text") or {}).get("format") or {}
    return bool(format.get("type", "text") != "text")


def turn_of(response: StoredResponse) -> AgentTurn | None:
    """Return the turn of a response; None if a model has answered."""
    return msgspec.json.decode(response.body, type=AgentResponse).dragoman
