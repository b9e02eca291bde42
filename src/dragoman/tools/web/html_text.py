"""The text of an HTML page, with as much Markdown as shows its structure.

The tokenizer makes one pass, never goes back and builds no tree: a parser that repairs errors as HTML 5
prescribes turns some pages of a few kilobytes into gigabytes, and the tags alone show enough of the structure
for text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias
from urllib.parse import urljoin

import msgspec

from dragoman.http.html_entities import unescape_entities

# Possessive quantifiers, such as `*+`, keep the time linear.
ATTRIBUTE = r"""([^\s/>][^\s/>=]*+)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?)?"""
ATTRIBUTES = re.compile(ATTRIBUTE)
TAG = re.compile(rf"<(/?)([a-z][^\s/>]*+)((?:[\s/]++|{ATTRIBUTE})*+)>", re.IGNORECASE | re.ASCII)
MARKUP_START = re.compile(r"</?[a-z]|<[!?]|</", re.IGNORECASE | re.ASCII)
RAW_TEXT_ELEMENTS = {"script", "style", "iframe", "noembed", "noframes", "xmp", "title", "textarea"}
RAW_TEXT_END = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE | re.ASCII) for name in RAW_TEXT_ELEMENTS
}


class StartTag(msgspec.Struct, frozen=True):
    """The start of an element. `raw` is its text, for elements in which no tags are parsed."""

    name: str
    attributes: str = ""
    raw: str | None = None


class EndTag(msgspec.Struct, frozen=True):
    """The end of an element."""

    name: str


Token: TypeAlias = str | StartTag | EndTag


def tokenize(html: str) -> Iterator[Token]:
    """Yield the texts and tags of a page, in order, without comments and with entities resolved."""
    position = 0
    while markup := MARKUP_START.search(html, position):
        if markup.start() > position:
            yield unescape_entities(html[position : markup.start()])
        tag = TAG.match(html, markup.start())
        if tag is None:
            position = skip_markup(html, markup.start())
            continue
        name = tag[2].lower()
        position = tag.end()
        if tag[1]:
            yield EndTag(name)
        elif name in RAW_TEXT_ELEMENTS:
            end = RAW_TEXT_END[name].search(html, position)
            stop = end.start() if end else len(html)
            yield StartTag(name, tag[3], raw=html[position:stop])
            position = stop
        else:
            yield StartTag(name, tag[3])
    if position < len(html):
        yield unescape_entities(html[position:])


def skip_markup(html: str, start: int) -> int:
    """Return the position after a comment or declaration; the end if it is not closed."""
    closing = (
        "-->" if html.startswith("<!--", start) else "]]>" if html.startswith("<![CDATA[", start) else ">"
    )
    end = html.find(closing, start)
    return end + len(closing) if end >= 0 else len(html)


def parse_attributes(raw: str) -> dict[str, str]:
    """Return the attributes of a tag; the first of duplicates wins."""
    attributes: dict[str, str] = {}
    for match in ATTRIBUTES.finditer(raw):
        attributes.setdefault(match[1].lower(), unescape_entities((match[2] or "").strip("\"'")))
    return attributes


WHITESPACE = re.compile(r"[\s\xa0]+")
HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
BLANK_LINES = re.compile(r"\n{3,}")
MAX_LIST_DEPTH = 6  # levels of list indentation
MAX_LINK_LENGTH = 2_000
HIDDEN_ELEMENTS = {"template", "svg", "math", "object", "audio", "video", "canvas", "select", "datalist"}
OPTIONAL_END_TAGS = {
    "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option",
    "p", "param", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track", "wbr", "body", "html",
    "head",
}  # fmt: skip
PARAGRAPH_ELEMENTS = {
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "dl", "blockquote", "figure", "pre", "hr",
}  # fmt: skip
BLOCK_ELEMENTS = {
    "address", "article", "aside", "body", "br", "button", "caption", "dd", "details", "dialog", "div", "dt",
    "fieldset", "figcaption", "footer", "form", "head", "header", "html", "legend", "li", "main", "menu",
    "nav", "search", "section", "summary", "tbody", "textarea", "tfoot", "thead", "title", "tr",
}  # fmt: skip
HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}


class WebPage(msgspec.Struct, frozen=True):
    """The title and text of a page."""

    title: str | None
    text: str


def parse_page(html: str, *, url: str, markdown: bool) -> WebPage:
    """Return the text of a page at `url`.

    With `markdown`, headings, code and links are marked up, and links are absolute.
    """
    writer = PageTextWriter(url, markdown=markdown)
    for token in visible_tokens(tokenize(html)):
        writer.write(token)
    return writer.finish()


def visible_tokens(stream: Iterable[Token]) -> Iterator[Token]:
    """Yield the tokens without those of invisible elements."""
    hidden, depth = "", 0
    for token in stream:
        if depth:
            match token:
                case StartTag(name=name) if name == hidden:
                    depth += 1
                case EndTag(name=name) if name == hidden:
                    depth -= 1
        elif isinstance(token, StartTag) and is_hidden(token):
            hidden, depth = token.name, 1
        else:
            yield token


def is_hidden(token: StartTag) -> bool:
    """Return whether an element is invisible; only one that must be closed can hide what follows."""
    if token.name in OPTIONAL_END_TAGS or token.raw is not None or token.attributes.endswith("/"):
        return False
    if token.name in HIDDEN_ELEMENTS:
        return True
    if "hidden" not in token.attributes.lower() and "none" not in token.attributes.lower():
        return False
    attributes = parse_attributes(token.attributes)
    return "hidden" in attributes or HIDDEN_STYLE.search(attributes.get("style", "")) is not None


class PageTextWriter:
    """Writes a page as text, token by token."""

    def __init__(self, url: str, *, markdown: bool) -> None:
        self._url = url
        self._markdown = markdown
        self._title: str | None = None
        self._output: list[str] = []
        self._line: list[str] = []
        self._has_text = False  # the line has more than whitespace
        self._prefix = ""
        self._lists: list[int] = []  # the number of the last item; -1 in unordered lists
        self._link: tuple[int, str] | None = None  # index of its text in the line, and its target
        self._preformatted_depth = 0  # depth of elements with significant whitespace

    def write(self, token: Token) -> None:
        match token:
            case StartTag():
                self._open_element(token)
            case EndTag(name=name):
                self._close_element(name)
            case text:
                self._line.append(text if self._preformatted_depth else WHITESPACE.sub(" ", text))
                self._has_text = self._has_text or not text.isspace()

    def finish(self) -> WebPage:
        """Return the page."""
        self._end_line(1)
        return WebPage(self._title, BLANK_LINES.sub("\n\n", "".join(self._output)).strip())

    def _open_element(self, token: StartTag) -> None:
        name = token.name
        if token.raw is not None:
            self._write_raw_text(name, token.raw)
        elif name in PARAGRAPH_ELEMENTS or name in BLOCK_ELEMENTS:
            self._end_line(
                2 if name in PARAGRAPH_ELEMENTS and not (self._lists and name in ("ul", "ol")) else 1
            )
            self._open_block(name)
        elif name in ("td", "th"):
            self._line.append(" | " if self._has_text else "")
        elif self._markdown:
            self._open_inline(token)
        if name == "base" and (href := parse_attributes(token.attributes).get("href")):
            self._url = self._absolute_url(href) or self._url

    def _write_raw_text(self, name: str, text: str) -> None:
        if name == "title" and self._title is None:
            self._title = WHITESPACE.sub(" ", unescape_entities(text)).strip() or None
        elif name == "textarea":
            self._line.append(unescape_entities(text))
        elif name == "xmp":
            self._line.append(text)

    def _open_block(self, name: str) -> None:
        """Write the Markdown before the text of a block."""
        match name:
            case "ul" | "menu" | "ol":
                self._lists.append(0 if name == "ol" else -1)
            case "li":
                self._prefix = self._list_prefix()
            case "hr":
                self._output.append("---\n\n" if self._markdown else "\n")
            case "pre":
                self._preformatted_depth += 1
                self._output.append("```\n" if self._markdown else "")
            case "blockquote":
                self._prefix = "> " if self._markdown else ""
            case _ if name in HEADINGS and self._markdown:
                self._prefix = HEADINGS[name]
            case _:
                pass  # no prefix

    def _list_prefix(self) -> str:
        indent = "  " * min(len(self._lists) - 1, MAX_LIST_DEPTH)
        if not self._lists or self._lists[-1] < 0:
            return f"{indent}- "
        self._lists[-1] += 1
        return f"{indent}{self._lists[-1]}. "

    def _open_inline(self, token: StartTag) -> None:
        """Write the Markdown of an element within a line."""
        match token.name:
            case "a":
                self._end_link()
                href = parse_attributes(token.attributes).get("href", "")
                if href and not href.startswith("#") and (target := self._absolute_url(href)):
                    self._link = (len(self._line), target)
            case "img":
                alt = WHITESPACE.sub(" ", parse_attributes(token.attributes).get("alt", "")).strip()
                self._line.append(f"[image: {alt}]" if alt else "")
            case "code" | "kbd" | "samp" if not self._preformatted_depth:
                self._line.append("`")
            case _:
                pass  # no Markdown for it

    def _close_element(self, name: str) -> None:
        match name:
            case "a":
                self._end_link()
            case "code" | "kbd" | "samp" if self._markdown and not self._preformatted_depth:
                self._line.append("`")
            case "pre" if self._preformatted_depth:
                self._end_line(1)
                self._preformatted_depth -= 1
                self._output.append("```\n\n" if self._markdown else "\n")
            case "ul" | "ol" | "menu":
                self._end_line(1 if len(self._lists) > 1 else 2)
                del self._lists[-1:]
            case _:
                self._end_block(name)

    def _end_block(self, name: str) -> None:
        if name in PARAGRAPH_ELEMENTS or name in BLOCK_ELEMENTS:
            self._end_line(2 if name in PARAGRAPH_ELEMENTS else 1)
        if name == "li" or name in HEADINGS:
            self._prefix = ""

    def _end_link(self) -> None:
        """Write the link's target after its text; a link without text is dropped."""
        if self._link is None:
            return
        start, target = self._link
        self._link = None
        text = "".join(self._line[start:])
        if text.strip():
            space = " " if text[0].isspace() else ""
            self._line[start:] = [f"{space}[{text.strip()}]({target}){' ' if text[-1].isspace() else ''}"]

    def _end_line(self, lines: int) -> None:
        """End the line, followed by `lines` line breaks if it has text.

        A link that contains blocks continues at the text of the first block.
        """
        if self._has_text:
            self._end_link()
        elif self._link is not None:
            self._link = (0, self._link[1])
        text = "".join(self._line)
        self._line, self._has_text = [], False
        if self._preformatted_depth:
            self._output.append(f"{text.rstrip()}\n" if text.strip() else "")
            return
        text = WHITESPACE.sub(" ", text).strip()
        if text:
            self._output.append(f"{self._prefix}{text}" + "\n" * lines)
            self._prefix = ""
        elif lines > 1 and self._output and not self._prefix:
            self._output.append("\n")

    def _absolute_url(self, href: str) -> str | None:
        """Return the absolute http(s) URL of a link, else None."""
        address = "".join(href.split())
        if (
            len(address) > MAX_LINK_LENGTH
        ):  # urljoin takes time in proportion to the square of a host's length
            return None
        try:
            target = urljoin(self._url, address)
        except ValueError:
            return None
        is_web_url = target.startswith(("http://", "https://")) and len(target) <= MAX_LINK_LENGTH
        return target.replace(")", "%29").replace("(", "%28") if is_web_url else None
