"""The tool builder: operations assembled by hand, without type hints. Source: seed 004, §1.5."""

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
    """Optional fields of the operation; see `Operation`."""

    effect: Effect
    timeout: float | None
    approval: bool
    retries: int
    gate: CallLimiter | None


class ParameterOptions(TypedDict, total=False):
    """Options of a parameter besides its name and type."""

    required: bool
    enum: Sequence[Any]
    default: Any


class ToolBuilder:
    """Builds an operation. Each method returns a new builder."""

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
        """Add a parameter. `kind` is a JSON type, several of them, or a whole JSON Schema.

        It is required unless it has a default or `required=False`. Raises ConfigError if it is invalid.
        """
        if not name or name in self._schema_parts["properties"]:
            problem = f"has two parameters {name!r}" if name else "has a parameter without a name"
            raise ConfigError(f"the tool {self._name!r} {problem}")
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
        """Set the result: a JSON type, several, or a whole JSON Schema."""
        schema = type_schema(kind, where=f"the result of the tool {self._name!r}")
        return self._copy_with(output={**schema, **({"description": description} if description else {})})

    def build(self, function: Callable[..., Any], **settings: Unpack[OperationSettings]) -> Operation:
        """Return the operation that runs this function, sync or async.

        The function takes the arguments by name, or all as one dict, if it has a single parameter that is
        not the name of an argument. A parameter of type Context gets the context. Raises ConfigError if the
        parameters do not fit.
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
    """Start building an operation.

    `tool("add", "Add two numbers").param("a", "number").build(function)`.
    """
    return ToolBuilder(name, description, namespace=namespace)


def type_schema(kind: TypeSpec, *, where: str) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
    if isinstance(kind, Mapping):
        return dict(kind)
    kinds = [kind] if isinstance(kind, str) else list(kind)
    invalid = [name for name in kinds if name not in JSON_TYPES]
    if invalid or not kinds:
        problem = f"{invalid[0]!r} is not a JSON type" if invalid else "it has no type"
        raise ConfigError(f"{where}: {problem}", hint=f"Use {', '.join(JSON_TYPES)}, or a JSON Schema.")
    return {"type": kinds[0] if len(kinds) == 1 else kinds}


def validate_enum(enum: Sequence[Any], name: str) -> list[Any]:
    if isinstance(enum, str) or not enum:
        raise ConfigError(f"the enum of {name!r} must be a list of values, got {enum!r}")
    return list(enum)


def make_runner(function: Callable[..., Any], schema: Mapping[str, Any], *, title: str) -> OperationFunction:
    """Return a function that runs `function`: on the event loop if it is async, else in a thread."""
    bind = make_binder(function, schema, title=title)
    defaults = {
        name: result["default"] for name, result in schema["properties"].items() if "default" in result
    }
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    async def run(arguments: Mapping[str, Any], context: Context) -> Any:
        call = bind({**defaults, **arguments}, context)
        result = call() if is_async else await context.offload(call)
        return await result if isinstance(result, Awaitable) else result

    return run


ArgumentBinder = Callable[[dict[str, Any], Context], Callable[[], Any]]


def make_binder(function: Callable[..., Any], schema: Mapping[str, Any], *, title: str) -> ArgumentBinder:
    """Return a function that binds the arguments of a call to `function`. Raises ConfigError."""
    if not callable(function):
        raise ConfigError(f"the tool {title!r} is built from a function, got {function!r:.80}")
    hints = resolve_type_hints(function, title)
    parameters = list(inspect.signature(function).parameters.values())
    contexts = [parameter.name for parameter in parameters if is_context_hint(hints.get(parameter.name))]
    parameters = [parameter for parameter in parameters if parameter.name not in contexts]
    if takes_dict(parameters, tuple(schema["properties"])):
        return lambda arguments, context: lambda: function(arguments, **dict.fromkeys(contexts, context))
    check_parameters(parameters, schema, title=title)
    return lambda arguments, context: lambda: function(**arguments, **dict.fromkeys(contexts, context))


def takes_dict(parameters: Sequence[inspect.Parameter], names: tuple[str, ...]) -> bool:
    """Return whether the function has a single parameter for all arguments."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in positional and parameter.default is parameter.empty
    ]
    return len(required) == 1 == len(parameters) and required[0].name not in names


def check_parameters(
    parameters: Sequence[inspect.Parameter], schema: Mapping[str, Any], *, title: str
) -> None:
    """Raise ConfigError unless the function accepts these arguments by name."""
    mismatch = find_mismatch({parameter.name: parameter for parameter in parameters}, schema)
    if mismatch is not None:
        hint = "Give it the tool's parameters by name, or a single parameter for a dict of all."
        raise ConfigError(f"the function of the tool {title!r} {mismatch}", hint=hint)


def find_mismatch(parameters: Mapping[str, inspect.Parameter], schema: Mapping[str, Any]) -> str | None:
    """Describe why a function's parameters do not fit the schema; None if they do."""
    properties, required = schema["properties"], schema.get("required", ())
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY and (
            name in properties or parameter.default is parameter.empty
        ):
            return f"cannot take {name!r} by name"
        if parameter.default is parameter.empty and name not in properties:
            return f"requires {name!r}, which is not a parameter of the tool"
        if (
            parameter.default is parameter.empty
            and name not in required
            and "default" not in properties[name]
        ):
            return f"has no default for {name!r}, which is optional"
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    missing = next((name for name in properties if name not in parameters), None)
    return None if missing is None else f"does not take {missing!r}"
