"""Documents: a YAML text as plain values, with the line of every field and what is wrong already here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from dragoman.config.faults import Fault, Path, clean
from dragoman.errors import ConfigError

# ---- Scalars: what a single word of YAML means, and the environment's variables inside a text.

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_LOADER = yaml.SafeLoader("")
_CORE = "tag:yaml.org,2002:"
_TEXTS = ("str", "value", "timestamp", "merge", "yaml")


_SPAN = re.compile(r"(\d{1,9}(?:\.\d+)?)\s*(ms|s|min|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class Unusable(Exception):
    """A scalar that means nothing here; the message says why, without its value."""


def read_scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar: text, a number, true or false, or None.

    Dates stay text, as do `yes`, `no`, `on` and `off`, and numbers with a colon. That is what people mean by
    them here (`version: 2023-06-01`, `thinking: off`), and what YAML itself says since 1.2.
    """
    text = str(node.value)
    match node.tag.removeprefix(_CORE):
        case "null":
            return None
        case "bool":
            return text.lower() == "true" if text.lower() in ("true", "false") else text
        case "int" | "float":
            return text if ":" in text else _number(node)
        case tag if tag in _TEXTS:
            return text
        case _:
            raise Unusable(f"the tag {clean(node.tag.removeprefix(_CORE))!r} means nothing here")


def _number(node: yaml.ScalarNode) -> int | float:
    try:
        value = _LOADER.construct_object(node)
    except (ValueError, OverflowError, yaml.YAMLError):
        raise Unusable("this is no number that can be read") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise Unusable("infinity is not counted with here; null is no limit, where there may be none")
    return value  # type: ignore[no-any-return]  # of an int or float tag


def read_text(text: str) -> Any:
    """The value of a scalar that is written as this text."""
    tag = _LOADER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # in its stubs
    return read_scalar(yaml.ScalarNode(tag, text))


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """The text with `${NAME}` and `${NAME:-default}` replaced; `$${` stands for `${`. Unusable says why."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if found[0] == "$${":
            return "${"
        if name is None:
            raise Unusable("after '${' comes the name of a variable and '}'; '$${' is a '${' that stays")
        held = environ.get(name)
        if default is not None:
            return held or default
        if held is None:
            raise Unusable(
                f"the environment variable {name} is not set; ${{{name}:-default}} would do without,"
                " and a key is better named in api_key_env"
            )
        return held

    return _VARIABLE.sub(value, text)


def read_span(text: str) -> float:
    """The seconds in a span of time as people write it: `90s`, `2min`, `1.5h`."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise Unusable("is no span of time; one reads like 90s, 2min or 1.5h")
    return float(found[1]) * _UNITS[found[2]]


LARGEST = 100_000  # values, aliases counted as often as they are used
_MERGE = "tag:yaml.org,2002:merge"
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class Document:
    """What was read. `lines` has the fields' lines, `origins` the variables that fields came from.

    `texts` holds what variables said, as text: only its field knows whether that means a number or a word.
    """

    def __init__(self) -> None:
        self.value: Any = {}
        self.lines: dict[Path, int] = {}
        self.texts: dict[Path, str] = {}
        self.origins: dict[Path, str] = {}
        self.faults: list[Fault] = []

    def line(self, path: Path) -> int:
        """The line of a field, or of what it stands in; 0 when it is in no file."""
        places = (path[:length] for length in range(len(path), -1, -1))
        return next((self.lines[place] for place in places if place in self.lines), 0)

    def where(self, path: Path, *, source: str) -> str:
        """Where a field was said: `file:line`, a variable's name, or the source alone."""
        for length in range(len(path), -1, -1):
            place = path[:length]
            if place in self.origins:
                return self.origins[place]
            if place in self.lines:
                return f"{source}:{self.lines[place]}"
            near = [name for other, name in self.origins.items() if other[:length] == place]
            if near and place:
                return near[0]
        return source


def read_document(text: str, *, source: str, environ: Mapping[str, str]) -> Document:
    """The document in a YAML text. ConfigError with the line when it is no YAML."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        builder = Builder(environ)
        if node is not None:
            builder.document.value = builder.build(node, ())
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}:{_line(error, text)}: no YAML: {_problem(error)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    if builder.document.value is None:
        builder.document.value = {}
    return builder.document


def _line(error: yaml.YAMLError, text: str) -> int:
    if isinstance(error, yaml.reader.ReaderError):
        return text.count("\n", 0, error.position) + 1
    mark = error.problem_mark or error.context_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return mark.line + 1 if mark else 1


def _problem(error: yaml.YAMLError) -> str:
    """What the parser says, but never the text that it read: there may be a secret in it."""
    if isinstance(error, yaml.reader.ReaderError):
        return "a character that may not be there"
    said = error.problem or error.context if isinstance(error, yaml.MarkedYAMLError) else None
    if said and "\\t" in said:
        return "a tab, where only spaces may stand"
    return clean(said or "it cannot be read")


class Builder:
    """Makes values of nodes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.document = Document()
        self._environ = environ
        self._open: set[int] = set()
        self._count = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node; its faults are kept."""
        self._count += 1
        if self._count > LARGEST:
            raise yaml.MarkedYAMLError(problem=f"more than {LARGEST} values", problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            return self._fault(path, "an anchor that holds itself")
        self._open.add(id(node))
        try:
            return self._collection(node, path)
        finally:
            self._open.discard(id(node))

    def _collection(self, node: yaml.Node, path: Path) -> Any:
        if node.tag not in _COLLECTIONS:
            return self._fault(path, f"the tag {clean(node.tag)!r} means nothing here")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self._item(child, (*path, place)) for place, child in enumerate(node.value)]

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self.document.lines[path] = node.start_mark.line + 1
        return self.build(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        merged = [value for key, value in node.value if key.tag == _MERGE]
        made: dict[str, Any] = {}
        for value in merged:
            made |= self._merged(value, path)
        seen: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._fault(path, "a field's name is a word, not a list or mapping")
                continue
            name = str(key.value)
            below = (*path, name)
            self.document.lines[below] = line
            if name in seen:
                self._fault(below, f"said twice; first in line {seen[name]}")
                continue
            seen[name] = line
            made[name] = self.build(value, below)
        return made

    def _merged(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        """What `<<` brings in: a mapping, or several of which the first ones win."""
        if isinstance(node, yaml.SequenceNode):
            made: dict[str, Any] = {}
            for child in reversed(node.value):
                made |= self._merged(child, path)
            return made
        value = self.build(node, path)
        if isinstance(value, dict):
            return value
        self._fault(path, "'<<' takes in mappings only")
        return {}

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        try:
            value = read_scalar(node)
            if not isinstance(value, str) or "${" not in value:
                return value
            text = substitute(value, self._environ)
            self.document.texts[path] = text
            return text if node.style else read_text(text)
        except Unusable as error:
            return self._fault(path, str(error))

    def _fault(self, path: Path, message: str) -> None:
        self.document.faults.append(Fault(path, message))
