"""Failures: what a provider's error body means, in any of the shapes that providers give it.

The shapes and signatures are those of the wire notes on providers, §4.7 and §8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.errors import ProviderCategory, ProviderError

MAX_MESSAGE_LENGTH = 2000  # characters of a provider's message that are passed on

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


def find_error(value: Any) -> Any:
    """The error in a JSON value that stands where an answer should, or None when it holds none."""
    if isinstance(value, list):
        return next((found for item in value if (found := find_error(item)) is not None), None)
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
    base = value.get("base_resp")
    if isinstance(base, Mapping) and base.get("status_code"):
        return base
    spoken = any(isinstance(value.get(key), str) and value[key] for key in ("message", "msg", "error_msg"))
    coded = any(key in value for key in (*_CODE_FIELDS, "success")) or value.get("object") == "error"
    return value if spoken and coded else None


def provider_error(error: Any, *, status: int | None = None) -> ProviderError:
    """The ProviderError for an error body, or for the part of one that `find_error` gave."""
    text = describe_error(error)
    fields = error if isinstance(error, Mapping) else {}
    codes = " ".join(str(fields[key]) for key in _CODE_FIELDS if fields.get(key))
    number = status if status is not None and status >= 400 else _status_code(error)
    category, transient = categorise(f"{codes} {text}", status=number)
    failed = ProviderError(
        text or "the provider reported an error and did not say which",
        category=category,
        upstream_status=number,
        transient=transient,
    )
    failed.details = error if isinstance(error, Mapping) else None
    return failed


def categorise(text: str, *, status: int | None = None) -> tuple[ProviderCategory, bool]:
    """The category of a failure, and whether trying again can help, by the provider's words and status."""
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
    for words, category, transient in _CATEGORY_PATTERNS:
        if re.search(words, text, re.IGNORECASE):
            return category, transient
    return "api_error", True


def describe_error(error: Any) -> str:
    """What the error says in words, shortened. Servers say keys back: whoever shows it masks them."""
    return _message_text(error).encode(errors="replace").decode().strip()[:MAX_MESSAGE_LENGTH]


def _message_text(error: Any) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return "; ".join(filter(None, map(_message_text, error)))
    if not isinstance(error, Mapping):
        return "" if error is None else str(error)
    text = next((words for key in _MESSAGE_FIELDS if (words := _message_text(error.get(key)))), "")
    place = error.get("loc")
    if isinstance(place, list):
        text = f"{'.'.join(map(str, place))}: {text}"
    inner = error.get("metadata")
    raw = inner.get("raw") if isinstance(inner, Mapping) else None
    if isinstance(raw, str) and raw and raw not in text:
        text = f"{text}: {raw}" if text else raw
    return text or next((str(error[key]) for key in _CODE_FIELDS if error.get(key)), "")


def _status_code(error: Any) -> int | None:
    if not isinstance(error, Mapping):
        return None
    for key in _STATUS_FIELDS:
        value = error.get(key)
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None
