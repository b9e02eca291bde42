"""Request ids, and the access log line of each model request."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from dragoman import identity
from dragoman.events import Usage
from dragoman.ids import new_id
from dragoman.usage_record import UsageRecord

REQUEST_ID_HEADER = "x-request-id"
VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
DECIMALS = 6
LOGGED_FIELDS = (
    "door",
    "model_asked",
    "model_served",
    "provider",
    "key_name",
    "status",
    "upstream_status",
    "error",
    "finish_reason",
    "duration",
    "first_byte",
    "cost",
    "key_id",
    "owner",
    "run_id",
)
TOKEN_FIELDS = tuple(name for name in Usage.__struct_fields__ if name != "other_models")
log = logging.getLogger("dragoman.access")


def assign_request_id(headers: Mapping[str, str]) -> str:
    """Assign an id to the request of this task; its log lines and spans carry the id from now on.

    The client's `x-request-id` is taken when it is one word of at most 128 letters, digits and `._-`.
    """
    header = headers.get(REQUEST_ID_HEADER)
    request_id = header if header is not None and VALID_ID.fullmatch(header) else new_id("req")
    identity.request_id.set(request_id)
    return request_id


def log_request(record: UsageRecord) -> None:
    """Log one line for a request that has ended: caller, model, provider, duration and usage."""
    if log.isEnabledFor(logging.INFO):  # `log.info` would search the stack for the caller of each request
        line = logging.LogRecord(log.name, logging.INFO, __file__, 0, "request", None, None)
        line.fields = log_fields(record)
        log.handle(line)


def log_fields(record: UsageRecord) -> dict[str, Any]:
    """Return the fields of the line, without unknown values."""
    fields = {name: getattr(record, name) for name in LOGGED_FIELDS}
    fields |= {name: getattr(record.tokens, name) for name in TOKEN_FIELDS}
    fields["estimated"] = record.tokens.estimated or None
    if record.request_id is not None and identity.request_id.get() is None:
        fields["request_id"] = record.request_id
    return {
        name: round(value, DECIMALS) if isinstance(value, float) else value
        for name, value in fields.items()
        if value is not None
    }
