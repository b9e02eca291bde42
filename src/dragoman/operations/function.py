"""Functions as operations: `@operation` on a plain sync or async Python function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from dragoman.errors import ConfigError
from dragoman.operations import docstring
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect, Operation, Run
from dragoman.operations.parameters import Parameters
from dragoman.operations.schema import of_type

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
MARK = "__dragoman_operation__"


def operation(
    namespace: str,
    *,
    effect: Effect = "once",
    name: str | None = None,
    timeout: float | None = None,
    approval: bool = False,
) -> Callable[[F], F]:
    """Make a function callable through the hub; for its own module it stays an ordinary function.

    Name, description and JSON Schemas come from the function's name, docstring and type hints. A parameter
    of type Context is handed the call's context and is no part of the schema. `effect` says what a repeated
    call does: nothing (`read`), nothing more (`idempotent`), or it all again (`once`, unless said). `timeout`
    is in seconds. ConfigError when the function does not say what it takes.
    """

    def mark(function: F) -> F:
        made = from_function(
            function, namespace, effect=effect, name=name, timeout=timeout, approval=approval
        )
        setattr(function, MARK, made)
        return function

    return mark


def from_function(
    function: Function,
    namespace: str,
    *,
    effect: Effect = "once",
    name: str | None = None,
    timeout: float | None = None,
    approval: bool = False,
) -> Operation:
    """The operation that a function is; the function itself is left unmarked."""
    parameters = Parameters(function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"{parameters.title} is a generator: streaming operations are not supported yet")
    documented = docstring.read(function)
    return Operation(
        namespace=namespace,
        name=name or parameters.title.rpartition(".")[2],
        description=documented.description,
        input_schema=parameters.schema(documented.parameters),
        output_schema=of_type(parameters.hints["return"]) if "return" in parameters.hints else None,
        effect=effect,
        timeout=timeout,
        approval=approval,
        parse=parameters.parse,
        run=runner(function, parameters.contexts),
    )


def runner(function: Function, contexts: tuple[str, ...]) -> Run:
    """How the function is run: on the event loop when it is async, else in the hub's threads."""

    async def run_async(arguments: dict[str, Any], context: Context) -> Any:
        return await function(**arguments, **dict.fromkeys(contexts, context))

    async def run_sync(arguments: dict[str, Any], context: Context) -> Any:
        return await context.offload(
            functools.partial(function, **arguments, **dict.fromkeys(contexts, context))
        )

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return run_async if is_async else run_sync


def operation_of(thing: object) -> Operation | None:
    """The operation that a function was made into, if it was."""
    found = getattr(thing, MARK, None)
    return found if isinstance(found, Operation) else None


def find_operations(module: ModuleType) -> Iterator[Operation]:
    """The operations that a module defines, or names in its `__all__`; in the module's order."""
    public = getattr(module, "__all__", ())
    for name, value in vars(module).items():
        found = value if isinstance(value, Operation) else operation_of(value)
        own = isinstance(value, Operation) or getattr(value, "__module__", None) == module.__name__
        if found is not None and (own or name in public):
            yield found
