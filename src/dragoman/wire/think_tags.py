"""Thinking in tags: tells `<think>…</think>` inside a model's text from the text itself, however it is cut.

A tag counts where servers put it: the opening one before any visible text, the closing one behind it. A
closing tag without an opening one (the template had opened it, or thinking was switched off half-way) ends
the text block before it and is left out, unless the text speaks about such tags itself.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

ThinkTagMode = Literal["auto", "open", "off"]
TaggedText: TypeAlias = tuple[Literal["text", "reasoning", "border"], str]

THINK_END = "</think>"
TAG_PAIRS = {
    "<think>": THINK_END,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
}

_LEADING_TAGS = (*TAG_PAIRS, THINK_END)
_TAGS_IN_TEXT = (THINK_END, "<think>")
_QUOTES = ("`", "'", '"')
_LONGEST_TAG = max(map(len, TAG_PAIRS.values()))

ThinkTagState: TypeAlias = Literal["start", "inside", "after", "text", "plain"]


class ThinkTagSplitter:
    """Cuts one answer's content into text and reasoning.

    `open` begins inside the tag, for models whose template opens it; `off` cuts nothing.
    """

    def __init__(self, mode: ThinkTagMode = "auto") -> None:
        self._state: ThinkTagState = "plain" if mode == "off" else "start"
        self._default_state: ThinkTagState = "inside" if mode == "open" else "text"
        self._closing_tag = THINK_END
        self._only_whitespace = True  # inside, and nothing but white space yet
        self.pending = ""  # what may be the beginning of a tag, or white space before one
        self._last_character = ""  # the end of the visible text

    def feed(self, text: str) -> list[TaggedText]:
        """The pieces that this text completes, in order; a border ends the block before it."""
        text = self.pending + text
        self.pending = ""
        pieces: list[TaggedText] = []
        while text:
            match self._state:
                case "text":
                    text = self._read_text(text, pieces)
                case "inside":
                    text = self._read_reasoning(text, pieces)
                case "start" | "after":
                    text = self._read_start(text)
                case "plain":
                    pieces.append(("text", text))
                    text = ""
        return pieces

    def close(self) -> list[TaggedText]:
        """What was held back, when something else than content comes, or nothing more."""
        text, self.pending = self.pending, ""
        if self._state == "after":
            text = text.lstrip()
        return [("reasoning" if self._state == "inside" else "text", text)] if text else []

    def _read_start(self, text: str) -> str:
        """Decide what the answer, or what follows a closing tag, begins with."""
        bare = text.lstrip()
        if not bare or any(len(bare) < len(tag) and tag.startswith(bare) for tag in _LEADING_TAGS):
            self.pending = text
            return ""
        opening = next((tag for tag in TAG_PAIRS if bare.startswith(tag)), None)
        if opening is not None:
            self._state, self._closing_tag, self._only_whitespace = "inside", TAG_PAIRS[opening], True
            return bare[len(opening) :]
        if bare.startswith(THINK_END):
            self._state = "after"
            return bare[len(THINK_END) :]
        text = bare if self._state == "after" else text
        self._state = "text" if self._state == "after" else self._default_state
        return text

    def _read_reasoning(self, text: str, pieces: list[TaggedText]) -> str:
        if self._only_whitespace:
            text = text.lstrip()
            self._only_whitespace = not text
        end = text.find(self._closing_tag)
        if end < 0:
            self._emit_up_to_tag(text, pieces, tags=(self._closing_tag,))
            return ""
        self._state = "after"
        if end:
            pieces.append(("reasoning", text[:end]))
        return text[end + len(self._closing_tag) :]

    def _read_text(self, text: str, pieces: list[TaggedText]) -> str:
        end = text.find(THINK_END)
        if end < 0 and "<think>" not in text:
            self._emit_up_to_tag(text, pieces, tags=_TAGS_IN_TEXT)
            return ""
        before = text[: max(end, 0)]
        if end < 0 or "<think>" in before or (before or self._last_character).endswith(_QUOTES):
            self._state = "plain"
            return text
        if before:
            pieces.append(("text", before))
        pieces.append(("border", ""))
        self._state = "after"
        return text[end + len(THINK_END) :]

    def _emit_up_to_tag(self, text: str, pieces: list[TaggedText], *, tags: tuple[str, ...]) -> None:
        """Pass the text on but for an end that may be the beginning of a tag."""
        at = text.rfind(tags[0][0], max(0, len(text) - _LONGEST_TAG))
        if at >= 0 and any(tag.startswith(text[at:]) for tag in tags):
            self.pending = text[at:]
            text = text[:at]
        if text:
            self._last_character = text[-1]
            pieces.append(("reasoning" if self._state == "inside" else "text", text))
