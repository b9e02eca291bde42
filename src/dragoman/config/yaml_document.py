"""YAML documents as plain values, with the line of every field and the problems found while reading."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from dragoman.config.problems import ConfigProblem, FieldPath, mask_secrets
from dragoman.errors import ConfigError
from dragoman.json_decoding import well_formed

# Scalars: their values, and environment variables inside them.

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_LOADER = yaml.SafeLoader("")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_CORE_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = ("str", "value", "timestamp", "merge", "yaml")


_DURATION = re.compile(r"(\d{1,9}(?:\.\d+)?)\s*(ms|s|min|h|d)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class InvalidScalar(Exception):
    """A scalar that is not valid here; the message says why, without its value."""


def parse_scalar(node: yaml.ScalarNode) -> Any:
    """Return the value of a scalar: text, a number, true or false, or None.

    Dates stay text, as do `yes`, `no`, `on` and `off`, and numbers with a colon: it is what users mean
    (`version: 2023-06-01`, `thinking: off`), and what YAML specifies since 1.2.
    """
    text = well_formed(str(node.value))
    match node.tag.removeprefix(_CORE_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() == "true" if text.lower() in ("true", "false") else text
        case "int" | "float":
            return text if ":" in text else _parse_number(node)
        case tag if tag in _TEXT_TAGS:
            return text
        case _:
            raise InvalidScalar(
                f"the tag {mask_secrets(node.tag.removeprefix(_CORE_TAG))!r} is not supported"
            )


def _parse_number(node: yaml.ScalarNode) -> int | float:
    try:
        value = _LOADER.construct_object(node)
    except (ValueError, OverflowError, IndexError, yaml.YAMLError):
        raise InvalidScalar("is not a valid number") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidScalar("infinity is not allowed; write null for no limit, where that is allowed")
    return value  # type: ignore[no-any-return]  # of an int or float tag


def parse_text(text: str) -> Any:
    """Return the value of a scalar with this text."""
    tag = _LOADER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # in its stubs
    return parse_scalar(yaml.ScalarNode(tag, text))


def substitute_variables(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${NAME}` and `${NAME:-default}` in a text; `$${` stands for `${`. Raises InvalidScalar."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if found[0] == "$${":
            return "${"
        if name is None:
            raise InvalidScalar(
                "expected a variable's name and '}' after '${'; write '$${' for a literal '${'"
            )
        text = environ.get(name)
        if default is not None:
            return text or default
        if text is None:
            raise InvalidScalar(
                f"the environment variable {name} is not set; write ${{{name}:-default}} to make it optional,"
                " and name keys in api_key_env instead"
            )
        return text

    return _REFERENCE.sub(value, text)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `2min` or `1.5h`. Raises InvalidScalar."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise InvalidScalar("is not a valid duration; write it like 90s, 2min or 1.5h")
    return float(found[1]) * _UNIT_SECONDS[found[2]]


MAX_VALUES = 100_000  # values, aliases counted as often as they are used
_MERGE_TAG = "tag:yaml.org,2002:merge"
_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class ConfigDocument:
    """A value that was read. `lines` has the fields' lines, `variables` the variables that set fields.

    `variable_texts` has the unparsed values of variables: only the type of the field decides whether `1`
    means a number or a text.
    """

    def __init__(self) -> None:
        self.value: Any = {}
        self.lines: dict[FieldPath, int] = {}
        self.variable_texts: dict[FieldPath, str] = {}
        self.variables: dict[FieldPath, str] = {}
        self.problems: list[ConfigProblem] = []

    def line_of(self, path: FieldPath) -> int:
        """Return the line of a field or of the nearest section around it; 0 if it is not in a file."""
        sections = (path[:length] for length in range(len(path), -1, -1))
        return next((self.lines[section] for section in sections if section in self.lines), 0)

    def location(self, path: FieldPath, *, source: str) -> str:
        """Return where a field was set: `file:line`, a variable's name, or the source alone."""
        for length in range(len(path), -1, -1):
            section = path[:length]
            if section in self.variables:
                return self.variables[section]
            if section in self.lines:
                return f"{source}:{self.lines[section]}"
            inside = [name for field, name in self.variables.items() if field[:length] == section]
            if inside and section:
                return inside[0]
        return source


