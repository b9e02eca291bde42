"""Convert a provider's error body, in any vendor's shape, to a ProviderError.

The shapes and patterns are those of the wire notes on providers, §4.7 and §8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import FrameTooLong, ProviderCategory, ProviderError
from dragoman.events import Usage
from dragoman.json_decoding import is_deeper_than, parse_digits
from dragoman.wire.token_estimate import cut_answer_length

MAX_MESSAGE_LENGTH = 2000  # characters
MAX_DEPTH = 20  # levels in which an error and its message are searched for

_CONTEXT_LIMIT_PATTERN = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|prompt (is )?too long|too_many_prompt_tokens|"
    r"exceed_context_size|exceeds? the (maximum|available) (number of tokens|context)|maximum prompt length|"
    r"input token count|request too large|request_too_large|exceeds? context limit|"
    r"longer than the (model's )?context",
    re.IGNORECASE,
)
_QUOTA_PATTERN = re.compile(
    r"insufficient[_ ](\w+[_ ])?(quota|balance|credits?|funds)|exceeded your current quota|billing|"
    r"payment required|credit balance|spend_limit|out of credits|quota_exceeded",
    re.IGNORECASE,
)
_CONTENT_FILTER_PATTERN = re.compile(
    r"content[_ ]?filter|content[_ ]policy|content management policy|responsible_?ai|data_inspection_failed|"
    r"input was flagged|safety system|prohibited_content",
    re.IGNORECASE,
)
_CATEGORY_PATTERNS: tuple[tuple[str, ProviderCategory, bool], ...] = (
    (r"rate[_ -]?limit|too[_ ]many[_ ]requests|resource_exhausted", "rate_limit", True),
    (r"overloaded|capacity|server (is )?busy|unavailable|no healthy upstream", "overloaded", True),
    (r"time[_ ]?out|timed out|deadline", "timeout", True),
    (r"api[_ ]?key|authenticat|unauthori[sz]ed|permission|forbidden", "auth", False),
    (
        r"invalid|not[_ ]found|bad[_ ]request|unsupported|validation|required|missing|tool_use_failed",
        "bad_request",
        False,
    ),
)
_STATUS_CATEGORIES: Mapping[int, tuple[ProviderCategory, bool]] = {
    401: ("auth", False),
    402: ("rate_limit", False),
    403: ("auth", False),
    408: ("timeout", True),
    409: ("api_error", True),
    425: ("api_error", True),
    429: ("rate_limit", True),
    503: ("overloaded", True),
    504: ("timeout", True),
    524: ("timeout", True),
    529: ("overloaded", True),
}
_MESSAGE_FIELDS = (
    "message",
    "msg",
    "error_msg",
    "status_msg",
    "detail",
    "error_description",
    "error",
    "title",
)
_CODE_FIELDS = ("code", "type", "status", "error_code", "error_type")
_STATUS_FIELDS = ("status_code", "http_status", "raw_status_code", "code", "status", "error_code")


def find_error(value: Any, *, depth: int = MAX_DEPTH) -> Any:
    """Return the error in a JSON value that was received instead of an answer; None if it contains none."""
    if isinstance(value, list):
        found = (find_error(item, depth=depth - 1) for item in value if depth)
        return next((error for error in found if error is not None), None)
    if not isinstance(value, Mapping):
        return None
    error = value.get("error")
    if isinstance(error, str) and error:
        return value
    if error:
        return error
    for key in ("errors", "detail"):
        if value.get(key):
            return value[key][0] if key == "errors" and isinstance(value[key], list) else value
    base_resp = value.get("base_resp")
    if isinstance(base_resp, Mapping) and base_resp.get("status_code"):
        return base_resp
    has_message = any(
        isinstance(value.get(key), str) and value[key] for key in ("message", "msg", "error_msg")
    )
    has_code = any(key in value for key in (*_CODE_FIELDS, "success")) or value.get("object") == "error"
    return value if has_message and has_code else None


def provider_error(error: Any, *, status: int | None = None) -> ProviderError:
    """Create the ProviderError for an error body, or for the result of `find_error`."""
    text = describe_error(error)
    fields = error if isinstance(error, Mapping) else {}
    codes = " ".join(_codes_in(fields))
    if status is None or status < 400:
        status = _status_code(error)
    category, transient = categorise(f"{codes} {text}", status=status)
    result = ProviderError(
        text or "the provider reported an error without a message",
        category=category,
        upstream_status=status,
        transient=transient,
    )
    if isinstance(error, Mapping) and not is_deeper_than(error, MAX_DEPTH):
        result.details = error
    return result


def categorise(text: str, *, status: int | None = None) -> tuple[ProviderCategory, bool]:
    """Return the category of an error and whether a retry can help, by the provider's message and status."""
    if _CONTEXT_LIMIT_PATTERN.search(text):
        return "context_limit", False
    if _QUOTA_PATTERN.search(text):
        return "rate_limit", False
    if _CONTENT_FILTER_PATTERN.search(text) and (status is None or status < 500):
        return "content_filter", False
    if status is not None and status >= 400:
        return _STATUS_CATEGORIES.get(status) or (
            ("api_error", True) if status >= 500 else ("bad_request", False)
        )
    for pattern, category, transient in _CATEGORY_PATTERNS:
        if re.search(pattern, text, re.IGNORECASE):
            return category, transient
    return "api_error", True


