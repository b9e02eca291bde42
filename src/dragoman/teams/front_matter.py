"""Front matter of Markdown files: the YAML between two lines of `---` at their beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from dragoman.errors import ConfigError
from dragoman.json_decoding import well_formed

FENCE = "---"
MAX_FRONT_MATTER = 16_000  # characters
MAX_VALUES = 200_000  # of one document; an alias counts each time that it is used
MAX_NESTED = 100  # brackets within each other: PyYAML takes quadratic time for them
UNREADABLE = (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What PyYAML raises for a text: `!!bool maybe` is a KeyError, `!!int ''` an IndexError."""


class YamlLoader(yaml.SafeLoader):
    """A SafeLoader for YAML of untrusted authors: it bounds nesting and replaces lone surrogates."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - as PyYAML names it
        """Take a bracket that opens. Raises ScannerError if too many are open."""
        if self.flow_level >= MAX_NESTED:
            text = f"more than {MAX_NESTED} brackets within each other"
            raise yaml.scanner.ScannerError(problem=text, problem_mark=self.get_mark())
        super().fetch_flow_collection_start(TokenClass)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return the text of a scalar, without lone surrogates: an escape can make one, JSON has none."""
        return well_formed(str(super().construct_scalar(node)))


def parse_front_matter(text: str, *, source: str) -> tuple[Mapping[str, Any], str]:
    """Return the fields and the rest of a text; no fields for a text without front matter. ConfigError."""
    first, _, rest = text.partition("\n")
    if first.rstrip() != FENCE:
        return {}, text.strip()
    lines = rest.splitlines()
    end = next((number for number, line in enumerate(lines) if line.rstrip() == FENCE), None)
    if end is None:
        raise ConfigError(f"{source}:1: the front matter that begins here has no end; write a line `---`")
    head = "\n".join(lines[:end])
    if len(head) > MAX_FRONT_MATTER:
        raise ConfigError(f"{source}: the front matter is longer than {MAX_FRONT_MATTER} characters")
    fields = parse_yaml(head, source=source, first_line=2)
    if not isinstance(fields, dict | None):
        raise ConfigError(f"{source}:2: the front matter must be fields, like `description: …`")
    return {str(name): value for name, value in (fields or {}).items()}, "\n".join(lines[end + 1 :]).strip()


def parse_yaml(text: str, *, source: str, first_line: int = 1) -> Any:
    """Return the value of a YAML text that begins at a line of its file. Raises ConfigError."""
    loader = None
    try:
        loader = YamlLoader(text)
        node = loader.get_single_node()
        # Counted before anything is made of it: merged aliases of aliases are written out by PyYAML.
        is_small = node is None or count_values(node, {}) <= MAX_VALUES
        value = loader.construct_document(node) if node is not None and is_small else None
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        line = first_line + (mark.line if mark is not None else 0)
        what = "the file is" if first_line == 1 else "the front matter is"
        raise ConfigError(f"{source}:{line}: {what} not valid YAML") from None
    finally:
        if loader is not None:
            loader.dispose()
    if not is_small:
        raise ConfigError(f"{source}: aliases make more than {MAX_VALUES} values of it")
    return value


def count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return how many values a node has, written out: aliases of aliases can stand for billions.

    `counts` are those that were counted before. Raises RecursionError for a value that contains itself.
    """
    match node:
        case yaml.MappingNode(value=pairs):
            parts = [part for pair in pairs for part in pair]
        case yaml.SequenceNode(value=items):
            parts = items
        case _:
            return 1
    if id(node) not in counts:
        counts[id(node)] = 1 + sum(count_values(each, counts) for each in parts)
    return counts[id(node)]