def read_document(text: str, *, source: str, environ: Mapping[str, str]) -> ConfigDocument:
    """Parse a YAML text. Raises ConfigError with the line when it is not valid YAML.

    Values that are not allowed are added to the `problems` of the document instead.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        builder = DocumentBuilder(environ)
        if node is not None:
            builder.document.value = builder.build(node, ())
            if not isinstance(node, yaml.MappingNode):
                builder.document.lines[()] = node.start_mark.line + 1
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{source}:{_yaml_line(error, text)}: not valid YAML: {_yaml_problem(error)}"
        ) from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    if builder.document.value is None:
        builder.document.value = {}
    return builder.document


_YAML_FIXES = {
    "expected <block end>": "; correct the indentation: all fields of a section begin in the same column",
    "mapping values are not allowed": "; correct the indentation, or put text with a colon in quotes",
    "could not find expected ':'": "; write `name: value`, with a space behind the colon",
    "expected alphabetic or numeric": "; put text that begins with * or & in quotes",
    "cannot start any token": "; put text that begins with it in quotes",
    "undefined alias": "; an anchor is set with &NAME, and text that begins with * needs quotes",
    "expected ',' or": "; close the bracket, or put the text in quotes",
    "more than": "; make the file smaller",
}


def _yaml_line(error: yaml.YAMLError, text: str) -> int:
    if isinstance(error, yaml.reader.ReaderError):
        return text.count("\n", 0, error.position) + 1
    if not isinstance(error, yaml.MarkedYAMLError):
        return 1
    marks = (error.problem_mark, error.context_mark)
    mark = marks[1] or marks[0] if _is_open_quote(error) else marks[0] or marks[1]
    return mark.line + 1 if mark else 1


def _yaml_problem(error: yaml.YAMLError) -> str:
    """Return the parser's message, but never the text that it read: there may be a secret in it."""
    if isinstance(error, yaml.reader.ReaderError):
        return "a character that is not allowed"
    problem = error.problem or error.context if isinstance(error, yaml.MarkedYAMLError) else None
    if problem and "\\t" in problem:
        return "a tab, where only spaces are allowed; indent with spaces"
    if isinstance(error, yaml.MarkedYAMLError) and _is_open_quote(error):
        return "a quote is opened here and never closed"
    text = problem or "it cannot be parsed"
    fix = next((fix for piece, fix in _YAML_FIXES.items() if piece in text), "")
    return mask_secrets(text) + fix


def _is_open_quote(error: yaml.MarkedYAMLError) -> bool:
    return "quoted scalar" in (error.context or "") and "end of stream" in (error.problem or "")


class DocumentBuilder:
    """Builds the values of YAML nodes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.document = ConfigDocument()
        self._environ = environ
        self._open_nodes: set[int] = set()
        self._count = 0

    def build(self, node: yaml.Node, path: FieldPath) -> Any:
        """Return the value of a node; its problems are added to the document."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_VALUES} values", problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open_nodes:
            return self._add_problem(path, "an anchor that contains itself")
        self._open_nodes.add(id(node))
        try:
            return self._collection(node, path)
        finally:
            self._open_nodes.discard(id(node))

    def _collection(self, node: yaml.Node, path: FieldPath) -> Any:
        if node.tag not in _COLLECTION_TAGS:
            return self._add_problem(path, f"the tag {mask_secrets(node.tag)!r} is not supported")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self._item(child, (*path, place)) for place, child in enumerate(node.value)]

    def _item(self, node: yaml.Node, path: FieldPath) -> Any:
        self.document.lines[path] = node.start_mark.line + 1
        return self.build(node, path)

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for merged in [value for key, value in node.value if key.tag == _MERGE_TAG]:
            fields |= self._merge_value(merged, path)
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                continue
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._add_problem(path, "a field's name is a word, not a list or mapping")
                continue
            name = well_formed(str(key.value))
            below = (*path, name)
            self.document.lines[below] = line
            if name in lines:
                self._add_problem(below, f"is set twice; first in line {lines[name]}")
                continue
            lines[name] = line
            fields[name] = self.build(value, below)
        return fields

    def _merge_value(self, node: yaml.Node, path: FieldPath) -> dict[str, Any]:
        """Return what `<<` merges: a mapping, or several of which the first take precedence."""
        if isinstance(node, yaml.SequenceNode):
            fields: dict[str, Any] = {}
            for child in reversed(node.value):
                fields |= self._merge_value(child, path)
            return fields
        value = self.build(node, path)
        if isinstance(value, dict):
            return value
        self._add_problem(path, "'<<' merges mappings only")
        return {}

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        try:
            if node.tag == f"{_CORE_TAG}int" and _OCTAL.fullmatch(node.value):
                raise InvalidScalar("has a leading zero, which makes it octal in YAML; write it without")
            value = parse_scalar(node)
            if not isinstance(value, str) or "${" not in value:
                return value
            text = well_formed(substitute_variables(value, self._environ))
            self.document.variable_texts[path] = text
            return text if node.style else parse_text(text)
        except InvalidScalar as error:
            return self._add_problem(path, str(error))

    def _add_problem(self, path: FieldPath, message: str) -> None:
        self.document.problems.append(ConfigProblem(path, message))
