"""Promises: each line of tests/promises.toml has a test marked with it, and each mark names a line."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.checks.findings import Finding, modules

PLACE = "tests/promises.toml"


def check(root: Path) -> Iterator[Finding]:
    promised = promises(root)
    marked = dict(marks(root))
    for name, text in promised.items():
        if not text:
            yield Finding(PLACE, 1, f"promise {name!r} says nothing: give it a `text`")
        if name not in marked:
            yield Finding(PLACE, 1, f'promise {name!r} has no test marked `@pytest.mark.promise("{name}")`')
    for name, finding in marked.items():
        if name not in promised:
            yield finding


def promises(root: Path) -> dict[str, str]:
    """The promises' ids and texts."""
    tables = tomllib.loads((root / PLACE).read_text(encoding="utf-8"))
    return {name: str(table.get("text", "")).strip() for name, table in tables.items()}


def marks(root: Path) -> Iterator[tuple[str, Finding]]:
    """The ids that tests are marked with, each with what to say should no promise have it."""
    for module in modules(root, "tests"):
        for node in module.nodes if "mark.promise" in module.text else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="promise", value=ast.Attribute(attr="mark")),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    yield name, module.find(node.lineno, f"no promise {name!r} in {PLACE}")
                case _:
                    pass
