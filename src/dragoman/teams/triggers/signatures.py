"""Signed deliveries to a webhook of a trigger: verify one, and find its id and event.

Sources: GitHub's `X-Hub-Signature-256`, Stripe's `Stripe-Signature` (v1), Standard Webhooks 1.0.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.errors import BadRequest, ConfigError, Unauthorized
from dragoman.http.webhook import TOLERANCE, verify_webhook
from dragoman.json_decoding import DECODE_ERRORS, parse_digits
from dragoman.teams.trigger_spec import SignatureKind

MAX_ID = 200  # characters of a delivery's id
MAX_EVENT = 200
TIMELESS: frozenset[SignatureKind] = frozenset({"github"})
"""Whose signatures cover the body alone: neither the id of the delivery nor a time."""
REFUSED = "the request is not signed with the secret of this trigger, or its timestamp is too old"


class SignedRequest(msgspec.Struct, frozen=True):
    """A request to verify: headers by lower-case name, the body as it arrived, the time."""

    headers: Mapping[str, str]
    body: bytes
    now: float


class SignedDelivery(msgspec.Struct, frozen=True):
    """A delivery whose signature is valid: its id, its event if any, and its body as JSON or text.

    `timeless` is the SHA-256 of a body whose signature is valid for ever, with any id.
    """

    id: str
    event: str | None
    body: Any
    timeless: str | None = None


def verify_delivery(request: SignedRequest, *, kind: SignatureKind, secret: str) -> SignedDelivery:
    """Return a delivery if it is signed. Raises Unauthorized, BadRequest."""
    VERIFIERS[kind](request, secret)
    body = decode_body(request.body)
    fields = body if isinstance(body, Mapping) else {}
    places: Mapping[SignatureKind, tuple[Any, Any]] = {
        "github": (request.headers.get("x-github-delivery"), request.headers.get("x-github-event")),
        "stripe": (fields.get("id"), fields.get("type")),
        "standard": (request.headers.get("webhook-id"), fields.get("type")),
    }
    id, event = places[kind]
    if not isinstance(id, str) or not id or len(id) > MAX_ID or not id.isprintable():
        raise BadRequest("the delivery has no id, so a repeated delivery could not be detected")
    timeless = hashlib.sha256(request.body).hexdigest() if kind in TIMELESS else None
    return SignedDelivery(id, event[:MAX_EVENT] if isinstance(event, str) else None, body, timeless)


def verify_github(request: SignedRequest, secret: str) -> None:
    """GitHub's HMAC-SHA256 of the body, in hexadecimal digits. It has no timestamp."""
    expected = "sha256=" + hmac.new(secret.encode(), request.body, hashlib.sha256).hexdigest()
    require_equal(request.headers.get("x-hub-signature-256", ""), expected)


def verify_stripe(request: SignedRequest, secret: str) -> None:
    """Stripe's `t=TIME,v1=HMAC,…`: one of several signatures may match, of a recent time."""
    pairs = [each.strip().partition("=") for each in request.headers.get("stripe-signature", "").split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    time = parse_digits(times[0]) if len(times) == 1 else None
    if time is None or abs(request.now - time) > TOLERANCE:
        raise Unauthorized(REFUSED)
    signed = times[0].encode() + b"." + request.body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest().encode()
    found = [value.encode(errors="replace") for name, _, value in pairs if name == "v1"]
    if not any(hmac.compare_digest(each, expected) for each in found):
        raise Unauthorized(REFUSED)


def verify_standard(request: SignedRequest, secret: str) -> None:
    """Standard Webhooks, as this hub signs its own."""
    try:
        verify_webhook(request.headers, request.body, secret=secret, now=request.now)
    except (Unauthorized, ConfigError):
        raise Unauthorized(REFUSED) from None


VERIFIERS: Mapping[SignatureKind, Callable[[SignedRequest, str], None]] = {
    "github": verify_github,
    "stripe": verify_stripe,
    "standard": verify_standard,
}


def require_equal(found: str, expected: str) -> None:
    """Raise Unauthorized unless two signatures are equal; it takes as long whichever digit differs."""
    if not hmac.compare_digest(found.encode(errors="replace"), expected.encode()):
        raise Unauthorized(REFUSED)


def decode_body(body: bytes) -> Any:
    """Return the body as JSON, else as text."""
    try:
        return msgspec.json.decode(body)
    except DECODE_ERRORS:
        return body.decode(errors="replace")
