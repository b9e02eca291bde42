"""Asking: how an MCP client is asked for an approval, and what it answered."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman.errors import BadRequest
from dragoman.operations.approval import Approval
from dragoman.operations.ledger import hash_input
from dragoman.operations.outcome import CallFailure

QUESTION = "approval"  # the name of the one thing that is asked
INPUT_LIMIT = 4_000
SEALED = 32  # bytes of the seal
FOREIGN = "the requestState is not of this request"
Said = Literal["yes", "no", "nothing"]
DECLINED = CallFailure(code="call_denied", message="the call was not approved")
SCHEMA: Mapping[str, Any] = {
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


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a state stands for: an approval, whose it is, and of which request."""

    approval_id: str
    owner: str
    tool: str
    input_hash: str


class Seal:
    """Makes states that only this hub can make, until it ends; clients keep them, and bring them back."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def close(self, claim: Claim) -> str:
        """The claim as a text that nobody else can make."""
        raw = msgspec.json.encode(claim)
        return base64.urlsafe_b64encode(self._sign(raw) + raw).decode()

    def open(self, state: str) -> Claim:
        """The claim in a state. BadRequest when this hub has not made it."""
        try:
            raw = base64.urlsafe_b64decode(state.encode())
            if not hmac.compare_digest(raw[:SEALED], self._sign(raw[SEALED:])):
                raise BadRequest(FOREIGN)
            return msgspec.json.decode(raw[SEALED:], type=Claim)
        except (ValueError, msgspec.DecodeError):
            raise BadRequest(FOREIGN) from None

    def _sign(self, raw: bytes) -> bytes:
        return hmac.new(self._key, raw, hashlib.sha256).digest()


def claim_of(approval_id: str, owner: str, *, tool: str, input: Mapping[str, Any]) -> Claim:
    """The claim of a request for a tool with this input."""
    return Claim(approval_id, owner, tool, hash_input(input))


def form(approval: Approval) -> dict[str, Any]:
    """The parameters of `elicitation/create` that ask for an approval: what would be called, with what."""
    lines = ["May this be done?"]
    for item in approval.items:
        lines.append(f"{item.operation} with {shorten(item.input)}")
        if item.reason:
            lines.append(f"({item.reason})")
    return {"mode": "form", "message": "\n".join(lines), "requestedSchema": SCHEMA}


def shorten(input: Any) -> str:
    """An input as JSON; of a long one the beginning, and how much is left out."""
    text = msgspec.json.encode(input).decode()
    over = len(text) - INPUT_LIMIT
    return text if over <= 0 else f"{text[:INPUT_LIMIT]}… ({over} more characters)"


def said_in(response: Any) -> Said:
    """What an answer to the form says; `nothing` where it says neither, as when it was dismissed."""
    if not isinstance(response, Mapping):
        return "nothing"
    match response.get("action"), response.get("content"):
        case "accept", {"approve": True}:
            return "yes"
        case ("accept", {"approve": False}) | ("decline", _):
            return "no"
        case _:
            return "nothing"
