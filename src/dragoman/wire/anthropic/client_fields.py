"""Fields of a request in Anthropic's manner: each read as what it must be, or refused by its path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dragoman.errors import BadRequest
from dragoman.messages import ProviderMetadata

_CAMEL_NAMES = {
    "cache_control": "cacheControl",
    "toolset_name": "toolsetName",
    "allowed_callers": "allowedCallers",
    "defer_loading": "deferLoading",
    "eager_input_streaming": "eagerInputStreaming",
    "input_examples": "inputExamples",
}


class RequestFields:
    """The fields of an object that stands at `path` in the body; the body itself stands at "".

    Every reader raises BadRequest, with the path of what is wrong. Null counts as missing.
    """

    __slots__ = ("path", "raw")

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise invalid_field(path, f"must be an object, got {_describe_value(value)}")
        self.raw: dict[str, Any] = value
        self.path = path

    def path_of(self, name: str) -> str:
        """The path of the field `name`."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Whether the field is there."""
        return self.raw.get(name) is not None

    def text(self, name: str, *, empty: bool = False) -> str:
        """A string that must be there and, unless `empty`, say something."""
        found = self.raw.get(name)
        if found is None:
            raise invalid_field(self.path_of(name), "this field is required")
        if not isinstance(found, str):
            raise invalid_field(self.path_of(name), f"must be a string, got {_describe_value(found)}")
        if not found and not empty:
            raise invalid_field(self.path_of(name), "must not be empty")
        return found

    def optional_text(self, name: str) -> str:
        """A string; "" when it is missing."""
        return self.text(name, empty=True) if self.has(name) else ""

    def flag(self, name: str) -> bool:
        """A boolean; False when it is missing."""
        found = self.raw.get(name)
        if found is None or isinstance(found, bool):
            return bool(found)
        raise invalid_field(self.path_of(name), f"must be true or false, got {_describe_value(found)}")

    def number(self, name: str) -> float | None:
        """A number; None when it is missing."""
        found = self.raw.get(name)
        if found is None or (isinstance(found, int | float) and not isinstance(found, bool)):
            return found
        raise invalid_field(self.path_of(name), f"must be a number, got {_describe_value(found)}")

    def count(self, name: str) -> int | None:
        """An integer from 0 on; None when it is missing."""
        found = self.raw.get(name)
        if found is None or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
            return found
        raise invalid_field(
            self.path_of(name), f"must be an integer of 0 or more, got {_describe_value(found)}"
        )

    def nested(self, name: str) -> RequestFields:
        """The object in the field `name`."""
        return RequestFields(self.raw.get(name), self.path_of(name))

    def items(self, name: str) -> list[Any]:
        """A list that must be there."""
        found = self.raw.get(name)
        if isinstance(found, list):
            return found
        raise invalid_field(self.path_of(name), f"must be a list, got {_describe_value(found)}")

    def objects(self, name: str) -> list[RequestFields]:
        """A list of objects that must be there."""
        return [
            RequestFields(item, f"{self.path_of(name)}[{index}]")
            for index, item in enumerate(self.items(name))
        ]

    def content_blocks(self, name: str) -> list[RequestFields]:
        """The content blocks in the field; a string is one of text."""
        found = self.raw.get(name)
        if isinstance(found, str):
            return [RequestFields({"type": "text", "text": found}, self.path_of(name))]
        if isinstance(found, list):
            return self.objects(name)
        raise invalid_field(
            self.path_of(name), f"must be a string or a list of content blocks, got {_describe_value(found)}"
        )

    def provider_metadata(self, *names: str) -> ProviderMetadata | None:
        """What only Anthropic knows of a block: its cache mark, and the fields `quoted_list` as they are."""
        if self.has("cache_control"):
            self.nested("cache_control")
        kept = {
            _CAMEL_NAMES.get(name, name): self.raw[name]
            for name in ("cache_control", *names)
            if self.raw.get(name) not in (None, [])
        }
        return {"anthropic": kept} if kept else None


def invalid_field(path: str, problem: str, *, hint: str | None = None) -> BadRequest:
    """The refusal of a field; its message begins with the path, as Anthropic's do."""
    return BadRequest(f"{path}: {problem}", field=path, hint=hint)


def quoted_list(values: Iterable[str]) -> str:
    """The names as a sentence lists them."""
    return ", ".join(repr(name) for name in values)


def _describe_value(value: Any) -> str:
    """A value as a message names it: short, and nothing of what a list or an object holds."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value!r:.40}"
        case str():
            return f"the string {value!r:.40}"
        case dict():
            return "an object"
        case _:
            return "a list"
