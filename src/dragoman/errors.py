"""Every error of the hub, as one tree: code, HTTP status, transient or not, when to try again.

DragomanError
├── ConfigError            dragoman.yaml or the environment is wrong
├── BadRequest        400  the caller's input is wrong; `field` names where
│   └── InvalidInput  400  an operation's input does not fit its schema
├── Unauthorized      401
├── Forbidden         403
├── NotFound          404
├── Conflict          409
│   └── RunActive     409  the session is busy with another run
├── TooLarge          413
├── LimitReached      429  a key or its owner asks too often or too much at once; `retry_after` says when
├── BudgetExhausted   429  the money of a key or its owner is spent, or reserved by what is under way
├── Unavailable       503  the hub cannot do it now: draining, or the store is gone
├── WireError              bytes that break a protocol
│   ├── FrameTooLong
│   └── OutOfOrder         an event that the grammar does not allow here
├── ProviderError          a model's answer failed; `code` is its category
├── StoreError             the database refused
└── CallError              an operation failed
    ├── CallTimeout        its deadline passed
    ├── CallDenied         the caller may not call it
    ├── ApprovalNeeded     somebody has to approve it first
    ├── RateLimited        the operation takes no more calls for now; `retry_after` says when
    └── CallUncertain      whoever ran it is gone, and it is not known whether it took effect
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

ProviderCategory = Literal[
    "rate_limit",
    "overloaded",
    "api_error",
    "auth",
    "bad_request",
    "context_limit",
    "content_filter",
    "timeout",
    "network",
    "cancelled",
    "unknown",
]


class DragomanError(Exception):
    """The root. `str(error)` is safe to show: it never holds a secret."""

    code: str = "internal"
    status: int = 500
    transient: bool = False
    retry_after: float | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def to_json(self) -> dict[str, object]:
        """The body that every door sends: `{"error": {code, message, hint?, ...}}` without the outer key."""
        body: dict[str, object] = {"code": self.code, "message": self.message}
        if self.hint:
            body["hint"] = self.hint
        return body


class ConfigError(DragomanError):
    """The configuration cannot be used; the message names the file and the field."""

    code = "config"


class BadRequest(DragomanError):
    """The caller's input is wrong; `field` is a dotted path into it."""

    code = "bad_request"
    status = 400

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field

    def to_json(self) -> dict[str, object]:
        body = super().to_json()
        if self.field is not None:
            body["field"] = self.field
        return body


class InvalidInput(BadRequest):
    """An operation's input does not fit its schema; `problems` lists every field that is wrong."""

    code = "invalid_input"

    def __init__(self, message: str, *, problems: list[dict[str, object]], hint: str | None = None) -> None:
        field = str(problems[0].get("path", "")) if problems else None
        super().__init__(message, field=field, hint=hint)
        self.problems = problems

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "problems": self.problems}


class Unauthorized(DragomanError):
    """No key, or one that the hub does not know."""

    code = "unauthorized"
    status = 401


class Forbidden(DragomanError):
    """The key is valid but does not allow this. `scope` is the scope that the key lacks, if one would do."""

    code = "forbidden"
    status = 403

    def __init__(self, message: str, *, hint: str | None = None, scope: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.scope = scope


class NotFound(DragomanError):
    """No such session, message, operation, model or key."""

    code = "not_found"
    status = 404


class Conflict(DragomanError):
    """What is asked does not fit the state that the hub holds."""

    code = "conflict"
    status = 409


class RunActive(Conflict):
    """The session is busy with another run."""

    code = "run_active"

    def __init__(self, session_id: str, run_id: str) -> None:
        super().__init__(
            f"session {session_id!r} is already answering (run {run_id!r})",
            hint='wait for it, stop it with POST /api/chat/{id}/stop, or send "whenBusy": "queue"',
        )
        self.run_id = run_id

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "runId": self.run_id}


class TooLarge(DragomanError):
    """A body, part or result over its limit."""

    code = "too_large"
    status = 413


class LimitReached(DragomanError):
    """A key or its owner asks too often, or for too much at once; it may again in `retry_after` seconds."""

    code = "rate_limit_exceeded"
    status = 429
    transient = True

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class BudgetExhausted(DragomanError):
    """A budget has no room: it is spent, or (`transient`) reserved by requests that are under way."""

    code = "insufficient_quota"
    status = 429

    def __init__(self, message: str, *, transient: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient
        self.retry_after = 1.0 if transient else None


class Unavailable(DragomanError):
    """The hub cannot do this now: it drains, or its store does not answer."""

    code = "unavailable"
    status = 503
    transient = True
    retry_after: float | None = 1.0


class WireError(DragomanError):
    """Bytes or values that break a protocol."""

    code = "wire"
    status = 400


class FrameTooLong(WireError):
    """A line or frame over the limit; nothing of it is kept."""

    code = "frame_too_long"


class OutOfOrder(WireError):
    """An event that the grammar of a run does not allow here."""

    code = "out_of_order"


class ProviderError(DragomanError):
    """A model request failed. `code` is its category, `upstream_status` the provider's HTTP status if any.

    `retry_after` is in seconds, as the provider asked. `transient` says whether trying again can help.
    `details` is the provider's own error object, without its secrets. `caller_may_retry`: nobody has tried
    again yet, as the hub was told to, so that whoever asked may. `cost` is in US dollars, where the
    provider says that it cost something all the same, and `usage` the tokens that it took, by the names of
    `Usage`.
    """

    status = 502
    details: Mapping[str, Any] | None = None
    caller_may_retry: bool = False
    cost: float | None = None
    usage: Mapping[str, Any] | None = None

    def __init__(
        self,
        message: str,
        *,
        category: ProviderCategory = "unknown",
        upstream_status: int | None = None,
        transient: bool = False,
        retry_after: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.category = category
        self.code = category
        self.upstream_status = upstream_status
        self.transient = transient
        self.retry_after = retry_after


class StoreError(DragomanError):
    """The database refused; the message names what was tried, not the values."""

    code = "store"
    status = 503


class CallError(DragomanError):
    """An operation failed; the message is what the model is told."""

    code = "call_failed"


class CallTimeout(CallError):
    """The call's deadline passed."""

    code = "call_timeout"
    transient = True


class CallDenied(CallError):
    """The caller may not call this operation."""

    code = "call_denied"
    status = 403


class ApprovalNeeded(CallError):
    """Somebody has to approve the call first. `items` are the calls that want it.

    `state` is how far it had come; it goes on from there.
    """

    code = "approval_needed"
    status = 403

    def __init__(
        self,
        message: str,
        *,
        items: Sequence[Any] = (),
        approval_id: str | None = None,
        hint: str | None = None,
        state: bytes | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.items = tuple(items)
        self.approval_id = approval_id
        self.state = state


class RateLimited(CallError):
    """The operation takes no more calls for now; it may again in `retry_after` seconds."""

    code = "rate_limited"
    status = 429
    transient = True

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class CallUncertain(CallError):
    """Whoever ran the call is gone; it is not known whether it took effect."""

    code = "uncertain"
