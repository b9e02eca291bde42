"""Questions at the terminal: drawn with their options by number, and what is typed as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Question: TypeAlias = Mapping[str, Any]  # {text, options}, as doors and streams tell it


def lines_of(question: Question) -> list[str]:
    """The question and its options, a line each; what cannot be seen is spelled out."""
    asked = [plain(line) for line in question["text"].splitlines()]
    return [*asked, *(f"  {number}. {plain(said)}" for number, said in enumerate(question["options"], 1))]


def chosen(question: Question, typed: str) -> str:
    """The answer that is meant: an option by its number, or the words themselves."""
    options, said = question["options"], typed.strip()
    if said in options or not (said.isascii() and said.isdigit()):
        return typed
    at = int(said[:9]) - 1
    return str(options[at]) if 0 <= at < len(options) else typed


def plain(text: str) -> str:
    """The text with all that cannot be seen spelled out: nobody shall approve what he does not see."""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)
