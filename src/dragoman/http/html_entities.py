"""Resolve the entities of untrusted HTML."""

from __future__ import annotations

import re
from html import unescape

HUGE_REFERENCE = re.compile(r"&#[0-9]{9,};?")  # `unescape` fails above 4,300 digits


def unescape_entities(text: str) -> str:
    """Return text with its entities resolved; huge numeric references become `�`."""
    return unescape(HUGE_REFERENCE.sub("\ufffd", text)) if "&" in text else text
