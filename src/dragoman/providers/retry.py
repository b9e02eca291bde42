"""Retries: what a refused request means, whether another attempt can help, and how long to wait for it.

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

MAX_DOUBLINGS = 64  # beyond, a pause has long been at its cap

T = TypeVar("T")

_DECIMAL = re.compile(r"[0-9]{1,300}(\.[0-9]{1,300})?")
_EVENT_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_LONGEST = 1e9  # seconds: what is longer is as good as for ever
_TITLE = re.compile(r"(?i)<title\b[^<>]*>([^<>]*)</title")
_USER = re.compile(r"//[^/]*@")
_TAG = re.compile(r"<[^<>]*>")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often to try again, and how long to wait: at most `base * 2**attempt` seconds, never over `cap`.

    With `jitter` it is any part of that, at random, so that those who failed together do not come back
    together. What the provider asks for is waited for besides; where that is more than `max_wait` seconds it
    is not tried again. ConfigError for what cannot be.
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
        """The policy that is said: as such, or by the number of further attempts alone."""
        return retries if isinstance(retries, RetryPolicy) else cls(retries=retries)

    def delay(self, attempt: int, error: ProviderError, *, random: Callable[[], float]) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 0) failed; None is to give up.

        Exponential, on top of what the provider asked for.
        """
        request_count = error.retry_after or 0.0
        if not error.transient or attempt >= self.retries or request_count > self.max_wait:
            return None
        longest = min(self.cap, self.base * 2.0 ** min(attempt, MAX_DOUBLINGS))
        return request_count + longest * (random() if self.jitter else 1.0)


DEFAULTS = RetryPolicy()


async def with_retries(
    attempt: Callable[[int], Awaitable[T]],
    *,
    policy: RetryPolicy = DEFAULTS,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    random: Callable[[], float] = random.random,
    requests: Callable[[], int] | None = None,
) -> T:
    """What `attempt(number)` gives; it is repeated on a transient ProviderError while the policy allows.

    An attempt that raises must not have passed anything on yet. `caller_may_retry` of the raised
    error is set: a policy without retries leaves them to the caller. `requests` returns how many requests the
    attempts have made, if one may make several: the policy limits them, too.
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
    """Wait before another attempt. Whoever is cancelled meanwhile has the refusal as the cause.

    So it can be told from one that is cancelled while a provider works on its request, which has a price.
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
    """The error that a failed response stands for. Its message is the provider's own, cut and masked."""
    if 300 <= status < 400:
        return redirect_error(status, headers.get("location", ""), secrets=secrets)
    error = read_error_body(redact(body.decode("utf-8", "replace"), secrets), status)
    message = headers.get("x-should-retry", "").strip().lower()
    transient = message == "true" if message in ("true", "false") else error.transient
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
    """Seconds that a failed response asks to wait; `now` is in seconds since the epoch.

    Of Retry-After (seconds or a date) and Retry-After-Ms the larger; zero, the past and garbage are none.
    Successful answers carry the header too, where it means nothing.
    """
    text = headers.get("retry-after", "")
    wish = max(
        parse_decimal(text), seconds_until(text, now), parse_decimal(headers.get("retry-after-ms", "")) / 1000
    )
    return wish if wish > 0 else None


def parse_decimal(text: str) -> float:
    number = _DECIMAL.fullmatch(text.strip())  # which strips more than `float` does
    return min(float(number[0]), _LONGEST) if number else 0.0


def seconds_until(date: str, now: float) -> float:
    """Seconds from now until an HTTP date; 0 when it is none."""
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0


def read_error_body(text: str, status: int) -> ProviderError:
    """What an error body says: the error in its JSON, or the words of a page or a plain text.

    Servers that were asked for a stream may put the JSON into an event of one.
    """
    try:
        value = decode_json(_event_data(text) or text)
        found = find_error(value)
        reply = value if found is None else found
        return provider_error(
            reply if one_line(describe_error(reply)) else empty_error(status), status=status
        )
    except DECODE_ERRORS:
        return provider_error(page_text(text[:MAX_TEXT_BODY]) or empty_error(status), status=status)


def _event_data(text: str) -> str:
    """The data of the first event of a stream; empty if the text is not one."""
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
    """Return the error for a redirect, which no request with a key follows.

    The user and the query of its target are left out: they may be secret.
    """
    target = safe_line(_USER.sub("//", location.partition("?")[0]), secrets)
    redirected = f"the provider redirects ({status}) to {target:.200}"
    return ProviderError(
        redirected if target else f"the provider answered {status}",
        category="api_error",
        hint="set base_url to the address of its API",
        upstream_status=status,
        transient=False,
    )
