"""Parameters of a Python function: their JSON Schema, and the validation of input by their type hints."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import pydantic
import typing_extensions
from pydantic.errors import PydanticUserError

from dragoman.errors import ConfigError
from dragoman.operations.arguments.validation import (
    InputParser,
    invalid_input,
    make_parser,
    pydantic_problems,
    strip_titles,
)
from dragoman.operations.context import Context

log = logging.getLogger(__name__)

UNSUPPORTED_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any name",
}


class FunctionParameters:
    """The parameters of a function: `names` come from the caller, `context_names` get the context.

    Raises ConfigError for a function that cannot be an operation.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function_name = getattr(function, "__qualname__", repr(function))
        self.type_hints = resolve_type_hints(function, self.function_name)
        parameters = inspect.signature(function).parameters.values()
        self.context_names = tuple(
            parameter.name for parameter in parameters if is_context_hint(self.type_hints.get(parameter.name))
        )
        self.names = tuple(
            parameter.name for parameter in parameters if parameter.name not in self.context_names
        )
        fields = {
            f"p{index}": self._field(parameter)
            for index, parameter in enumerate(parameters)
            if parameter.name in self.names
        }
        try:
            # Fields are numbered, with parameter names as aliases: pydantic rejects `json` and `_x`.
            self._model = pydantic.create_model("Input", __config__={"extra": "forbid"}, **fields)  # type: ignore[call-overload]
            self._schema = strip_titles(self._model.model_json_schema())
        except (PydanticUserError, TypeError) as error:
            raise ConfigError(f"{self.function_name}: {str(error).splitlines()[0]}") from error
        self._aliases = dict(zip(fields, self.names, strict=True))

    def schema(self, descriptions: Mapping[str, str]) -> dict[str, Any]:
        """Return the JSON Schema; `descriptions` are for parameters whose hint has none."""
        properties = {
            name: {"description": descriptions[name]} | rules if name in descriptions else rules
            for name, rules in self._schema["properties"].items()
        }
        return {"type": "object", **self._schema, "properties": properties}

    def parse(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments for an input. Raises InvalidInput, with every wrong field.

        pydantic converts what the schema does not accept: `true` to 1, `"on"` to True, `"NaN"` to a number.
        The input is checked against the schema as well, so that such values are refused, or repaired with a
        note.
        """
        try:
            values = self._model.model_validate(input).__dict__
        except pydantic.ValidationError as error:
            raise invalid_input(pydantic_problems(error, input, schema=self._schema)) from None
        try:
            self._check_schema(input)
        except ValueError:  # a caller in Python may pass what JSON does not have, such as a date
            log.debug("%s has been called with values that JSON does not have", self.function_name)
        return {name: values[field] for field, name in self._aliases.items()}

    @cached_property
    def _check_schema(self) -> InputParser:
        try:
            return make_parser(self._schema)
        except ConfigError:  # a hint's own JSON Schema may be one that only its library understands
            log.warning(
                "The JSON Schema of %s is invalid: its input is not checked by it", self.function_name
            )
            return dict

    def _field(self, parameter: inspect.Parameter) -> tuple[Any, Any]:
        where = f"{self.function_name}: parameter {parameter.name!r}"
        if parameter.kind in UNSUPPORTED_KINDS:
            raise ConfigError(
                f"{where} {UNSUPPORTED_KINDS[parameter.kind]}; operations take named parameters only"
            )
        if parameter.name not in self.type_hints:
            raise ConfigError(f"{where} has no type hint; its JSON Schema is made from that, so add one")
        default = ... if parameter.default is parameter.empty else parameter.default
        return Annotated[self.type_hints[parameter.name], pydantic.Field(alias=parameter.name)], default


def resolve_type_hints(function: Callable[..., Any], function_name: str) -> dict[str, Any]:
    """Return the function's type hints, resolved. Raises ConfigError."""
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        hints = get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{function_name}: a type hint cannot be resolved ("
            f"{error}); define the types of hints at module level"
        ) from None
    return (
        {name: to_pydantic_hint(hint) for name, hint in hints.items()}
        if sys.version_info < (3, 12)
        else hints
    )


def is_context_hint(hint: Any) -> bool:
    """Return whether a hint is Context or an optional Context."""
    return hint is Context or (get_origin(hint) in (Union, UnionType) and Context in get_args(hint))


def to_pydantic_hint(hint: Any, *, outer_types: tuple[Any, ...] = ()) -> Any:
    """Return the hint with TypedDicts that pydantic can read before Python 3.12."""
    if typing_extensions.is_typeddict(hint):
        return dict[str, Any] if hint in outer_types else to_pydantic_typed_dict(hint, (*outer_types, hint))
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(to_pydantic_hint(args[0], outer_types=outer_types), *args[1:])]
    if origin in (Union, UnionType):
        return Union[tuple(to_pydantic_hint(arg, outer_types=outer_types) for arg in args)]  # noqa: UP007 - built at run time
    if origin in (Required, NotRequired):
        return origin[to_pydantic_hint(args[0], outer_types=outer_types)]
    if origin in (list, tuple, dict):
        return origin[tuple(to_pydantic_hint(arg, outer_types=outer_types) for arg in args)]
    return hint


def to_pydantic_typed_dict(hint: Any, outer_types: tuple[Any, ...]) -> Any:
    """Rebuild a TypedDict with typing_extensions."""
    keys: dict[str, Any] = {}
    for key, hint_of_key in get_type_hints(hint, include_extras=True).items():
        value = to_pydantic_hint(hint_of_key, outer_types=outer_types)
        is_qualified = get_origin(value) in (Required, NotRequired)
        keys[key] = value if is_qualified or key in hint.__required_keys__ else NotRequired[value]
    rebuilt = typing_extensions.TypedDict(hint.__name__, keys)  # type: ignore[misc]  # a name only known now
    rebuilt.__doc__ = hint.__doc__
    return rebuilt
