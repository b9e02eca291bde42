"""Thinking in tags: tells `<think>…</think>` inside a model's text from the text itself, however it is cut.

A tag counts where servers put it: the opening one before any visible text, the closing one behind it. A
closing tag without an opening one (the template had opened it, or thinking was switched off half-way) ends
the text block before it and is left out, unless the text speaks about such tags itself.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode = Literal["auto", "open", "off"]
Cut: TypeAlias = tuple[Literal["text", "reasoning", "border"], str]

STRAY = "</think>"
TAGS = {"<think>": STRAY, "<thinking>": "</thinking>", "<thought>": "</thought>", "[THINK]": "[/THINK]"}

_FIRST = (*TAGS, STRAY)
_IN_TEXT = (STRAY, "<think>")
_QUOTES = ("`", "'", '"')
_LONGEST = max(map(len, TAGS.values()))

State: TypeAlias = Literal["start", "inside", "after", "text", "plain"]


class Thinking:
    """Cuts one answer's content into text and reasoning.

    `open` begins inside the tag, for models whose template opens it; `off` cuts nothing.
    """

    def __init__(self, mode: Mode = "auto") -> None:
        self._state: State = "plain" if mode == "off" else "start"
        self._first: State = "inside" if mode == "open" else "text"
        self._closing = STRAY
        self._fresh = True  # inside, and nothing but white space yet
        self.held = ""  # what may be the beginning of a tag, or white space before one
        self._last = ""  # the end of the visible text

    def feed(self, text: str) -> list[Cut]:
        """The pieces that this text completes, in order; a border ends the block before it."""
        text = self.held + text
        self.held = ""
        pieces: list[Cut] = []
        while text:
            match self._state:
                case "text":
                    text = self._speak(text, pieces)
                case "inside":
                    text = self._think(text, pieces)
                case "start" | "after":
                    text = self._begin(text)
                case "plain":
                    pieces.append(("text", text))
                    text = ""
        return pieces

    def close(self) -> list[Cut]:
        """What was held back, when something else than content comes, or nothing more."""
        text, self.held = self.held, ""
        if self._state == "after":
            text = text.lstrip()
        return [("reasoning" if self._state == "inside" else "text", text)] if text else []

    def _begin(self, text: str) -> str:
        """Decide what the answer, or what follows a closing tag, begins with."""
        bare = text.lstrip()
        if not bare or any(len(bare) < len(tag) and tag.startswith(bare) for tag in _FIRST):
            self.held = text
            return ""
        opening = next((tag for tag in TAGS if bare.startswith(tag)), None)
        if opening is not None:
            self._state, self._closing, self._fresh = "inside", TAGS[opening], True
            return bare[len(opening) :]
        if bare.startswith(STRAY):
            self._state = "after"
            return bare[len(STRAY) :]
        text = bare if self._state == "after" else text
        self._state = "text" if self._state == "after" else self._first
        return text

    def _think(self, text: str, pieces: list[Cut]) -> str:
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        end = text.find(self._closing)
        if end < 0:
            self._hold(text, pieces, tags=(self._closing,))
            return ""
        self._state = "after"
        if end:
            pieces.append(("reasoning", text[:end]))
        return text[end + len(self._closing) :]

    def _speak(self, text: str, pieces: list[Cut]) -> str:
        end = text.find(STRAY)
        if end < 0 and "<think>" not in text:
            self._hold(text, pieces, tags=_IN_TEXT)
            return ""
        before = text[: max(end, 0)]
        if end < 0 or "<think>" in before or (before or self._last).endswith(_QUOTES):
            self._state = "plain"
            return text
        if before:
            pieces.append(("text", before))
        pieces.append(("border", ""))
        self._state = "after"
        return text[end + len(STRAY) :]

    def _hold(self, text: str, pieces: list[Cut], *, tags: tuple[str, ...]) -> None:
        """Pass the text on but for an end that may be the beginning of a tag."""
        at = text.rfind(tags[0][0], max(0, len(text) - _LONGEST))
        if at >= 0 and any(tag.startswith(text[at:]) for tag in tags):
            self.held = text[at:]
            text = text[:at]
        if text:
            self._last = text[-1]
            pieces.append(("reasoning" if self._state == "inside" else "text", text))
