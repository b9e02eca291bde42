"""The tool builder: an operation put together by hand. Source: seed 004, §1.5."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from dragoman.errors import ConfigError
from dragoman.operations.arguments.parameters import is_context, read_hints
from dragoman.operations.context import Context
from dragoman.operations.gate import Gate
from dragoman.operations.operation import Effect, Operation, Run

TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
Kind = str | Sequence[str] | Mapping[str, Any]
MISSING = object()


class Settings(TypedDict, total=False):
    """What may be said of an operation besides; see `Operation`."""

    effect: Effect
    timeout: float | None
    approval: bool
    retries: int
    gate: Gate | None


class Wishes(TypedDict, total=False):
    """What may be said of a parameter beside its name and its kind."""

    required: bool
    enum: Sequence[Any]
    default: Any


class ToolBuilder:
    """An operation in the making. Each method gives a new builder with more in it."""

    def __init__(
        self,
        name: str,
        description: str,
        *,
        namespace: str = "tools",
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._description = description
        self._namespace = namespace
        self._parts: dict[str, Any] = {"properties": {}, "required": [], "output": None, **(parts or {})}

    def param(
        self, name: str, kind: Kind = "string", *, description: str = "", **wishes: Unpack[Wishes]
    ) -> ToolBuilder:
        """A parameter. `kind` is a JSON type, several of them, or a whole JSON Schema.

        It is required unless it has a default or `required=False`. ConfigError for what cannot be.
        """
        if not name or name in self._parts["properties"]:
            said = f"has two parameters {name!r}" if name else "has a parameter without a name"
            raise ConfigError(f"the tool {self._name!r} {said}")
        schema = schema_of(kind, where=f"parameter {name!r} of the tool {self._name!r}")
        default = wishes.get("default", MISSING)
        extra: dict[str, Any] = {"description": description} if description else {}
        if "enum" in wishes:
            extra["enum"] = choices(wishes["enum"], name)
        if default is not MISSING:
            extra["default"] = default
        required = wishes.get("required", default is MISSING)
        return self._with(
            properties={**self._parts["properties"], name: {**schema, **extra}},
            required=[*self._parts["required"], *([name] if required else [])],
        )

    def returns(self, kind: Kind, *, description: str = "") -> ToolBuilder:
        """What it gives: a JSON type, several, or a whole JSON Schema."""
        schema = schema_of(kind, where=f"the result of the tool {self._name!r}")
        return self._with(output={**schema, **({"description": description} if description else {})})

    def build(self, function: Callable[..., Any], **settings: Unpack[Settings]) -> Operation:
        """The operation that this function runs, sync or async.

        It takes the arguments by their names, or, if it has one parameter that is no argument's name, all of
        them as a dict; and a Context where a parameter has that type. ConfigError when they do not fit.
        """
        schema: dict[str, Any] = {
            "type": "object",
            "properties": self._parts["properties"],
            "additionalProperties": False,
        }
        if self._parts["required"]:
            schema["required"] = self._parts["required"]
        return Operation.from_schema(
            runner(function, schema, title=self._name),
            schema,
            namespace=self._namespace,
            name=self._name,
            description=self._description,
            output_schema=self._parts["output"],
            **settings,
        )

    def _with(self, **parts: Any) -> ToolBuilder:
        return ToolBuilder(
            self._name, self._description, namespace=self._namespace, parts={**self._parts, **parts}
        )


def tool(name: str, description: str = "", *, namespace: str = "tools") -> ToolBuilder:
    """Begin an operation: `tool("add", "Add two numbers").param("a", "number").build(function)`."""
    return ToolBuilder(name, description, namespace=namespace)


def schema_of(kind: Kind, *, where: str) -> dict[str, Any]:
    """The JSON Schema of a kind."""
    if isinstance(kind, Mapping):
        return dict(kind)
    kinds = [kind] if isinstance(kind, str) else list(kind)
    wrong = [each for each in kinds if each not in TYPES]
    if wrong or not kinds:
        said = f"{wrong[0]!r} is no JSON type" if wrong else "it has no type"
        raise ConfigError(f"{where}: {said}", hint=f"there are {', '.join(TYPES)}, or give a JSON Schema")
    return {"type": kinds[0] if len(kinds) == 1 else kinds}


def choices(enum: Sequence[Any], name: str) -> list[Any]:
    if isinstance(enum, str) or not enum:
        raise ConfigError(f"the enum of {name!r} must be a list of values, got {enum!r}")
    return list(enum)


def runner(function: Callable[..., Any], schema: Mapping[str, Any], *, title: str) -> Run:
    """How the function is run: on the event loop when it is async, else in the hub's threads."""
    bind = binder(function, schema, title=title)
    defaults = {name: said["default"] for name, said in schema["properties"].items() if "default" in said}
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    async def run(arguments: Mapping[str, Any], context: Context) -> Any:
        call = bind({**defaults, **arguments}, context)
        said = call() if is_async else await context.offload(call)
        return await said if isinstance(said, Awaitable) else said

    return run


Bind = Callable[[dict[str, Any], Context], Callable[[], Any]]


def binder(function: Callable[..., Any], schema: Mapping[str, Any], *, title: str) -> Bind:
    """How the arguments are handed to the function."""
    if not callable(function):
        raise ConfigError(f"the tool {title!r} is built from a function, got {function!r:.80}")
    hints = read_hints(function, title)
    taken = list(inspect.signature(function).parameters.values())
    contexts = [each.name for each in taken if is_context(hints.get(each.name))]
    taken = [each for each in taken if each.name not in contexts]
    if takes_dict(taken, tuple(schema["properties"])):
        return lambda arguments, context: lambda: function(arguments, **dict.fromkeys(contexts, context))
    check_fit(taken, schema, title=title)
    return lambda arguments, context: lambda: function(**arguments, **dict.fromkeys(contexts, context))


def takes_dict(taken: Sequence[inspect.Parameter], names: tuple[str, ...]) -> bool:
    """Whether the function has one parameter, for all arguments together."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in taken if each.kind in plain and each.default is each.empty]
    return len(needed) == 1 == len(taken) and needed[0].name not in names


def check_fit(taken: Sequence[inspect.Parameter], schema: Mapping[str, Any], *, title: str) -> None:
    """ConfigError unless the function can be called with these arguments by name."""
    fault = misfit({each.name: each for each in taken}, schema)
    if fault is not None:
        hint = "its parameters are those of the tool, by name; or it has one parameter, for a dict of all"
        raise ConfigError(f"the function of the tool {title!r} {fault}", hint=hint)


def misfit(taken: Mapping[str, inspect.Parameter], schema: Mapping[str, Any]) -> str | None:
    """What is wrong with a function's parameters; None when nothing is."""
    given, always = schema["properties"], schema.get("required", ())
    for name, each in taken.items():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        if each.kind is each.POSITIONAL_ONLY and (name in given or each.default is each.empty):
            return f"cannot take {name!r} by its name"
        if each.default is each.empty and name not in given:
            return f"wants {name!r}, which is no parameter of the tool"
        if each.default is each.empty and name not in always and "default" not in given[name]:
            return f"has no default for {name!r}, which may be left out"
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return None
    missing = next((name for name in given if name not in taken), None)
    return None if missing is None else f"does not take {missing!r}"
