"""Questions at the terminal: formats them, and resolves typed answers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeAlias

from dragoman.json_decoding import parse_digits

WORD = re.compile(r"[^\W\d_]+")
LOOKALIKES = frozenset({"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})
EMPTY_BRAILLE = "\u2800"
EMOJI_SELECTOR = "\ufe0f"

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
    """Spell out invisible characters, and letters that look like Latin ones in words with Latin letters.

    Nobody should approve what the terminal does not show.
    """
    if text.isascii() and text.isprintable():
        return text
    from dragoman.operations.sanitize import INVISIBLE  # late: operations take 0.1 s

    text = WORD.sub(_spell_lookalikes, text)
    shown = []
    for before, each in zip(" " + text, text, strict=False):
        hidden = not each.isprintable() or each == EMPTY_BRAILLE or INVISIBLE.match(each) is not None
        shown.append(_escape(each) if hidden and not _is_picture(before, each) else each)
    return "".join(shown)


def _is_picture(before: str, selector: str) -> bool:
    """Return whether the second character only draws the first as a picture."""
    return selector == EMOJI_SELECTOR and unicodedata.category(before) == "So"


def _spell_lookalikes(word: re.Match[str]) -> str:
    scripts = [unicodedata.name(letter, "").partition(" ")[0] for letter in word[0]]
    if "LATIN" not in scripts:
        return word[0]
    pairs = zip(word[0], scripts, strict=True)
    return "".join(_escape(letter) if script in LOOKALIKES else letter for letter, script in pairs)


def _escape(character: str) -> str:
    code = f"{ord(character):04x}"
    return f"\\u{code}" if len(code) == 4 else f"\\u{{{code}}}"
