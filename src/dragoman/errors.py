"""Every error of the hub, as one tree: code, HTTP status, transient or not, when to try again.

DragomanError
├── ConfigError            dragoman.yaml or the environment is wrong
├── BadRequest        400  the caller's input is invalid; `field` names the field
│   ├── InvalidInput  400  an operation's input does not match its schema
│   ├── UnknownThread 400  a request continues a conversation that its provider does not keep
│   └── UnknownPreviousResponse 400  the response that a request continues does not exist
├── Unauthorized      401
│   └── KeyEnded      401  the key was revoked, or has expired, while it was in use
├── Forbidden         403
├── NotFound          404
│   ├── ResponseNotFound 404  there is no such response, conversation or item
│   └── SessionDeleted 404  the session is being deleted
├── Conflict          409
│   └── RunActive     409  the session already has an active run
├── TooLarge          413
├── LimitReached      429  a rate or concurrency limit of a key or its owner; `retry_after` is set
├── BudgetExhausted   429  a budget of a key or its owner is spent, or reserved by active requests
├── Unavailable       503  the hub is shutting down, or its database does not answer
│   ├── HostGone      503  the host is not one of those that share the database, or no longer
│   ├── RunnerGone    503  the runner of a session stays away, or has lost its turn
│   └── HostUnreachable 503  the host that has to be asked does not answer over HTTP
├── WireError              bytes that violate a protocol
│   ├── FrameTooLong
│   └── OutOfOrder         an event that the grammar does not allow here
├── ProviderError          a model request failed; `code` is its category
├── StoreError             the database refused an operation
│   └── HostFenced    503  other hosts declared this one dead, so it may not write any more
└── CallError              an operation failed
    ├── CallTimeout        its deadline passed
    ├── CallDenied         the policy or a hook does not allow it
    ├── ApprovalNeeded     a person has to approve it first
    ├── RateLimited        the operation's own rate limit; `retry_after` is set
    └── CallUncertain      the process that ran it is gone; it may or may not have taken effect
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dragoman.session_ids import client_session_id

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
    """The root of all errors. `str(error)` is safe to show: it never contains a secret."""

    code: str = "internal"
    status: int = 500
    transient: bool = False
    retry_after: float | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled and copied by calling its class with `args`, which lack keyword arguments.
        return _restore_error, (type(self), self.args), vars(self)

    @property
    def message_and_hint(self) -> str:
        """The message, with the hint in parentheses if there is one: for those who are shown one text."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def to_json(self) -> dict[str, object]:
        """Return the value of `error` in every endpoint's error body: `{code, message, hint?, ...}`."""
        body: dict[str, object] = {"code": self.code, "message": self.message}
        if self.hint:
            body["hint"] = self.hint
        return body


def _restore_error(kind: type[DragomanError], args: tuple[Any, ...]) -> DragomanError:
    """Return an error without its fields, for `pickle` and `copy`."""
    return kind.__new__(kind, *args)


def release_frames(error: BaseException) -> None:
    """Drop the tracebacks of a handled error, and of those it came from.

    A frame that has the error in a variable is part of a cycle with its traceback: error, traceback, frame,
    error. The frame's other variables, such as the body of a request, would stay until the garbage collector
    runs, which is rare in a hub. Call it where an error was handled and is not raised again.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and current.__traceback__ is not None:
            current.__traceback__ = None
            pending += (current.__cause__, current.__context__)


class ConfigError(DragomanError):
    """The configuration is invalid; the message names the file and the field."""

    code = "config"


class BadRequest(DragomanError):
    """The caller's input is invalid; `field` is a dotted path into it."""

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


class UnknownThread(BadRequest):
    """A request continues a conversation that its provider does not keep: the whole of it is needed."""


class InvalidInput(BadRequest):
    """An operation's input does not match its schema; `problems` lists every invalid field."""

    code = "invalid_input"

    def __init__(self, message: str, *, problems: list[dict[str, object]], hint: str | None = None) -> None:
        field = str(problems[0].get("path", "")) if problems else None
        super().__init__(message, field=field, hint=hint)
        self.problems = problems

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "problems": self.problems}


class UnknownPreviousResponse(BadRequest):
    """The response that a request continues does not exist, or is another owner's."""

    code = "previous_response_not_found"


class Unauthorized(DragomanError):
    """The request has no key, or an unknown, expired or revoked one."""

    code = "unauthorized"
    status = 401


