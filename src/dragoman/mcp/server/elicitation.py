"""Elicitation: asking the user of an MCP client for an approval or an answer, and reading the reply."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman.errors import BadRequest
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.operations.approval import (
    MAX_ANSWER_LENGTH,
    ApprovalItem,
    ApprovalRequest,
    Question,
    validate_answer,
)
from dragoman.operations.ledger import hash_input

APPROVAL_INPUT = "approval"  # the only key of `inputRequests` and `inputResponses`
INPUT_PREVIEW_CHARS = 4_000
SIGNATURE_BYTES = 32  # of HMAC-SHA256
STATE_MISMATCH = "the requestState is not of this request"
APPROVAL_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {
            "type": "boolean",
            "title": "Approve",
            "description": "Whether this may be done, once.",
        },
    },
    "required": ["approve"],
}


class ElicitationReply(msgspec.Struct, frozen=True):
    """A user's reply: `nothing` if the form was dismissed; `answer` is the answer to a question."""

    decision: Literal["yes", "no", "nothing"]
    answer: str | None = None


NO_REPLY = ElicitationReply("nothing")


class RequestClaim(msgspec.Struct, frozen=True, array_like=True):
    """The content of a request state: an approval, its owner, and the request that it belongs to."""

    approval_id: str
    owner: str
    tool: str
    input_hash: str


class StateSigner:
    """Signs request states, which clients keep and send back. States are valid until the process ends."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def sign(self, claim: RequestClaim) -> str:
        """Return the claim as a signed text."""
        raw = msgspec.json.encode(claim)
        return base64.urlsafe_b64encode(self._signature(raw) + raw).decode()

    def verify(self, state: str) -> RequestClaim:
        """Return the claim of a state. Raises BadRequest if this hub did not sign it."""
        try:
            raw = base64.urlsafe_b64decode(state.encode())
            if not hmac.compare_digest(raw[:SIGNATURE_BYTES], self._signature(raw[SIGNATURE_BYTES:])):
                raise BadRequest(STATE_MISMATCH)
            return msgspec.json.decode(raw[SIGNATURE_BYTES:], type=RequestClaim)
        except (ValueError, *DECODE_ERRORS):
            raise BadRequest(STATE_MISMATCH) from None

    def _signature(self, raw: bytes) -> bytes:
        return hmac.new(self._key, raw, hashlib.sha256).digest()


def make_claim(approval_id: str, owner: str, *, tool: str, input: Mapping[str, Any]) -> RequestClaim:
    """Return the claim of a request."""
    return RequestClaim(approval_id, owner, tool, hash_input(input))


def elicitation_form(approval: ApprovalRequest) -> dict[str, Any]:
    """Return the parameters of `elicitation/create` for an approval, or for a question."""
    question = approval.question
    if question is not None:
        message = "\n".join([question.text, *agent_lines(approval.items[0])])
        return {"mode": "form", "message": message, "requestedSchema": answer_schema(question)}
    lines = ["May this be done?"]
    for item in approval.items:
        lines.append(f"{item.operation} with {input_preview(item.input)}")
        lines += [f"({item.reason})"] if item.reason else []
        lines += agent_lines(item)
    return {"mode": "form", "message": "\n".join(lines), "requestedSchema": APPROVAL_SCHEMA}


def agent_lines(item: ApprovalItem) -> list[str]:
    """Name the sub-agent whose model requests the call, if it is one."""
    return [f"(asked by the agent {item.agent})"] if item.agent else []


def answer_schema(question: Question) -> dict[str, Any]:
    """Return the schema of an answer. The options of a form are fixed, so `other` is a field of its own."""
    text = {"type": "string", "minLength": 1, "maxLength": MAX_ANSWER_LENGTH}
    if not question.options:
        answer = {**text, "title": "Answer", "description": "Your answer."}
        return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    answer = {
        "type": "string",
        "title": "Answer",
        "description": "One of these.",
        "enum": list(question.options),
    }
    other = {**text, "title": "Another answer", "description": "An answer other than those above."}
    return {"type": "object", "properties": {"answer": answer, "other": other}}


def input_preview(input: Any) -> str:
    """Return an input as JSON, shortened, with how much is left out."""
    text = msgspec.json.encode(input).decode()
    over = len(text) - INPUT_PREVIEW_CHARS
    return text if over <= 0 else f"{text[:INPUT_PREVIEW_CHARS]}… ({over} more characters)"


def parse_reply(response: Any, approval: ApprovalRequest) -> ElicitationReply:
    """Parse a reply to the form; `nothing` if it neither approves nor declines, as when it was dismissed.

    Raises BadRequest if the answer to a question is too long.
    """
    if not isinstance(response, Mapping):
        return NO_REPLY
    match response.get("action"), response.get("content"):
        case "decline", _:
            return ElicitationReply("no")
        case "accept", Mapping() as content if approval.question is not None:
            return parse_answer(content)
        case "accept", {"approve": True}:
            return ElicitationReply("yes")
        case "accept", {"approve": False}:
            return ElicitationReply("no")
        case _:
            return NO_REPLY


def parse_answer(content: Mapping[str, Any]) -> ElicitationReply:
    """Parse the answer to a question: the user's own text, else the chosen option."""
    for name in ("other", "answer"):
        value = content.get(name)
        if isinstance(value, str) and value.strip():
            return ElicitationReply("yes", validate_answer(value))
    return NO_REPLY
