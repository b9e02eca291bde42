"""The `@operation` decorator: plain sync and async Python functions as operations."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import aclosing, closing
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypedDict, TypeVar, Unpack, get_args, overload

from dragoman.operations.arguments import docstring
from dragoman.operations.arguments.parameters import FunctionParameters
from dragoman.operations.arguments.validation import result_schema
from dragoman.operations.call_limiter import CallLimiter, Rate
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect, Operation, OperationFunction

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
OPERATION_ATTRIBUTE = "__dragoman_operation__"
DEFAULT_NAMESPACE = "tools"


class DecoratorOptions(TypedDict, total=False):
    """Options of `@operation`.

    `approval`: whether each call needs approval; `concurrency`: how many calls run at a time; `rate`: such as
    `60/minute`; `retries`: of transient failures; `identity_aware`: whether the result depends on the caller
    (default: whether the function takes a Context).
    """

    approval: bool
    concurrency: int | None
    rate: str | None
    retries: int
    identity_aware: bool


@overload
def operation(function: F, /) -> F: ...


@overload
def operation(
    namespace: str = DEFAULT_NAMESPACE,
    *,
    effect: Effect = "once",
    name: str | None = None,
    timeout: float | None = None,
    **details: Unpack[DecoratorOptions],
) -> Callable[[F], F]: ...


def operation(
    namespace: str | Function = DEFAULT_NAMESPACE,
    *,
    effect: Effect = "once",
    name: str | None = None,
    timeout: float | None = None,
    **details: Unpack[DecoratorOptions],
) -> Function:
    """Make a function callable through the hub. It can still be called as an ordinary function.

    `@operation` without parentheses uses the defaults; the default namespace is `tools`. Name, description
    and JSON Schemas come from the function's name, docstring and type hints. A parameter of type Context gets
    the call's context and is not in the schema. `effect` is what a call changes: nothing (`read`), nothing
    more when it is repeated (`idempotent`), or something each time (`once`). `timeout` is in seconds. Each
    value of a generator is progress, and the last one is the result. Raises ConfigError if the function's
    parameters cannot be described.
    """

    def mark(function: F) -> F:
        operation_of_function = from_function(
            function, chosen_namespace, effect=effect, name=name, timeout=timeout, **details
        )
        setattr(function, OPERATION_ATTRIBUTE, operation_of_function)
        return function

    if isinstance(namespace, str):
        chosen_namespace = namespace
        return mark
    chosen_namespace = DEFAULT_NAMESPACE
    return mark(namespace)


def from_function(
    function: Function,
    namespace: str,
    *,
    effect: Effect = "once",
    name: str | None = None,
    timeout: float | None = None,
    **details: Unpack[DecoratorOptions],
) -> Operation:
    """Return the operation for a function; the function itself is not marked."""
    parameters, output_schema = describe_function(function)
    documented = docstring.parse_docstring(function)
    return Operation(
        namespace=namespace,
        name=name or parameters.function_name.rpartition(".")[2],
        description=documented.description,
        input_schema=parameters.schema(documented.parameters),
        output_schema=output_schema,
        effect=effect,
        timeout=timeout,
        approval=details.get("approval", False),
        retries=details.get("retries", 0),
        gate=make_call_limiter(details),
        identity_aware=details.get("identity_aware", bool(parameters.context_names)),
        parse=parameters.parse,
        run=make_runner(function, parameters.context_names),
    )


Description = tuple[FunctionParameters, dict[str, Any] | None]
MAX_DESCRIBED = 1_000
_COMPARABLE = frozenset({str, bytes, int, float, bool, type(None)})
_described: dict[Hashable, Description] = {}


def describe_function(function: Function) -> Description:
    """Return the parameters and the output schema of a function. Raises ConfigError.

    The description takes milliseconds, so it is cached, also for a function that is defined anew inside
    another one for each request. The function itself is not stored.
    """
    key = description_key(function)
    if key is not None and key in _described:
        return _described[key]
    parameters = FunctionParameters(function)
    description = (parameters, output_schema_of(function, parameters.type_hints))
    if key is not None:
        if len(_described) >= MAX_DESCRIBED:
            _described.clear()
        _described[key] = description
    return description


def description_key(function: Function) -> Hashable | None:
    """Return the cache key of a function's description; None if it cannot be cached.

    Hints are texts with names of the module, or objects. Equal defaults may be described differently, such as
    1 and True, so their types are part of the key; functions with defaults of other types are not cached.
    """
    any_function: object = function  # to the type checker a callable has no `__func__`
    plain = any_function.__func__ if isinstance(any_function, MethodType) else function
    if not isinstance(plain, FunctionType):
        return None
    defaults = (*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values())
    if any(type(default) not in _COMPARABLE for default in defaults):
        return None
    hints = tuple(plain.__annotations__.items())
    names = (plain.__module__, plain.__qualname__, plain is function)
    key = (plain.__code__, names, hints, defaults)
    try:
        hash(key)
    except TypeError:
        return None
    return key, tuple(map(type, defaults)), tuple(plain.__kwdefaults__ or ())


def make_call_limiter(details: DecoratorOptions) -> CallLimiter | None:
    """Return the limiter that the options ask for, if any."""
    concurrency, rate = details.get("concurrency"), details.get("rate")
    if concurrency is None and rate is None:
        return None
    return CallLimiter(concurrency=concurrency, rate=None if rate is None else Rate.parse(rate))


def output_schema_of(function: Function, hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON Schema of the result; for a generator that of its values."""
    hint = hints.get("return", inspect.Parameter.empty)
    if hint is inspect.Parameter.empty:
        return None
    if not is_generator(function):
        return result_schema(hint)
    values = get_args(hint)
    return result_schema(values[0]) if values else None


