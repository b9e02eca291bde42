"""Read the source of a plugin: a stand-alone program that parses it without running it.

The source is its input. It prints JSON: `problems`, texts about what a plugin must not contain or lacks, and
`constants`, the values that the hub reads. It runs in a process of its own with limits, because parsing holds
the interpreter for up to a third of a second, and some sources crash it or take all memory.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

MAX_PROBLEMS = 20
MAX_PROBLEM = 200  # characters
REQUIRED = ("DESCRIPTION", "INPUT", "TESTS")
OPTIONAL = ("EFFECT",)
NO_LITERAL = object()
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


def main() -> None:
    """Read the source, print what it offers."""
    json.dump(read_source(sys.stdin.buffer.read().decode("utf-8", "surrogatepass")), sys.stdout)


def read_source(text: str) -> dict[str, Any]:
    """Return the problems of a source, and its constants."""
    try:
        tree = ast.parse(text)
        constants = literals_in(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "it is nested too deeply"
        return {"problems": [f"The source is not valid Python: {reason}"[:MAX_PROBLEM]], "constants": {}}
    problems = [*islice(refused_nodes(tree), MAX_PROBLEMS), *missing_parts(tree, constants)]
    values = {name: value for name, value in constants.items() if is_json(value)}
    return {"problems": [each[:MAX_PROBLEM] for each in problems[:MAX_PROBLEMS]], "constants": values}


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


def missing_parts(tree: ast.Module, constants: dict[str, Any]) -> Iterator[str]:
    """Return what a plugin lacks."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    if len(functions) != 1 or len(functions[0].args.args) != 1:
        yield "there is no `def run(input)`"
    for name in REQUIRED:
        if name not in constants:
            yield f"there is no {name} that is a literal"
    for name, value in constants.items():
        if not is_json(value):
            yield f"{name} is not JSON"


def literals_in(tree: ast.Module) -> dict[str, Any]:
    """Return the constants of a plugin that are literals, without running it."""
    literals: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            literals[name] = evaluate(node.value) if name in REQUIRED or name in OPTIONAL else NO_LITERAL
    return {name: value for name, value in literals.items() if value is not NO_LITERAL}


def evaluate(node: ast.expr) -> Any:
    """Return the value of a literal, NO_LITERAL for another expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return NO_LITERAL


def is_json(value: Any) -> bool:
    """Return whether a value stays the same when written as JSON: not bytes, a tuple, NaN, a surrogate."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        return bool(json.loads(text) == value)
    except (TypeError, ValueError, RecursionError):
        return False


if __name__ == "__main__":
    main()
