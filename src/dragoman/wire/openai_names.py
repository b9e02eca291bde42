"""Names and ids as OpenAI-compatible servers take them."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

CallIds = Literal["plain", "any", "nine"]

_PLAIN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


def tool_name(name: str) -> str:
    """The name with an underscore for every character that the wire forbids, at most 64 long."""
    return _STRANGE.sub("_", name)[:64] or "unknown"


def call_id(given: str, kind: CallIds) -> str:
    """The id if it may be sent as it is, else a stand-in that is always the same for it."""
    if kind == "any" and given:
        return given
    fitting = _NINE if kind == "nine" else _PLAIN
    if fitting.fullmatch(given):
        return given
    digest = hashlib.sha256(given.encode(errors="replace")).hexdigest()
    return digest[:9] if kind == "nine" else f"call_{digest[:24]}"
