"""Docstrings in Google, NumPy and Sphinx style: the description and the text of each parameter."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Any

import msgspec

SECTION_HEADS = {"Args:", "Arguments:", "Parameters:"}
UNDERLINE = re.compile(r"\s*-{3,}\s*")
PARAMETER_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*(?::\s*(.*))?")
SPHINX_PARAMETER = re.compile(r"^:param (?:\S+ )*?(\w+):[ ]*(.*(?:\n[ \t]+\S.*)*)\n?", re.MULTILINE)


class ParsedDocstring(msgspec.Struct, frozen=True):
    """A docstring without its parameter section, and the text of each parameter."""

    description: str
    parameters: Mapping[str, str]


def parse_docstring(function: Callable[..., Any]) -> ParsedDocstring:
    """Parse the function's own docstring; empty without one."""
    text = inspect.cleandoc(function.__doc__ or "")
    parameters = {
        name: collapse_whitespace(description) for name, description in SPHINX_PARAMETER.findall(text)
    }
    lines = SPHINX_PARAMETER.sub("", text).splitlines()
    for index, line in enumerate(lines):
        numpy = line == "Parameters" and bool(UNDERLINE.fullmatch("".join(lines[index + 1 : index + 2])))
        if numpy or line in SECTION_HEADS:
            body = list(numpy_body(lines[index + 2 :]) if numpy else google_body(lines[index + 1 :]))
            parameters |= parse_entries(body, typed=numpy)
            lines[index : index + len(body) + 1 + numpy] = []
            break
    return ParsedDocstring("\n".join(lines).strip(), parameters)


def google_body(lines: list[str]) -> Iterator[str]:
    """Return the indented lines of a section."""
    return takewhile(lambda line: not line.strip() or line.startswith((" ", "\t")), lines)


def numpy_body(lines: list[str]) -> Iterator[str]:
    """Return the lines up to the next underlined title."""
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        if UNDERLINE.fullmatch(next_line):
            return
        yield line


def parse_entries(body: list[str], *, typed: bool) -> dict[str, str]:
    """Return each parameter's text. With `typed`, the type follows the colon, else the text does."""
    texts_by_name: dict[str, list[str]] = {}
    current: list[str] = []
    for line in textwrap.dedent("\n".join(body)).splitlines():
        entry = PARAMETER_ENTRY.fullmatch(line)
        if entry is not None:
            current = texts_by_name.setdefault(entry[1], [])
        current.append("" if entry and typed else entry[2] or "" if entry else line)
    return {name: collapse_whitespace(" ".join(texts)) for name, texts in texts_by_name.items()}


def collapse_whitespace(text: str) -> str:
    return " ".join(text.split())
