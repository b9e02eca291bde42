"""Summaries: an operation in one line and one signature, short enough to show many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.operations.cleaning import clean
from dragoman.operations.operation import Operation

SUMMARY_LIMIT = 160
SIGNATURE_LIMIT = 200
NAME_LIMIT = 40
OPTIONS = 4  # values of an enum that a signature shows
BRANCHES = 3


def summarise(operation: Operation) -> str:
    """The first paragraph of the description, on one line, at most 160 characters."""
    paragraph = operation.description.strip().split("\n\n", 1)[0]
    return clean(" ".join(paragraph.split()), SUMMARY_LIMIT)


def signature(schema: Mapping[str, Any]) -> str:
    """A JSON Schema of an input as `(city: string, unit?: "c"|"f")`; what is required stands first."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "(…)"
    required = schema.get("required") or ()
    said: list[str] = []
    for name in sorted(properties, key=lambda name: name not in required):
        mark = "" if name in required else "?"
        said.append(f"{clean(name, NAME_LIMIT)}{mark}: {kind(properties[name], optional=bool(mark))}")
        if sum(len(each) + 2 for each in said) > SIGNATURE_LIMIT:
            said[-1] = "…"
            break
    return f"({', '.join(said)})"


def kind(rules: Any, *, optional: bool = False) -> str:
    """What a schema lets through, in a word or two."""
    if not isinstance(rules, Mapping):
        return "any"
    if "const" in rules or "enum" in rules:
        return options(rules.get("enum") or [rules.get("const")])
    if isinstance(reference := rules.get("$ref"), str):
        return clean(reference.rpartition("/")[2], NAME_LIMIT)
    branches = rules.get("anyOf") or rules.get("oneOf") or rules.get("type")
    if isinstance(branches, str):
        return f"{kind(rules.get('items'))}[]" if branches == "array" else branches
    if not isinstance(branches, Sequence):
        return "any"
    kinds = [branch if isinstance(branch, str) else kind(branch) for branch in branches]
    shown = [each for each in dict.fromkeys(kinds) if not (optional and each == "null")]
    return "|".join(shown[:BRANCHES]) + ("|…" if len(shown) > BRANCHES else "")


def options(values: Sequence[Any]) -> str:
    shown = [clean(msgspec.json.encode(value).decode(), NAME_LIMIT) for value in values[:OPTIONS]]
    return "|".join(shown) + ("|…" if len(values) > OPTIONS else "")
