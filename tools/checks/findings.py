"""What a check found, and the modules that the checks read."""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

LEAVES = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)  # half of all nodes


@dataclass(frozen=True, order=True)
class Finding:
    """One broken rule at one place; prints as an editor can jump to it."""

    path: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


@dataclass(frozen=True)
class Module:
    """A Python file below a root, with its syntax tree."""

    root: Path
    path: Path

    @property
    def label(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.label)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree but `LEAVES`."""
        return walk(self.tree)

    def find(self, line: int, rule: str) -> Finding:
        return Finding(self.label, line, rule)


def modules(root: Path, folder: str) -> Iterator[Module]:
    """The Python files below `root/folder`, in order, without what others installed there."""
    paths = []
    for place, folders, names in os.walk(root / folder):
        folders[:] = [name for name in folders if name != "node_modules" and not name.startswith(".")]
        paths += [Path(place, name) for name in names if name.endswith(".py") and not name.startswith(".")]
    for path in sorted(paths):
        yield read_module(root, path, path.stat().st_mtime_ns)


def walk(node: ast.AST) -> list[ast.AST]:
    """List what `ast.walk` yields, in its order but without `LEAVES`, in a third of its time."""
    nodes = [node]
    for parent in nodes:  # grows
        nodes.extend(child_nodes(parent))
    return nodes


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """List the children of a node but `LEAVES`, in their order in the source."""
    children = []
    for value in node.__dict__.values():
        if type(value) is list:
            children += [child for child in value if isinstance(child, ast.AST)]
        elif isinstance(value, ast.AST):
            children.append(value)
    return [child for child in children if not isinstance(child, LEAVES)]


@cache
def read_module(root: Path, path: Path, _changed: int) -> Module:
    """The module, parsed once for all checks."""
    return Module(root, path)