class KeyEnded(Unauthorized):
    """The key was revoked, deleted or rotated, or has expired, and what was in progress for it was ended.

    `reason` names it in two words: "key revoked", "key expired", "key rotated", "key deleted".
    """

    code = "key_revoked"

    def __init__(self, message: str, *, reason: str = "key revoked", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.code = reason.replace(" ", "_")


class Forbidden(DragomanError):
    """The key is valid but does not allow this. `scope` is the scope that the key lacks, if one would do."""

    code = "forbidden"
    status = 403

    def __init__(self, message: str, *, hint: str | None = None, scope: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.scope = scope


class NotFound(DragomanError):
    """The named session, message, operation, model or key does not exist."""

    code = "not_found"
    status = 404


class UnknownAddress(NotFound):
    """Nothing is at the address of a request."""


class MethodNotAllowed(DragomanError):
    """The address exists, and not for this method."""

    code = "method_not_allowed"
    status = 405


class ResponseNotFound(NotFound):
    """There is no response, conversation or item of this id, or it is another owner's."""

    def __init__(self, message: str, *, code: str = "response_not_found", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Conflict(DragomanError):
    """The request conflicts with the current state of the resource."""

    code = "conflict"
    status = 409


class SessionDeleted(NotFound):
    """The session is being deleted: nobody has it any more, and its id is not free yet."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"the session {session_id!r} is being deleted", hint="retry the request")


class RunActive(Conflict):
    """The session already has an active run."""

    code = "run_active"

    def __init__(self, session_id: str, run_id: str) -> None:
        super().__init__(
            f"session {client_session_id(session_id)!r} already has an active run ({run_id!r})",
            hint='wait for it, stop it with POST /api/chat/{id}/stop, or send "whenBusy": "queue"',
        )
        self.run_id = run_id

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "runId": self.run_id}


A2aReason = Literal[
    "TASK_NOT_FOUND",
    "TASK_NOT_CANCELABLE",
    "UNSUPPORTED_OPERATION",
    "VERSION_NOT_SUPPORTED",
    "METHOD_NOT_FOUND",
    "INVALID_REQUEST",
    "PARSE_ERROR",
]


class A2aError(DragomanError):
    """An A2A request failed for a `reason` that the protocol names."""

    code = "a2a_error"
    status = 400

    def __init__(self, message: str, reason: A2aReason, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class TooLarge(DragomanError):
    """A body, part or result exceeds its size limit."""

    code = "too_large"
    status = 413


class LimitReached(DragomanError):
    """A rate or concurrency limit of a key or its owner; retry after `retry_after` seconds."""

    code = "rate_limit_exceeded"
    status = 429
    transient = True

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class BudgetExhausted(DragomanError):
    """A budget is spent or, when `transient`, reserved by requests that are still active."""

    code = "insufficient_quota"
    status = 429

    def __init__(self, message: str, *, transient: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient
        self.retry_after = 1.0 if transient else None


class Unavailable(DragomanError):
    """The hub is shutting down, or its database does not answer."""

    code = "unavailable"
    status = 503
    transient = True
    retry_after: float | None = 1.0


class RunnerGone(Unavailable):
    """The runner of a session stays away, or has lost the turn that it was answering."""

    code = "runner_gone"


class HostGone(Unavailable):
    """A host that has to be asked has ended, or was declared dead: what it did continues at another."""

    code = "host_gone"


class HostUnreachable(Unavailable):
    """A host that has to be asked does not answer over HTTP, although it is alive as far as is known."""

    code = "host_unreachable"


class WireError(DragomanError):
    """Bytes or values that violate a protocol."""

    code = "wire"
    status = 400


class FrameTooLong(WireError):
    """A line or frame exceeds the size limit; it is discarded."""

    code = "frame_too_long"


class OutOfOrder(WireError):
    """An event that the grammar of a run does not allow at this point."""

    code = "out_of_order"


class ProviderError(DragomanError):
    """A model request failed. `code` is its category, `upstream_status` the provider's HTTP status if any.

    `retry_after` is in seconds, from the provider. `transient`: a retry can help. `details` is the provider's
    own error object without secrets. `caller_may_retry`: the hub is configured not to retry, so the caller
    may. `cost` (US dollars) and `usage` (fields of `Usage`) are set when the failed request was charged.
    `cut_length` is set when a document was cut off: about how many characters of an answer it had.
    """

    status = 502
    details: Mapping[str, Any] | None = None
    caller_may_retry: bool = False
    cost: float | None = None
    usage: Mapping[str, Any] | None = None
    cut_length: int | None = None

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
    """The database refused an operation; the message names the operation, not the values."""

    code = "store"
    status = 503


class HostFenced(StoreError):
    """Other hosts declared this one dead: they have its runs, and nothing that it writes is accepted."""

    code = "host_fenced"
    transient = True
    retry_after: float | None = 1.0

    def __init__(self, host_id: str) -> None:
        super().__init__(
            f"the other hosts of this database took {host_id!r} for dead, so it may not write any more",
            hint="it ends with exit code 75, to be started again; retry the request at another host",
        )


class CallError(DragomanError):
    """An operation failed; the model receives the message."""

    code = "call_failed"


class CallTimeout(CallError):
    """The call's deadline passed."""

    code = "call_timeout"
    transient = True


class CallDenied(CallError):
    """The policy or a hook does not allow the call."""

    code = "call_denied"
    status = 403


class ApprovalNeeded(CallError):
    """A person has to approve the call first. `items` are the operations that need the approval.

    `state` is the saved state of the suspended call, which resumes from it.
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
    """The operation's own rate limit; retry after `retry_after` seconds."""

    code = "rate_limited"
    status = 429
    transient = True

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class CallUncertain(CallError):
    """The process that ran the call is gone; the call may or may not have taken effect."""

    code = "uncertain"


_ERRORS_BY_STATUS: Mapping[int, type[DragomanError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    503: Unavailable,
}


def error_for_status(status: int, message: str, *, hint: str | None = None) -> DragomanError:
    """Return the error that a hub answers with this HTTP status."""
    return _ERRORS_BY_STATUS.get(status, DragomanError)(message, hint=hint)
