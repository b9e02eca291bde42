"""References in docstrings: "See `Class.name`" names a class of the package, and something that it has."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.checks.findings import Finding, modules, walk

REFERENCE = re.compile(r"[Ss]ee `([A-Z]\w*[a-z]\w*)(?:\.(\w+))?")
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def check(root: Path) -> Iterator[Finding]:
    """Yield the references to what is not there."""
    names = names_by_class(root)
    for module in modules(root, "src"):
        for number, line in enumerate(module.lines, 1):
            for match in REFERENCE.finditer(line):
                owner, name = match.groups()
                if owner not in names or (name is not None and name not in names[owner]):
                    yield module.find(number, f"`{match[0].partition('`')[2]}` is not in the package")


def names_by_class(root: Path) -> Mapping[str, set[str]]:
    """Return the methods and attributes of each class of the package."""
    names: dict[str, set[str]] = {}
    for module in modules(root, "src"):
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, set()).update(names_in(node))
    return names


def names_in(owner: ast.ClassDef) -> Iterator[str]:
    """Yield what a class defines: in its body, and on `self`."""
    for node in walk(owner):
        if isinstance(node, Definition):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