def is_generator(function: Function) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def make_runner(function: Function, contexts: tuple[str, ...]) -> OperationFunction:
    """Return how the function runs: on the event loop if it is async, else in a thread."""

    def bind(arguments: dict[str, Any], context: Context) -> Callable[[], Any]:
        return functools.partial(function, **arguments, **dict.fromkeys(contexts, context))

    async def run_async(arguments: dict[str, Any], context: Context) -> Any:
        return await bind(arguments, context)()

    async def run_sync(arguments: dict[str, Any], context: Context) -> Any:
        result = await context.offload(bind(arguments, context))
        if inspect.iscoroutine(result):  # of an async function inside a decorator
            return await result
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            return await consume_generator(lambda: result, context)
        return result

    async def run_generator(arguments: dict[str, Any], context: Context) -> Any:
        return await consume_generator(bind(arguments, context), context)

    if is_generator(function):
        return run_generator
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return run_async if is_async else run_sync


async def consume_generator(start: Callable[[], Any], context: Context) -> Any:
    """Return the last value of a generator; report each as progress."""
    values = start()
    last = None
    if inspect.isasyncgen(values):
        async with aclosing(values):
            async for last in values:
                context.progress(last)
        return last
    loop, is_stopped = asyncio.get_running_loop(), threading.Event()

    def iterate() -> Any:
        last = None
        with closing(values):
            for last in values:
                if is_stopped.is_set():
                    break
                loop.call_soon_threadsafe(context.progress, last)
        return last

    try:
        return await context.offload(iterate)
    finally:
        is_stopped.set()  # after a cancellation the thread stops at the generator's next value


def marked_operation(function: object) -> Operation | None:
    """Return the operation that a function was marked with, if any."""
    value = getattr(function, OPERATION_ATTRIBUTE, None)
    return value if isinstance(value, Operation) else None


def find_operations(module: ModuleType) -> Iterator[Operation]:
    """Yield the operations that a module defines, or names in its `__all__`, in its order."""
    public = getattr(module, "__all__", ())
    for name, value in vars(module).items():
        candidate = value if isinstance(value, Operation) else marked_operation(value)
        is_own = isinstance(value, Operation) or getattr(value, "__module__", None) == module.__name__
        if candidate is not None and (is_own or name in public):
            yield candidate
