"""The map of the house, docs/map.md: the first docstring line of each module, in the order of the layers."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.checks.findings import Finding, Module, modules

PACKAGE = "src/dragoman"
PLACE = "docs/map.md"
HEAD = """# The map

Where to find what, from the top layer down; imports go down only. Made by `make map` from the first line of
each module's docstring: change it there.
"""


def check(root: Path) -> Iterator[Finding]:
    place = root / PLACE
    written = place.read_text(encoding="utf-8") if place.exists() else ""
    if written != draw(root):
        yield Finding(PLACE, 1, "not what the docstrings say: run `make map`")


def write(root: Path) -> None:
    (root / PLACE).parent.mkdir(exist_ok=True)
    (root / PLACE).write_text(draw(root), encoding="utf-8")


def draw(root: Path) -> str:
    """The whole text of the map."""
    rooms: dict[str, list[Module]] = {room: [] for room in layers(root)}
    for module in modules(root, PACKAGE):
        rooms.setdefault(room_of(root, module), []).append(module)
    drawn = [draw_room(root, found) for found in rooms.values() if found]
    return "\n".join([HEAD, *drawn])


def layers(root: Path) -> list[str]:
    """The rooms in the order of the layers contract; the package's own face first."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    listed = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return ["__init__", *(layer.strip("()") for layer in listed)]


def room_of(root: Path, module: Module) -> str:
    inside = module.path.relative_to(root / PACKAGE)
    return inside.parts[0].removesuffix(".py")


def draw_room(root: Path, found: list[Module]) -> str:
    lines = [draw_module(root, module) for module in sorted(found, key=lambda module: module.path.parts)]
    return "\n".join(lines).rstrip() + "\n"


def draw_module(root: Path, module: Module) -> str:
    inside = module.path.relative_to(root / PACKAGE)
    if inside.name == "__init__.py" and inside.parent.parts:
        return f"## {inside.parent.as_posix()}/\n\n{purpose(module)}\n"
    if len(inside.parts) == 1:
        return f"## {inside.as_posix()}\n\n{purpose(module)}"
    return f"- `{inside.as_posix()}`: {purpose(module)}"


def purpose(module: Module) -> str:
    docstring = ast.get_docstring(module.tree) or ""
    return docstring.strip().partition("\n")[0]


if __name__ == "__main__":
    write(Path.cwd())
