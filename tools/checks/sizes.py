"""Sizes: modules of a package, lines of a file or function, nesting, parameters, keyword-only after two."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.checks.findings import Finding, Module, child_nodes, modules

PACKAGE_MODULES = 28
FILE_LINES = 500
FUNCTION_LINES = 50
NESTING = 3
PARAMETERS = 6
POSITIONAL = 2

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match)

# Signatures that a specification dictates: ASGI applications, structlog processors.
DICTATED = {("scope", "receive", "send"), ("logger", "method_name", "event_dict")}
OUR_DUNDERS = {"__init__", "__new__", "__call__"}


# One module for each revision of the database, however many there are.
UNBOUNDED = ("store/migrations/versions",)


def check(root: Path) -> Iterator[Finding]:
    yield from check_packages(root)
    for module in modules(root, "src"):
        yield from check_file(module)
        yield from check_functions(module)
    for module in modules(root, "tests"):
        yield from check_file(module)


def check_packages(root: Path) -> Iterator[Finding]:
    for package in sorted(path.parent for path in (root / "src").rglob("__init__.py")):
        count = sum(1 for path in package.glob("*.py") if path.name != "__init__.py")
        if count > PACKAGE_MODULES and not package.as_posix().endswith(UNBOUNDED):
            rule = f"package has {count} modules (at most {PACKAGE_MODULES}): cut it by what they hold"
            yield Finding((package / "__init__.py").relative_to(root).as_posix(), 1, rule)


def check_file(module: Module) -> Iterator[Finding]:
    count = len(module.lines)
    if count > FILE_LINES:
        yield module.find(FILE_LINES, f"file has {count} lines (at most {FILE_LINES}): split it by noun")


def check_functions(module: Module) -> Iterator[Finding]:
    for owner in module.nodes:
        for node in child_nodes(owner):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                in_class = isinstance(owner, ast.ClassDef)
                yield from (module.find(node.lineno, rule) for rule in broken(node, in_class=in_class))


def broken(function: Function, *, in_class: bool) -> Iterator[str]:
    """The size rules that one function breaks."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if lines > FUNCTION_LINES:
        yield f"{function.name}() has {lines} lines (at most {FUNCTION_LINES})"
    nesting = depth(function.body)
    if nesting > NESTING:
        yield f"{function.name}() is nested {nesting} deep (at most {NESTING}): return early"
    positional, total = parameters(function, in_class=in_class)
    if total > PARAMETERS and not is_command(function):
        yield f"{function.name}() takes {total} parameters (at most {PARAMETERS})"
    if len(positional) > POSITIONAL and not is_dictated(function, positional):
        yield f"{function.name}() takes {len(positional)} by position: keyword-only after {POSITIONAL}"


def depth(body: list[ast.stmt]) -> int:
    """How many blocks stand inside one another; a function within starts anew, `elif` and `case` add none."""
    return max((depth_of(statement) for statement in body), default=0)


def depth_of(statement: ast.stmt) -> int:
    if not isinstance(statement, BLOCKS):
        return 0
    bodies = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    bodies += [part.body for name in ("handlers", "cases") for part in getattr(statement, name, [])]
    if is_elif(statement):
        chained = bodies.pop(1)
        return max(depth_of(chained[0]), 1 + max(depth(body) for body in bodies))
    return 1 + max(depth(body) for body in bodies)


def is_elif(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.If) or len(statement.orelse) != 1:
        return False
    follower = statement.orelse[0]
    return isinstance(follower, ast.If) and follower.col_offset == statement.col_offset


def parameters(function: Function, *, in_class: bool) -> tuple[list[str], int]:
    """The names that may be given by position, without self or cls, and how many parameters there are."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if in_class and "staticmethod" not in decorators(function):
        positional = positional[1:]
    return positional, len(positional) + len(arguments.kwonlyargs)


def is_dictated(function: Function, positional: list[str]) -> bool:
    """Whether another's interface dictates the signature: special method, @override, ASGI, structlog."""
    name = function.name
    special = name.startswith("__") and name.endswith("__") and name not in OUR_DUNDERS
    names = tuple(argument.lstrip("_") for argument in positional)
    return special or "override" in decorators(function) or names in DICTATED


def is_command(function: Function) -> bool:
    """Whether it is a typer command: its parameters are options, so there may be many."""
    if "command" in decorators(function):
        return True
    arguments = function.args
    return not (arguments.args or arguments.posonlyargs) and all(
        argument.annotation is not None and default is not None
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    )


def decorators(function: Function) -> set[str]:
    return {ast.unparse(decorator).split("(")[0].rsplit(".")[-1] for decorator in function.decorator_list}
