"""The package map, docs/map.md: each package in one sentence, in the order of the layers."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.checks.findings import Finding, Module, modules

PACKAGE = "src/dragoman"
PLACE = "docs/map.md"
HEAD = """# The map

This page lists the packages of Dragoman in the order of their layers, for contributors. Imports go down
this page only, which `make check` enforces. [recipes.md](recipes.md) lists the files to edit for each common
change.

```
 people         cli/   server/ (HTTP endpoints; app/ wires it all)
                  │       │
 conversations    └──►  runs/ ──► agent/ (the loop)
                                    │
 callable things         tools/   mcp/   spokes/  ──►  operations/ (registry, call())
                                    │
 models and money        accounts/ (payment of a model call) ──► providers/
                                    │
 kept and sent           store/ (SQLite)      wire/ (bytes and events)      http/      processes/
                                    │
 vocabulary              events   messages   model_request   errors   limits   ids
```

Made by `make map` from the first line of each package's docstring: change it there.

| package | what it holds |
|---|---|
"""


def check(root: Path) -> Iterator[Finding]:
    place = root / PLACE
    current = place.read_text(encoding="utf-8") if place.exists() else ""
    if current != draw(root):
        yield Finding(PLACE, 1, "differs from the packages' docstrings: run `make map`")


def write(root: Path) -> None:
    (root / PLACE).parent.mkdir(exist_ok=True)
    (root / PLACE).write_text(draw(root), encoding="utf-8")


def draw(root: Path) -> str:
    """Return the whole text of the map."""
    order = layers(root)
    rows = [row(root, module) for module in modules(root, PACKAGE) if is_listed(root, module)]
    rows.sort(key=lambda row: (order.index(row[0].split("/")[0].removesuffix(".py")), row[0]))
    return HEAD + "".join(f"| `{name}` | {sentence} |\n" for name, sentence in rows)


def layers(root: Path) -> list[str]:
    """Return the top packages and modules in the order of the layers contract."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    listed = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [name.strip("() ") for layer in listed for name in layer.replace(":", "|").split("|")]


def is_listed(root: Path, module: Module) -> bool:
    """Tell whether the map has a row for this module: packages, and the modules beside them at the top."""
    inside = module.path.relative_to(root / PACKAGE)
    if inside.name == "__init__.py":
        return len(inside.parts) > 1
    return len(inside.parts) == 1 and inside.name != "__main__.py"


def row(root: Path, module: Module) -> tuple[str, str]:
    inside = module.path.relative_to(root / PACKAGE)
    name = f"{inside.parent.as_posix()}/" if inside.name == "__init__.py" else inside.as_posix()
    return name, purpose(module)


def purpose(module: Module) -> str:
    docstring = ast.get_docstring(module.tree) or ""
    return docstring.strip().partition("\n")[0]


if __name__ == "__main__":
    write(Path.cwd())
