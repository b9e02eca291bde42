"""Questions at the terminal: formats them, and resolves typed answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from dragoman.json_decoding import parse_digits

Question: TypeAlias = Mapping[str, Any]  # {text, options}, as in approvals and streams


def question_lines(question: Question) -> list[str]:
    """Return the question and its numbered options, a line each, invisible characters spelled out."""
    options = enumerate(question["options"], 1)
    return [
        *(spell_invisible(line) for line in question["text"].splitlines()),
        *(f"  {number}. {spell_invisible(option)}" for number, option in options),
    ]


def resolve_answer(question: Question, typed: str) -> str:
    """Return the option that was typed as its number, or else the typed text itself."""
    options, text = question["options"], typed.strip()
    if text in options or (number := parse_digits(text)) is None:
        return typed
    index = number - 1
    return str(options[index]) if 0 <= index < len(options) else typed


def spell_invisible(text: str) -> str:
    """Spell out unprintable characters: nobody should approve what the terminal does not show."""
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)