def describe_error(error: Any) -> str:
    """Return the error's message, shortened. It may repeat an API key: redact keys before showing it."""
    return _message_text(error).encode(errors="replace").decode().strip()[:MAX_MESSAGE_LENGTH]


def _codes_in(error: Mapping[str, Any]) -> list[str]:
    codes = (error.get(key) for key in _CODE_FIELDS)
    return [str(code) for code in codes if code and not isinstance(code, dict | list)]


def _message_text(error: Any, *, depth: int = MAX_DEPTH) -> str:
    if isinstance(error, str):
        return error
    if not depth:
        return ""
    if isinstance(error, list):
        return "; ".join(filter(None, (_message_text(item, depth=depth - 1) for item in error)))
    if not isinstance(error, Mapping):
        return "" if error is None else str(error)
    found = (_message_text(error.get(key), depth=depth - 1) for key in _MESSAGE_FIELDS)
    text = next(filter(None, found), "")
    location = error.get("loc")
    if isinstance(location, list):
        text = f"{'.'.join(map(str, location))}: {text}"
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    if isinstance(raw, str) and raw and raw not in text:
        text = f"{text}: {raw}" if text else raw
    return text or next(iter(_codes_in(error)), "")


def _status_code(error: Any) -> int | None:
    if not isinstance(error, Mapping):
        return None
    for key in _STATUS_FIELDS:
        value = error.get(key)
        if isinstance(value, str):
            value = parse_digits(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None


def preview(raw: bytes) -> str:
    """Return the first bytes as a quoted string, for error messages."""
    return repr(raw[:80].decode(errors="replace"))


def invalid_json_error(raw: bytes, reason: ValueError | None = None) -> ProviderError:
    """Return the error for an answer, or a part of it, that is not JSON."""
    detail = f" ({reason})" if reason is not None else ""
    error = ProviderError(
        f"the provider sent invalid JSON{detail}: {preview(raw)}", category="api_error", transient=True
    )
    error.cut_length = cut_answer_length(raw) or None
    return error


def with_usage(error: ProviderError, usage: Usage | None) -> ProviderError:
    """Return the error with the usage that the provider reported, which is charged all the same."""
    if usage is not None:
        error.usage = msgspec.structs.asdict(usage)
    return error


def too_long_error(error: FrameTooLong) -> ProviderError:
    """Return the error of an answer with a frame that is too long."""
    return ProviderError(error.message, category="api_error", hint=error.hint)


def nesting_error() -> ProviderError:
    """Return the error for JSON that is nested too deeply."""
    return ProviderError("the provider sent JSON that is nested too deeply", category="api_error")


EMPTY_VALUES: tuple[Any, ...] = (None, {}, [])  # JSON documents without an answer, treated as an empty body


def restarted_answer_error() -> ProviderError:
    """Return the error for an answer that began again in its middle, as behind a gateway that retries."""
    return incomplete_answer_error("began again in its middle, as another answer")


def incomplete_answer_error(
    problem: str = "ended without a finish reason", *, started: bool = True, saw_done: bool = False
) -> ProviderError:
    """Return the error for an answer that ended before it was complete; `started`: it had content."""
    suffix = " although it sent [DONE]" if saw_done else ""
    return ProviderError(
        f"the provider's answer {problem if started else 'is empty'}{suffix}",
        category="network",
        transient=True,
        hint="the connection was cut, or the server hides its errors; check the server's log",
    )
