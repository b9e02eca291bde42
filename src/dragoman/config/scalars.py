"""Scalars: what a single word of YAML means, and the environment's variables inside a text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from dragoman.config.faults import clean

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_LOADER = yaml.SafeLoader("")
_CORE = "tag:yaml.org,2002:"
_TEXTS = ("str", "value", "timestamp", "merge", "yaml")


_SPAN = re.compile(r"(\d{1,9}(?:\.\d+)?)\s*(ms|s|min|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class Unusable(Exception):
    """A scalar that means nothing here; the message says why, without its value."""


def read_scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar: text, a number, true or false, or None.

    Dates stay text, as do `yes`, `no`, `on` and `off`, and numbers with a colon. That is what people mean by
    them here (`version: 2023-06-01`, `thinking: off`), and what YAML itself says since 1.2.
    """
    text = str(node.value)
    match node.tag.removeprefix(_CORE):
        case "null":
            return None
        case "bool":
            return text.lower() == "true" if text.lower() in ("true", "false") else text
        case "int" | "float":
            return text if ":" in text else _number(node)
        case tag if tag in _TEXTS:
            return text
        case _:
            raise Unusable(f"the tag {clean(node.tag.removeprefix(_CORE))!r} means nothing here")


def _number(node: yaml.ScalarNode) -> int | float:
    try:
        value = _LOADER.construct_object(node)
    except (ValueError, OverflowError, yaml.YAMLError):
        raise Unusable("this is no number that can be read") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise Unusable("infinity is not counted with here; null is no limit, where there may be none")
    return value  # type: ignore[no-any-return]  # of an int or float tag


def read_text(text: str) -> Any:
    """The value of a scalar that is written as this text."""
    tag = _LOADER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # in its stubs
    return read_scalar(yaml.ScalarNode(tag, text))


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """The text with `${NAME}` and `${NAME:-default}` replaced; `$${` stands for `${`. Unusable says why."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if found[0] == "$${":
            return "${"
        if name is None:
            raise Unusable("after '${' comes the name of a variable and '}'; '$${' is a '${' that stays")
        held = environ.get(name)
        if default is not None:
            return held or default
        if held is None:
            raise Unusable(
                f"the environment variable {name} is not set; ${{{name}:-default}} would do without,"
                " and a key is better named in api_key_env"
            )
        return held

    return _VARIABLE.sub(value, text)


def read_span(text: str) -> float:
    """The seconds in a span of time as people write it: `90s`, `2min`, `1.5h`."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise Unusable("is no span of time; one reads like 90s, 2min or 1.5h")
    return float(found[1]) * _UNITS[found[2]]
