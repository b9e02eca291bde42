"""Requests to the hub: each has an id, the client's own or a new one, and in the end a line in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from dragoman import identity
from dragoman.events import Usage
from dragoman.ids import new_id
from dragoman.store.usage import UsageRecord

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
log = logging.getLogger("dragoman.access")


def assign_request_id(headers: Mapping[str, str]) -> str:
    """The id of the request that this task serves: from now on it is on its log lines and spans.

    The client's `x-request-id` is taken when it is one word of at most 128 letters, digits and `._-`.
    """
    asked = headers.get(REQUEST_ID_HEADER)
    known = asked if asked is not None and VALID_ID.fullmatch(asked) else new_id("req")
    identity.request_id.set(known)
    return known


def log_request(record: UsageRecord) -> None:
    """One line in the log for a request that has ended: who asked what, who served, how long, how much."""
    if log.isEnabledFor(logging.INFO):
        log.info("request", extra={"fields": log_fields(record)})


def log_fields(record: UsageRecord) -> dict[str, Any]:
    """What the line says; what is not known is left out."""
    known = {name: getattr(record, name) for name in LOGGED_FIELDS}
    known |= {name: getattr(record.tokens, name) for name in Usage.__struct_fields__}
    known["estimated"] = record.tokens.estimated or None
    if record.request_id is not None and identity.request_id.get() is None:
        known["request_id"] = record.request_id
    return {
        name: round(value, DECIMALS) if isinstance(value, float) else value
        for name, value in known.items()
        if value is not None
    }
