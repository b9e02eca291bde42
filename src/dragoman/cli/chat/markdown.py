"""Markdown of an answer in the terminal: which blocks of a growing text are complete, and how they look."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax

FENCES = ("```", "~~~")


class PlainHeading(Heading):
    """A heading at the left, whatever its level."""

    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class PlainCodeBlock(CodeBlock):
    """A block of code in the terminal's own colours, without a margin, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, background_color="default")


class AnswerMarkdown(Markdown):
    """Markdown of a model. HTML is shown as text, and links with their addresses: nothing is hidden."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": PlainHeading,
        "fence": PlainCodeBlock,
        "code_block": PlainCodeBlock,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = make_parser().parse(text)


def make_parser() -> MarkdownIt:
    """Return a parser that takes HTML for text."""
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class GrowingMarkdown:
    """Markdown that arrives in pieces. `open_text` is the block that may still grow."""

    def __init__(self) -> None:
        self.open_text = ""
        self._parser = make_parser()
        self._next_check = 0  # the length of the open text at which it is parsed again

    def add(self, delta: str) -> list[str]:
        """Add a piece; return the Markdown of each block that cannot change any more.

        An open block is parsed again once it has grown by a tenth, so a long one costs little.
        """
        self.open_text += delta
        if "\n" not in delta or len(self.open_text) < self._next_check:
            return []
        *closed, self.open_text = self._split_blocks()
        self._next_check = 0 if closed else len(self.open_text) * 11 // 10
        return closed

    def finish(self) -> list[str]:
        """Return the Markdown of the remaining blocks, and start over with an empty text."""
        rest = self._split_blocks() if self.open_text.strip() else []
        self.open_text, self._next_check = "", 0
        return rest

    def tail(self, lines: int) -> str:
        """Return about the last lines of the open block, as Markdown of the same kind."""
        shown = self.open_text.splitlines(keepends=True)
        if len(shown) <= lines:
            return self.open_text
        opening = shown[0] if shown[0].lstrip().startswith(FENCES) else ""
        return opening + "".join(shown[-lines:])

    def _split_blocks(self) -> list[str]:
        """Return the open text block by block."""
        tokens = self._parser.parse(self.open_text)
        starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
        lines = self.open_text.split("\n")
        bounds = [0, *starts[1:], len(lines)]
        blocks = ["\n".join(lines[start:stop]) for start, stop in pairwise(bounds)]
        return [f"{block}\n" for block in blocks[:-1]] + blocks[-1:]
