"""The tool builder: an operation put together by hand. Source: seed 004, §1.5."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from dragoman.errors import ConfigError
from dragoman.operations.arguments.parameters import is_context_hint, resolve_type_hints
from dragoman.operations.call_limiter import CallLimiter
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect, Operation, OperationFunction

JSON_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
TypeSpec = str | Sequence[str] | Mapping[str, Any]
MISSING = object()


class OperationSettings(TypedDict, total=False):
    """What may be said of an operation besides; see `Operation`."""

    effect: Effect
    timeout: float | None
    approval: bool
    retries: int
    gate: CallLimiter | None


class ParameterOptions(TypedDict, total=False):
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
        schema_parts: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._description = description
        self._namespace = namespace
        self._schema_parts: dict[str, Any] = {
            "properties": {},
            "required": [],
            "output": None,
            **(schema_parts or {}),
        }

    def param(
        self,
        name: str,
        kind: TypeSpec = "string",
        *,
        description: str = "",
        **options: Unpack[ParameterOptions],
    ) -> ToolBuilder:
        """A parameter. `kind` is a JSON type, several of them, or a whole JSON Schema.

        It is required unless it has a default or `required=False`. ConfigError for what cannot be.
        """
        if not name or name in self._schema_parts["properties"]:
            said = f"has two parameters {name!r}" if name else "has a parameter without a name"
            raise ConfigError(f"the tool {self._name!r} {said}")
        schema = type_schema(kind, where=f"parameter {name!r} of the tool {self._name!r}")
        default = options.get("default", MISSING)
        extra: dict[str, Any] = {"description": description} if description else {}
        if "enum" in options:
            extra["enum"] = validate_enum(options["enum"], name)
        if default is not MISSING:
            extra["default"] = default
        required = options.get("required", default is MISSING)
        return self._copy_with(
            properties={**self._schema_parts["properties"], name: {**schema, **extra}},
            required=[*self._schema_parts["required"], *([name] if required else [])],
        )

    def returns(self, kind: TypeSpec, *, description: str = "") -> ToolBuilder:
        """What it gives: a JSON type, several, or a whole JSON Schema."""
        schema = type_schema(kind, where=f"the result of the tool {self._name!r}")
        return self._copy_with(output={**schema, **({"description": description} if description else {})})

    def build(self, function: Callable[..., Any], **settings: Unpack[OperationSettings]) -> Operation:
        """The operation that this function runs, sync or async.

        It takes the arguments by their names, or, if it has one parameter that is no argument's name, all of
        them as a dict; and a Context where a parameter has that type. ConfigError when they do not fit.
        """
        schema: dict[str, Any] = {
            "type": "object",
            "properties": self._schema_parts["properties"],
            "additionalProperties": False,
        }
        if self._schema_parts["required"]:
            schema["required"] = self._schema_parts["required"]
        return Operation.from_schema(
            make_runner(function, schema, title=self._name),
            schema,
            namespace=self._namespace,
            name=self._name,
            description=self._description,
            output_schema=self._schema_parts["output"],
            **settings,
        )

    def _copy_with(self, **parts: Any) -> ToolBuilder:
        return ToolBuilder(
            self._name,
            self._description,
            namespace=self._namespace,
            schema_parts={**self._schema_parts, **parts},
        )


def tool(name: str, description: str = "", *, namespace: str = "tools") -> ToolBuilder:
    """Begin an operation: `tool("add", "Add two numbers").param("a", "number").build(function)`."""
    return ToolBuilder(name, description, namespace=namespace)


def type_schema(kind: TypeSpec, *, where: str) -> dict[str, Any]:
    """The JSON Schema of a kind."""
    if isinstance(kind, Mapping):
        return dict(kind)
    kinds = [kind] if isinstance(kind, str) else list(kind)
    wrong = [each for each in kinds if each not in JSON_TYPES]
    if wrong or not kinds:
        said = f"{wrong[0]!r} is no JSON type" if wrong else "it has no type"
        raise ConfigError(
            f"{where}: {said}", hint=f"there are {', '.join(JSON_TYPES)}, or give a JSON Schema"
        )
    return {"type": kinds[0] if len(kinds) == 1 else kinds}


def validate_enum(enum: Sequence[Any], name: str) -> list[Any]:
    if isinstance(enum, str) or not enum:
        raise ConfigError(f"the enum of {name!r} must be a list of values, got {enum!r}")
    return list(enum)


def make_runner(function: Callable[..., Any], schema: Mapping[str, Any], *, title: str) -> OperationFunction:
    """How the function is run: on the event loop when it is async, else in the hub's threads."""
    bind = make_binder(function, schema, title=title)
    defaults = {name: said["default"] for name, said in schema["properties"].items() if "default" in said}
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    async def run(arguments: Mapping[str, Any], context: Context) -> Any:
        call = bind({**defaults, **arguments}, context)
        said = call() if is_async else await context.offload(call)
        return await said if isinstance(said, Awaitable) else said

    return run


ArgumentBinder = Callable[[dict[str, Any], Context], Callable[[], Any]]


def make_binder(function: Callable[..., Any], schema: Mapping[str, Any], *, title: str) -> ArgumentBinder:
    """How the arguments are handed to the function."""
    if not callable(function):
        raise ConfigError(f"the tool {title!r} is built from a function, got {function!r:.80}")
    hints = resolve_type_hints(function, title)
    taken = list(inspect.signature(function).parameters.values())
    contexts = [each.name for each in taken if is_context_hint(hints.get(each.name))]
    taken = [each for each in taken if each.name not in contexts]
    if takes_dict(taken, tuple(schema["properties"])):
        return lambda arguments, context: lambda: function(arguments, **dict.fromkeys(contexts, context))
    check_parameters(taken, schema, title=title)
    return lambda arguments, context: lambda: function(**arguments, **dict.fromkeys(contexts, context))


def takes_dict(parameters: Sequence[inspect.Parameter], names: tuple[str, ...]) -> bool:
    """Whether the function has one parameter, for all arguments together."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in plain and each.default is each.empty]
    return len(needed) == 1 == len(parameters) and needed[0].name not in names


def check_parameters(
    parameters: Sequence[inspect.Parameter], schema: Mapping[str, Any], *, title: str
) -> None:
    """ConfigError unless the function can be called with these arguments by name."""
    fault = find_mismatch({each.name: each for each in parameters}, schema)
    if fault is not None:
        hint = "its parameters are those of the tool, by name; or it has one parameter, for a dict of all"
        raise ConfigError(f"the function of the tool {title!r} {fault}", hint=hint)


def find_mismatch(parameters: Mapping[str, inspect.Parameter], schema: Mapping[str, Any]) -> str | None:
    """What is wrong with a function's parameters; None when nothing is."""
    given, always = schema["properties"], schema.get("required", ())
    for name, each in parameters.items():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        if each.kind is each.POSITIONAL_ONLY and (name in given or each.default is each.empty):
            return f"cannot take {name!r} by its name"
        if each.default is each.empty and name not in given:
            return f"wants {name!r}, which is no parameter of the tool"
        if each.default is each.empty and name not in always and "default" not in given[name]:
            return f"has no default for {name!r}, which may be left out"
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    missing = next((name for name in given if name not in parameters), None)
    return None if missing is None else f"does not take {missing!r}"
