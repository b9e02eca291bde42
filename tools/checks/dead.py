"""Dead code: what neither the package, its tests nor its examples use, as vulture sees it."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from vulture import Vulture

from tools.checks.findings import Finding, modules

FOLDERS = ("src", "tests", "tools", "examples", "benchmarks")
CONFIDENCE = 60


def check(root: Path) -> Iterator[Finding]:
    """Fields of classes are left out: they are shapes of data, read by encoders and clients."""
    fields = {place for folder in FOLDERS for place in find_fields(root, folder)}
    for item in scan(root).get_unused_code(min_confidence=CONFIDENCE):
        path = Path(item.filename).resolve().relative_to(root.resolve()).as_posix()
        if (path, item.first_lineno) not in fields or item.typ != "variable":
            yield Finding(path, item.first_lineno, f"unused {item.typ} {item.name!r}")


def scan(root: Path) -> Vulture:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["vulture"]
    vulture = Vulture(ignore_names=settings["ignore_names"], ignore_decorators=settings["ignore_decorators"])
    vulture.scavenge([str(module.path) for name in FOLDERS for module in modules(root, name)])
    return vulture


def find_fields(root: Path, folder: str) -> Iterator[tuple[str, int]]:
    """The places of annotated fields in class bodies."""
    for module in modules(root, folder):
        classes = (node for node in module.nodes if isinstance(node, ast.ClassDef))
        for field in (node for owner in classes for node in owner.body if isinstance(node, ast.AnnAssign)):
            yield module.label, field.lineno
