"""Configurations of the types of all fields, with values that fit, and some that do not fit at all."""

from __future__ import annotations

import random
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from dragoman.config import Config, parse_config
from dragoman.errors import ConfigError
from tests.effort import rounds
from tests.odd_values import ODD_VALUES

CONFIGURATIONS = rounds(quick=100, thorough=5_000)
SEED = 20261126
MAX_DEPTH = 7

ODD: tuple[Any, ...] = (
    *ODD_VALUES,
    *(float("nan"), float("inf"), "${X}", "$X", "1h", "10mb", {1: 2}, {None: 1}, {"\ud800": {}}, {"A B": {}}),
)
SIMPLE: dict[Any, tuple[Any, ...]] = {
    str: ("a", "up/m", "http://127.0.0.1:1", "time.now", "*", "30d", "ENV_X", "./x"),
    bool: (True, False),
    int: (0, 1, 5, 100, -1),
    float: (0, 0.5, 1, 30, -1),
}
NAMES = ("a", "up", "default", "time.*", "x y", "m/n")


class ConfigGarbage:
    """Makes values of types. `share` of them do not fit."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.share = 0.0

    def value(self, kind: Any, depth: int = 0) -> Any:
        """Return a value of a type, except where it is not."""
        if depth > MAX_DEPTH or self._random.random() < self.share:
            return self._random.choice(ODD)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.value(arguments[0], depth)
        if origin in (Union, types.UnionType, Literal):
            member = self._random.choice(arguments)
            return member if origin is Literal else self.value(member, depth + 1)
        if origin in (list, tuple):
            return [self.value(arguments[0], depth + 1) for _ in range(self._random.randrange(3))]
        if origin is dict:
            names = self._random.sample(NAMES, self._random.randrange(3))
            return {name: self.value(arguments[1], depth + 1) for name in names}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._section(kind, depth)
        return self._random.choice(SIMPLE.get(kind, ODD))

    def _section(self, kind: type[msgspec.Struct], depth: int) -> Mapping[str, Any]:
        hints = get_type_hints(kind, include_extras=True)
        chance = 0.35 if depth else 0.2
        return {
            field.encode_name: self.value(hints[field.name], depth + 1)
            for field in msgspec.structs.fields(kind)
            if self._random.random() < (0.9 if field.required else chance)
        }


def test_values_of_all_fields_are_a_configuration_or_an_error_of_it() -> None:
    garbage = ConfigGarbage(SEED)
    for number in range(CONFIGURATIONS):
        garbage.share = (0.0, 0.01, 0.05)[number % 3]
        raw = garbage.value(Config)
        try:
            parse_config(raw)
        except ConfigError as error:
            error.message.encode()  # it can be printed
        except Exception as error:
            raise AssertionError(f"configuration {number}: {raw!r}") from error


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"agents": {"a": {"instructions": "\ud800"}}}, "agents.a.instructions: has half of a character"),
        ({"providers": {"up": {None: 1}}}, "providers.up: expected text as a name, got nothing"),
        ({"events": {"schemas": {"A B": {}}}}, "events.schemas: "),
        ({"limits": {"drain": 10**400}}, "limits.drain: "),
    ],
)
def test_an_odd_value_is_an_error_that_says_where(raw: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert message in caught.value.message
