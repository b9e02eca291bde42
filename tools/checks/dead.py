"""Dead code: what neither the package, its tests nor its examples use, as vulture sees it."""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vulture import Vulture
from vulture.noqa import parse_noqa

from tools.checks.findings import Finding, Module, modules

FOLDERS = ("src", "tests", "tools", "examples", "benchmarks")
CONFIDENCE = 60
FLOW = (ast.mod, ast.stmt, ast.IfExp)  # what can make code unreachable
VISITORS = tuple(name for name in dir(Vulture) if name.startswith("visit_"))


class Scanner(Vulture):  # type: ignore[misc]  # vulture has no types
    """Vulture, on trees that are parsed already, and without its look at nodes that name nothing."""

    def scan_module(self, module: Module) -> None:
        """As `scan`. The order of `nodes` is that of `ast.walk`: reversed, children come before parents."""
        self.code, self.filename = module.lines, module.path
        setattr(self, "noqa_lines", parse_noqa(module.lines))  # noqa: B010  # only vulture reads it
        visitors = {name.removeprefix("visit_"): getattr(self, name) for name in VISITORS}
        for node in reversed(module.nodes):
            if isinstance(node, FLOW):
                self.reachability.visit(node)
            visitor = visitors.get(type(node).__name__)
            if visitor is not None:
                visitor(node)
        self.reachability.reset()


def check(root: Path) -> Iterator[Finding]:
    """Fields of classes are left out: they are shapes of data, read by encoders and clients."""
    fields = {place for folder in FOLDERS for place in find_fields(root, folder)}
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["vulture"]
    for item in scan(root, settings).get_unused_code(min_confidence=CONFIDENCE):
        # Here and not in vulture, which compares each of 150,000 definitions with each of the patterns.
        if any(fnmatchcase(item.name, pattern) for pattern in settings["ignore_names"]):
            continue
        path = Path(item.filename).resolve().relative_to(root.resolve()).as_posix()
        if (path, item.first_lineno) not in fields or item.typ != "variable":
            yield Finding(path, item.first_lineno, f"unused {item.typ} {item.name!r}")


def scan(root: Path, settings: Mapping[str, Any]) -> Vulture:
    vulture = Scanner(ignore_decorators=settings["ignore_decorators"])
    for module in (module for name in FOLDERS for module in modules(root, name)):
        vulture.scan_module(module)
    vulture.scavenge([])  # what libraries use, as they are imported
    return vulture


def find_fields(root: Path, folder: str) -> Iterator[tuple[str, int]]:
    """The places of annotated fields in class bodies."""
    for module in modules(root, folder):
        classes = (node for node in module.nodes if isinstance(node, ast.ClassDef))
        for field in (node for owner in classes for node in owner.body if isinstance(node, ast.AnnAssign)):
            yield module.label, field.lineno
