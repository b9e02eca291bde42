"""Separate `<think>…</think>` sections from a model's text, however the text is split.

A tag counts where servers put it: the opening tag before any visible text, the closing tag after it. A
closing tag without an opening tag (the template opened it, or thinking was switched off midway) ends the text
block before it and is removed, unless the text quotes such tags.
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
    """Splits one answer's content into text and reasoning.

    Mode `open` starts inside the tag, for models whose template opens it; `off` splits nothing. In the state
    `text`, with nothing pending, a text without `<` passes as it is: a caller may set `last_character` then,
    instead of calling `feed`.
    """

    def __init__(self, mode: ThinkTagMode = "auto") -> None:
        self.state: ThinkTagState = "plain" if mode == "off" else "start"
        self._default_state: ThinkTagState = "inside" if mode == "open" else "text"
        self._closing_tag = THINK_END
        self._only_whitespace = True  # inside the tag, and only white space so far
        self.pending = ""  # possibly the beginning of a tag, or white space before one
        self.last_character = ""  # of the visible text

    def feed(self, text: str) -> list[TaggedText]:
        """Return the parts that this text completes, in order; a "border" ends the block before it."""
        text = self.pending + text
        self.pending = ""
        parts: list[TaggedText] = []
        while text:
            match self.state:
                case "text":
                    text = self._read_text(text, parts)
                case "inside":
                    text = self._read_reasoning(text, parts)
                case "start" | "after":
                    text = self._read_start(text)
                case "plain":
                    parts.append(("text", text))
                    text = ""
        return parts

    def close(self) -> list[TaggedText]:
        """Return the pending text, before other content or at the end."""
        text, self.pending = self.pending, ""
        if self.state == "after":
            text = text.lstrip()
        return [("reasoning" if self.state == "inside" else "text", text)] if text else []

    def _read_start(self, text: str) -> str:
        """Handle the start of the answer, or the text after a closing tag."""
        stripped = text.lstrip()
        if not stripped or any(
            len(stripped) < len(tag) and tag.startswith(stripped) for tag in _LEADING_TAGS
        ):
            self.pending = text
            return ""
        opening = next((tag for tag in TAG_PAIRS if stripped.startswith(tag)), None)
        if opening is not None:
            self.state, self._closing_tag, self._only_whitespace = "inside", TAG_PAIRS[opening], True
            return stripped[len(opening) :]
        if stripped.startswith(THINK_END):
            self.state = "after"
            return stripped[len(THINK_END) :]
        text = stripped if self.state == "after" else text
        self.state = "text" if self.state == "after" else self._default_state
        return text

    def _read_reasoning(self, text: str, parts: list[TaggedText]) -> str:
        if self._only_whitespace:
            text = text.lstrip()
            self._only_whitespace = not text
        end = text.find(self._closing_tag)
        if end < 0:
            self._emit_up_to_tag(text, parts, tags=(self._closing_tag,))
            return ""
        self.state = "after"
        if end:
            parts.append(("reasoning", text[:end]))
        return text[end + len(self._closing_tag) :]

    def _read_text(self, text: str, parts: list[TaggedText]) -> str:
        end = text.find(THINK_END)
        if end < 0 and "<think>" not in text:
            self._emit_up_to_tag(text, parts, tags=_TAGS_IN_TEXT)
            return ""
        before = text[: max(end, 0)]
        if end < 0 or "<think>" in before or (before or self.last_character).endswith(_QUOTES):
            self.state = "plain"
            return text
        if before:
            parts.append(("text", before))
        parts.append(("border", ""))
        self.state = "after"
        return text[end + len(THINK_END) :]

    def _emit_up_to_tag(self, text: str, parts: list[TaggedText], *, tags: tuple[str, ...]) -> None:
        """Emit the text except an ending that may be the beginning of a tag."""
        index = text.rfind(tags[0][0], max(0, len(text) - _LONGEST_TAG))
        if index >= 0 and any(tag.startswith(text[index:]) for tag in tags):
            self.pending = text[index:]
            text = text[:index]
        if text:
            self.last_character = text[-1]
            parts.append(("reasoning" if self.state == "inside" else "text", text))
