"""Summaries: an operation as one line and one signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.operations.operation import Operation
from dragoman.operations.sanitize import sanitize_text

MAX_SUMMARY_LENGTH = 160
MAX_SIGNATURE_LENGTH = 200
MAX_NAME_LENGTH = 40
MAX_OPTIONS = 4  # values of an enum that a signature shows
MAX_BRANCHES = 3


def summarise(operation: Operation) -> str:
    """Return the description's first paragraph on one line, at most 160 characters."""
    paragraph = operation.description.strip().split("\n\n", 1)[0]
    return sanitize_text(" ".join(paragraph.split()), MAX_SUMMARY_LENGTH)


def signature(schema: Mapping[str, Any]) -> str:
    """Return an input schema as `(city: string, unit?: "c"|"f")`; required parameters first."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "(…)"
    required = schema.get("required") or ()
    parameters: list[str] = []
    for name in sorted(properties, key=lambda name: name not in required):
        mark = "" if name in required else "?"
        parameters.append(
            f"{sanitize_text(name, MAX_NAME_LENGTH)}{mark}: "
            f"{type_label(properties[name], optional=bool(mark))}"
        )
        if sum(len(parameter) + 2 for parameter in parameters) > MAX_SIGNATURE_LENGTH:
            parameters[-1] = "…"
            break
    return f"({', '.join(parameters)})"


def type_label(rules: Any, *, optional: bool = False) -> str:
    """Return what a schema accepts, in a word or two."""
    if not isinstance(rules, Mapping):
        return "any"
    if "const" in rules or "enum" in rules:
        return options_label(rules.get("enum") or [rules.get("const")])
    if isinstance(reference := rules.get("$ref"), str):
        return sanitize_text(reference.rpartition("/")[2], MAX_NAME_LENGTH)
    branches = rules.get("anyOf") or rules.get("oneOf") or rules.get("type")
    if isinstance(branches, str):
        return f"{type_label(rules.get('items'))}[]" if branches == "array" else branches
    if not isinstance(branches, Sequence):
        return "any"
    kinds = [branch if isinstance(branch, str) else type_label(branch) for branch in branches]
    shown = [each for each in dict.fromkeys(kinds) if not (optional and each == "null")]
    return "|".join(shown[:MAX_BRANCHES]) + ("|…" if len(shown) > MAX_BRANCHES else "")


def options_label(values: Sequence[Any]) -> str:
    shown = [
        sanitize_text(msgspec.json.encode(value).decode(), MAX_NAME_LENGTH) for value in values[:MAX_OPTIONS]
    ]
    return "|".join(shown) + ("|…" if len(values) > MAX_OPTIONS else "")
