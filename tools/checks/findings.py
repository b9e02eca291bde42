"""What a check found, and the modules that the checks read."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path


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
        """All nodes of the tree, as `ast.walk` gives them."""
        return list(ast.walk(self.tree))

    def find(self, line: int, rule: str) -> Finding:
        return Finding(self.label, line, rule)


def modules(root: Path, folder: str) -> Iterator[Module]:
    """The Python files below `root/folder`, in order, without what others installed there."""
    for path in sorted((root / folder).rglob("*.py")):
        parts = path.relative_to(root).parts
        if "node_modules" not in parts and not any(part.startswith(".") for part in parts):
            yield read_module(root, path, path.stat().st_mtime_ns)


@cache
def read_module(root: Path, path: Path, _changed: int) -> Module:
    """The module, parsed once for all checks."""
    return Module(root, path)
