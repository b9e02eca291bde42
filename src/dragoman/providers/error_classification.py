"""Classify errors of model requests, whichever library raised them.

Our own errors are recognised by type; those of httpx, aiohttp, openai, anthropic and others by their
attributes (a status, a response with headers, a body) and class names, so that none of these has to be
installed.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    CallTimeout,
    DragomanError,
    Forbidden,
    LimitReached,
    NotFound,
    ProviderCategory,
    ProviderError,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from dragoman.providers.retry import retry_after
from dragoman.redaction import safe_line
from dragoman.wire.anthropic.chunk import anthropic_error as anthropic_failure
from dragoman.wire.provider_errors import categorise, describe_error, find_error, provider_error

_TRANSIENT = frozenset({"rate_limit", "overloaded", "api_error", "timeout", "network"})
_MAX_CAUSES = 8  # length of the chain of causes that is searched
_STATUS_ATTRIBUTES = ("status_code", "status", "http_status", "code")
_DRAGOMAN_ERRORS: tuple[tuple[type[DragomanError], ProviderCategory], ...] = (
    (LimitReached, "rate_limit"),
    (BudgetExhausted, "rate_limit"),
    (RateLimited, "rate_limit"),
    (Unauthorized, "auth"),
    (Forbidden, "auth"),
    (BadRequest, "bad_request"),
    (NotFound, "bad_request"),
    (TooLarge, "bad_request"),
    (Unavailable, "overloaded"),
    (CallTimeout, "timeout"),
)
_BUILTIN_ERRORS: tuple[tuple[tuple[type[BaseException], ...], ProviderCategory], ...] = (
    ((asyncio.CancelledError,), "cancelled"),
    ((TimeoutError,), "timeout"),
    ((ConnectionError, socket.gaierror, asyncio.IncompleteReadError), "network"),
)
_FILES_REJECTED = re.compile(
    r"\b(image|audio|file|vision|pdf|document)s?([_ ](url|input|content|data|part)s?)?\b[^.]{0,60}"
    r"(\b(not|never|cannot|only)|n't)\b[^.]{0,30}\b(support|enabl|accept|allow|process|handl|read|available)"
    r"|(\b(not|no|cannot)|n't)\b[^.]{0,60}\b(support|accept|allow|process|handle|read|endpoints)\w*\b[^.]{0,30}"
    r"\b(image|audio|file|vision|pdf|multimodal|input_audio)"
    r"|unknown variant\W+(image|image_url|input_audio|file)\b"
    r"|not a multimodal model|missing data required for image|at most 0 (image|audio)"
    r"|unknown part type|content\W{0,3} must be a string"
    r"|invalid (content type|value)\W+(image_url|file|input_audio)",
    re.IGNORECASE,
)
_CAPABILITY = re.compile(
    r"support|accept|allow|enabl|available|endpoints|model\b|unknown (variant|part)|must be a string"
    r"|at most 0|invalid (content type|value)|missing data required",
    re.IGNORECASE,
)
_CLASS_NAMES: tuple[tuple[str, ProviderCategory], ...] = (
    (r"^(AbortError|.*Cancel(l?ed)?(Error)?)$", "cancelled"),
    (r"Timeout", "timeout"),
    (r"ContentFilter", "content_filter"),
    (r"^RateLimit", "rate_limit"),
    (r"^(Authentication|PermissionDenied)Error$", "auth"),
    (r"^((API)?Connect(ion)?|Read|Write|Close|Network|Transport|Proxy|RemoteProtocol)Error$", "network"),
    (r"^(ServerDisconnected|Client(Connection|Connector|OS|Payload)|ServerConnection)\w*$", "network"),
)  # fmt: skip
_MESSAGE_PATTERNS: tuple[tuple[str, ProviderCategory], ...] = (
    (r"rate[_ -]?limit|too many requests|resource_exhausted", "rate_limit"),
    (r"overloaded|no healthy upstream|service unavailable", "overloaded"),
    (r"(internal )?server error|bad gateway", "api_error"),
    (r"timed? ?out\b|gateway timeout|deadline exceeded", "timeout"),
    (r"(invalid|incorrect|missing) (x-)?api[ _-]?key|authentication_error|unauthori[sz]ed", "auth"),
    (r"econn(reset|refused|aborted)|enotfound|eai_again|socket hang up|fetch failed", "network"),
    (r"connection (was )?(reset|refused|closed|aborted)|server disconnected|incomplete read", "network"),
)  # fmt: skip


def classify_error(error: BaseException) -> ProviderCategory:
    """Return the category of an error: `rate_limit`, `overloaded`, `api_error`, `auth`, `bad_request`, ..."""
    return read_error(error).category


def is_transient_error(error: BaseException) -> bool:
    """Return whether a retry can help: 5xx and 529, rate limits (except a spent quota), timeouts."""
    return read_error(error).transient


def suggested_retry_delay(error: BaseException, *, clock: Callable[[], float] = time.time) -> float | None:
    """Return the delay in seconds from `Retry-After` or `Retry-After-Ms`; None without one."""
    return read_error(error, clock=clock).retry_after


def read_error(error: BaseException, *, clock: Callable[[], float] = time.time) -> ProviderError:
    """Convert an error to ProviderError, whose message is safe to show; return a ProviderError unchanged."""
    for cause in _causes(error):
        if isinstance(cause, ProviderError):
            return cause
        converted = _convert(cause, clock)
        if converted is not None:
            return converted
    return ProviderError(_message_of(error), category="unknown")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its chain of causes; of a group, its first error."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__


def _convert(error: BaseException, clock: Callable[[], float]) -> ProviderError | None:
    if isinstance(error, DragomanError):
        return _from_dragoman(error)
    status = _status(error)
    headers = _headers(error)
    if status is not None or isinstance(getattr(error, "body", None), Mapping):
        return _from_response(error, status, headers=headers, now=clock())
    category = _guess_category(error)
    if category is None:
        return None
    converted = ProviderError(_message_of(error), category=category, transient=category in _TRANSIENT)
    converted.retry_after = retry_after(headers, clock()) if converted.transient else None
    return converted


def _from_dragoman(error: DragomanError) -> ProviderError | None:
    category = next((category for kind, category in _DRAGOMAN_ERRORS if isinstance(error, kind)), None)
    if category is None:
        return None
    return ProviderError(
        error.message,
        category=category,
        transient=error.transient,
        retry_after=error.retry_after,
        hint=error.hint,
    )


def _from_response(
    error: BaseException, status: int | None, *, headers: Mapping[str, str], now: float
) -> ProviderError:
    """Convert an error response: its status, its headers, and the error object in its body."""
    body = _body(error)
    detail = find_error(body) or body or str(error)
    if status is None or status < 400:  # an error inside a stream that started with 200
        converted = anthropic_failure(detail)
    else:
        converted = provider_error(detail if describe_error(detail) else str(error), status=status)
    should_retry = headers.get("x-should-retry", "").strip().lower()
    transient = should_retry == "true" if should_retry in ("true", "false") else converted.transient
    return ProviderError(
        _message_of(error) if not converted.message else safe_line(converted.message),
        category=converted.category,
        upstream_status=converted.upstream_status,
        transient=transient,
        retry_after=retry_after(headers, now) if transient else None,
    )


def _guess_category(error: BaseException) -> ProviderCategory | None:
    """Guess the category from an error's type, class names and message; None if nothing matches."""
    for kinds, category in _BUILTIN_ERRORS:
        if isinstance(error, kinds):
            return category
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ != "builtins"]
    for pattern, category in _CLASS_NAMES:
        if any(re.search(pattern, name) for name in names):
            return category
    text = str(error)
    category, transient = categorise(text)
    if not transient and category in ("context_limit", "content_filter"):
        return category
    matches = ((category, re.search(pattern, text, re.IGNORECASE)) for pattern, category in _MESSAGE_PATTERNS)
    return next((category for category, match in matches if match), None)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error or of its response."""
    for owner in (error, getattr(error, "response", None)):
        for name in _STATUS_ATTRIBUTES:
            value = getattr(owner, name, None)
            if type(value) is int and 100 <= value <= 599:
                return value
    return None


def _headers(error: BaseException) -> Mapping[str, str]:
    """Return the response's headers, names in lower case."""
    for owner in (getattr(error, "response", None), error):
        headers = getattr(owner, "headers", None)
        if headers is not None and callable(getattr(headers, "items", None)):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}


def _body(error: BaseException) -> Any:
    """Return the response body: decoded (openai, anthropic) or as text."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping | list | str) and body:
        return body
    return None


def _message_of(error: BaseException) -> str:
    return safe_line(str(error)) or type(error).__name__


def rejects_files(error: ProviderError) -> bool:
    """Return whether a provider refuses a request because its model reads no images, audio or files."""
    return error.category != "auth" and _FILES_REJECTED.search(error.message) is not None


def rejects_all_files(error: ProviderError) -> bool:
    """Return whether the reason is a missing capability of the model, and not a problem of one file."""
    return rejects_files(error) and _CAPABILITY.search(error.message) is not None
