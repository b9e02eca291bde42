"""Retries: classify a failed response, decide whether another attempt can help, and how long to wait.

Sources: the wire notes on providers, §4.7 and §6.6 (errors) and §8 (retries); RFC 9110 §10.2.3 (Retry-After).
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import msgspec

from dragoman.errors import ConfigError, ProviderError
from dragoman.http.html_entities import unescape_entities
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.redaction import one_line, redact, safe_line
from dragoman.wire.provider_errors import describe_error, find_error, provider_error

MAX_TEXT_BODY = 16 * 1024  # characters of a body that is not JSON

MAX_DOUBLINGS = 64  # attempts after which the delay is certainly at its cap; 2.0**1024 would overflow

T = TypeVar("T")

_DECIMAL = re.compile(r"[0-9]{1,300}(\.[0-9]{1,300})?")
_EVENT_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_LONGEST = 1e9  # seconds; larger numbers are cut to this
_TITLE = re.compile(r"(?i)<title\b[^<>]*>([^<>]*)</title")
_USER = re.compile(r"//[^/]*@")
_TAG = re.compile(r"<[^<>]*>")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often to retry, and how long to wait: up to `base * 2**attempt` seconds, at most `cap`.

    With `jitter` the delay is a random part of that, so that requests that failed together do not come back
    together. The delay that the provider asks for (`Retry-After`) is added; if that is longer than `max_wait`
    seconds, there is no retry. Raises ConfigError for a negative value.
    """

    retries: int = 3
    base: float = 0.5
    cap: float = 8.0
    max_wait: float = 60.0
    jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("retries", "base", "cap", "max_wait"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} of a RetryPolicy must not be below 0, got {getattr(self, name)!r}")

    @classmethod
    def of(cls, retries: int | RetryPolicy) -> RetryPolicy:
        """Return the policy; a number stands for a policy with that many retries."""
        return retries if isinstance(retries, RetryPolicy) else cls(retries=retries)

    def delay(self, attempt: int, error: ProviderError, *, random: Callable[[], float]) -> float | None:
        """Return the seconds to wait after attempt number `attempt` (from 0) failed; None to give up.

        `random` returns a number from 0 to 1.
        """
        requested = error.retry_after or 0.0
        if not error.transient or attempt >= self.retries or requested > self.max_wait:
            return None
        longest = min(self.cap, self.base * 2.0 ** min(attempt, MAX_DOUBLINGS))
        return requested + longest * (random() if self.jitter else 1.0)


DEFAULTS = RetryPolicy()


async def with_retries(
    attempt: Callable[[int], Awaitable[T]],
    *,
    policy: RetryPolicy = DEFAULTS,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    random: Callable[[], float] = random.random,
    requests: Callable[[], int] | None = None,
) -> T:
    """Return the result of `attempt(number)`; repeat it on a transient ProviderError while the policy allows.

    An attempt that raises must not have produced any output. `caller_may_retry` of the raised error is set: a
    policy without retries leaves them to the caller. `requests` returns how many requests the attempts have
    sent, if one may send several: the policy limits these, too.
    """
    number = 0
    while True:
        try:
            return await attempt(number)
        except ProviderError as error:
            wait = policy.delay(number, error, random=random)
            if wait is None or (requests is not None and requests() > policy.retries):
                soon = (error.retry_after or 0.0) <= policy.max_wait
                error.caller_may_retry = error.transient and soon and not policy.retries
                raise
            await pause(sleep(wait), error)
        number += 1


async def pause(sleep: Awaitable[object], refusal: ProviderError) -> None:
    """Wait before another attempt. A cancellation meanwhile has the refusal as its cause.

    This distinguishes it from a cancellation while a provider works on the request, which has a price.
    """
    try:
        await sleep
    except asyncio.CancelledError as cancelled:
        raise cancelled from refusal


def classify_response(
    status: int,
    headers: Mapping[str, str],
    *,
    body: bytes,
    secrets: Collection[str] = (),
    clock: Callable[[], float] = time.time,
) -> ProviderError:
    """Return the error for a failed response, with the provider's message, shortened and redacted."""
    if 300 <= status < 400:
        return redirect_error(status, headers.get("location", ""), secrets=secrets)
    error = read_error_body(redact(body.decode("utf-8", "replace"), secrets), status)
    should_retry = headers.get("x-should-retry", "").strip().lower()
    transient = should_retry == "true" if should_retry in ("true", "false") else error.transient
    refused = ProviderError(
        safe_line(error.message, secrets),
        category=error.category,
        upstream_status=error.upstream_status or status,
        transient=transient,
        retry_after=retry_after(headers, clock()) if transient else None,
    )
    refused.details = error.details
    return refused


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that a failed response asks to wait, or None; `now` is in Unix seconds.

    It is the larger of Retry-After (seconds or a date) and Retry-After-Ms; zero, the past and invalid values
    are ignored. Do not call it for successful answers, where the header has no meaning.
    """
    text = headers.get("retry-after", "")
    delay = max(
        parse_decimal(text), seconds_until(text, now), parse_decimal(headers.get("retry-after-ms", "")) / 1000
    )
    return delay if delay > 0 else None


def parse_decimal(text: str) -> float:
    """Return a decimal number, at most `_LONGEST`; 0 for other texts."""
    number = _DECIMAL.fullmatch(text.strip())
    return min(float(number[0]), _LONGEST) if number else 0.0


def seconds_until(date: str, now: float) -> float:
    """Return the seconds from `now` until an HTTP date; 0 for other texts."""
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0


def read_error_body(text: str, status: int) -> ProviderError:
    """Return the error in a body: in its JSON, or the text of a web page or of plain text.

    Servers that were asked for a stream may put the JSON into an event of a stream.
    """
    try:
        value = decode_json(_event_data(text) or text)
        error = find_error(value)
        detail = value if error is None else error
        return provider_error(
            detail if one_line(describe_error(detail)) else empty_error(status), status=status
        )
    except DECODE_ERRORS:
        return provider_error(page_text(text[:MAX_TEXT_BODY]) or empty_error(status), status=status)


def _event_data(text: str) -> str:
    """Return the data of the first event in a stream; an empty text if it is not a stream."""
    lines = text[:MAX_TEXT_BODY].splitlines()
    if not lines or not lines[0].startswith(_EVENT_FIELDS):
        return ""
    return next((line[len("data:") :].strip() for line in lines if line.startswith("data:")), "")


def page_text(text: str) -> str:
    title = _TITLE.search(text)
    return one_line(unescape_entities(title[1] if title else _TAG.sub(" ", text)))


def empty_error(status: int) -> str:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "a nonstandard status"
    return f"the provider answered {status} ({phrase}) without an error message"


def redirect_error(status: int, location: str, *, secrets: Collection[str]) -> ProviderError:
    """Return the error for a redirect: it is not followed, since the request has a key.

    The user and the query of its target are left out: they may be secret.
    """
    target = safe_line(_USER.sub("//", location.partition("?")[0]), secrets)
    message = f"the provider redirects ({status}) to {target:.200}"
    return ProviderError(
        message if target else f"the provider answered {status}",
        category="api_error",
        hint="set base_url to the address of its API",
        upstream_status=status,
        transient=False,
    )
