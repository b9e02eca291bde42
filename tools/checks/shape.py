"""Shape: names of modules and classes, docstrings, re-exports only, imports at the top."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.checks.findings import Finding, Module, modules

VAGUE = {
    "base", "bases", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utility", "utils",
}  # fmt: skip
VAGUE_CLASS = re.compile(r"_*(Abstract.*|.+(Impl|Data|Info))")
DECODE_ERROR = re.compile(r"except .*msgspec\.(DecodeError|MsgspecError)")
IS_DIGIT = re.compile(r"\.is(digit|numeric)\(\)")
BODIES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LATE = re.compile(r"#\s*late:\s*\S")


def check(root: Path) -> Iterator[Finding]:
    for module in modules(root, "src"):
        yield from check_name(module)
        yield from check_docstring(module)
        yield from check_classes(module)
        yield from check_imports(module)
        yield from check_decoding(module)
        if module.path.name == "__init__.py":
            yield from check_reexports(module)
    yield from check_tests(root)


def check_name(module: Module) -> Iterator[Finding]:
    name = module.path.parent.name if module.path.stem == "__init__" else module.path.stem
    vague = VAGUE.intersection(name.split("_"))
    if vague:
        yield module.find(1, f"a module is one noun, not {min(vague)!r}")


def check_docstring(module: Module) -> Iterator[Finding]:
    docstring = ast.get_docstring(module.tree)
    if not docstring or not docstring.strip():
        yield module.find(1, "no docstring: its first line says what the module is for")


def check_classes(module: Module) -> Iterator[Finding]:
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and VAGUE_CLASS.fullmatch(node.name):
            yield module.find(
                node.lineno, f"class {node.name}: a class is a noun, not Abstract…, …Impl, …Data, …Info"
            )


def check_imports(module: Module) -> Iterator[Finding]:
    indented = [
        node.lineno
        for node in module.nodes
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.col_offset
    ]
    early = [line for line in indented if not is_late(module, line)]
    bodies = [node for node in module.nodes if early and isinstance(node, BODIES)]
    for line in early:
        if any(owner.lineno <= line <= (owner.end_lineno or 0) for owner in bodies):
            yield module.find(line, "import inside a body: move it up, or say `# late: reason`")


def check_decoding(module: Module) -> Iterator[Finding]:
    """Invalid UTF-8 and deep nesting raise errors that are not of msgspec."""
    for number, line in enumerate(module.lines, 1):
        if DECODE_ERROR.search(line) and "Unicode" not in line:
            yield module.find(number, "catch `DECODE_ERRORS` of json_decoding, which has all of them")
        if IS_DIGIT.search(line) and module.path.name != "json_decoding.py":
            yield module.find(number, "`int` refuses `²`, a digit here: use `parse_digits` of json_decoding")


def is_late(module: Module, line: int) -> bool:
    """Whether the import's line, or the one above, gives the reason for importing late."""
    return any(LATE.search(text) for text in module.lines[max(0, line - 2) : line])


def check_tests(root: Path) -> Iterator[Finding]:
    """A tests/mcp with an `__init__.py` would stand where `import mcp` finds it."""
    for module in modules(root, "tests"):
        if module.path.name == "__init__.py":
            yield module.find(1, "tests are not packages: `from tests.… import` works without __init__.py")


def check_reexports(module: Module) -> Iterator[Finding]:
    for node in module.tree.body:
        if not is_reexport(node):
            yield module.find(node.lineno, "__init__.py re-exports and nothing else")


def is_reexport(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=orelse):
            return all(map(is_reexport, [*body, *orelse]))
        case ast.Assign(targets=[ast.Name(id="__getattr__")]):
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.AnnAssign(target=ast.Name(id="__all__")):
            return True
        case _:
            return False
