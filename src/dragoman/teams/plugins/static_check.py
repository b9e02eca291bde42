"""The source of a plugin, read without running it: what it offers, and what it must not contain.

The check tells an author early what will not work. The protection is the sandbox.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman.errors import BadRequest, ConfigError
from dragoman.operations.arguments.validation import make_bounded_parser
from dragoman.operations.operation import Effect

MAX_SOURCE = 100_000  # characters
MAX_TESTS = 50
NAME_PATTERN = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
MAX_NAME = 63
RESERVED_NAMES = frozenset({"read", "write", "edit", "glob", "grep", "bash"})
ALLOWED_MODULES = frozenset(
    {
        "base64", "bisect", "calendar", "collections", "csv", "dataclasses", "datetime", "decimal", "difflib",
        "enum", "fractions", "functools", "hashlib", "heapq", "html", "io", "itertools", "json", "math",
        "operator", "random", "re", "statistics", "string", "textwrap", "time", "typing", "unicodedata",
        "urllib.parse", "uuid", "zlib", "zoneinfo",
    }
)  # fmt: skip
REFUSED_NAMES = frozenset(
    {
        "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals",
        "locals", "memoryview", "open", "setattr", "vars",
    }
)  # fmt: skip


class PluginTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input, and what `run` has to return for it."""

    input: dict[str, Any]
    output: Any


class PluginSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin offers: its description, the JSON Schema of its input, its effect, its tests."""

    name: str
    text: str
    description: str
    schema: dict[str, Any]
    effect: Effect = "once"
    tests: tuple[PluginTest, ...] = ()

    @property
    def hash(self) -> str:
        """The SHA-256 of the source."""
        return hash_of(self.text)


def hash_of(text: str) -> str:
    """Return the SHA-256 of a source."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def parse_plugin(name: str, text: str) -> PluginSource:
    """Return what a source offers. Raises BadRequest with every problem, by line."""
    check_name(name)
    if len(text) > MAX_SOURCE:
        raise BadRequest(f"The source has {len(text)} characters; the limit is {MAX_SOURCE}.", field="source")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRequest(f"The source is not valid Python: {error}", field="source") from None
    problems = [*refused_nodes(tree), *missing_parts(tree)]
    if problems:
        raise BadRequest("; ".join(problems[:20]), field="source", hint=CONTRACT)
    return build_source(name, text, constants=constants_in(tree))


CONTRACT = (
    "A plugin defines DESCRIPTION, a text; INPUT, a JSON Schema; TESTS, a list of "
    "{'input': ..., 'output': ...}; optionally EFFECT, 'read', 'idempotent' or 'once'; and `def run(input)`, "
    "which returns JSON. It imports pure modules of the standard library only."
)


def check_name(name: str) -> None:
    """Raise BadRequest for a name that a plugin cannot have."""
    if name in RESERVED_NAMES:
        raise BadRequest(f"{name!r} is the name of a built-in tool.", field="name", hint="Choose another.")
    if not NAME_PATTERN.fullmatch(name) or len(name) > MAX_NAME:
        raise BadRequest(f"{name[:100]!r} is not a name in snake_case.", field="name")


def build_source(name: str, text: str, *, constants: dict[str, Any]) -> PluginSource:
    """Return the source with its constants, which are converted strictly. Raises BadRequest."""
    fields = {
        "name": name,
        "text": text,
        "description": constants.get("DESCRIPTION"),
        "schema": constants.get("INPUT"),
        "effect": constants.get("EFFECT", "once"),
        "tests": constants.get("TESTS"),
    }
    try:
        source = msgspec.convert(fields, PluginSource)
        parse = make_bounded_parser(source.schema)
        for test in source.tests:
            parse(test.input)
    except (msgspec.ValidationError, ConfigError, BadRequest) as error:
        raise BadRequest(
            f"A constant of the plugin is not valid: {error}", field="source", hint=CONTRACT
        ) from None
    if not 0 < len(source.tests) <= MAX_TESTS:
        raise BadRequest(f"A plugin has 1 to {MAX_TESTS} tests, not {len(source.tests)}.", field="source")
    return source


def refused_nodes(tree: ast.Module) -> Iterator[str]:
    """Return what a plugin must not contain, by line."""
    for node in ast.walk(tree):
        for module in imported_modules(node):
            if module not in ALLOWED_MODULES:
                yield f"line {line_of(node)}: the module {module!r} cannot be imported"
        if isinstance(node, ast.Name) and node.id in REFUSED_NAMES:
            yield f"line {node.lineno}: {node.id!r} cannot be used"
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            yield f"line {node.lineno}: the attribute {node.attr!r} cannot be used"


def imported_modules(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports; the empty name for relative ones."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "" if node.level == 0 else ""]
    return []


def line_of(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def missing_parts(tree: ast.Module) -> Iterator[str]:
    """Return what a plugin lacks."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    if len(functions) != 1 or len(functions[0].args.args) != 1:
        yield "there is no `def run(input)`"
    present = constants_in(tree)
    for name in ("DESCRIPTION", "INPUT", "TESTS"):
        if name not in present:
            yield f"there is no {name} that is a literal"


def constants_in(tree: ast.Module) -> dict[str, Any]:
    """Return the literals that a module assigns to names of capital letters, without running it."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
    return {name: value for name, value in found.items() if name.isupper()}
