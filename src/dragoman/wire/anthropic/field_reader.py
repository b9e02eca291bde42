"""Read fields of an Anthropic request by type; BadRequest names the path of the invalid field."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dragoman.errors import BadRequest
from dragoman.messages import ProviderMetadata
from dragoman.wire.client_request import MAX_ITEMS, MAX_TOOLS, check_count

_CAMEL_NAMES = {
    "cache_control": "cacheControl",
    "toolset_name": "toolsetName",
    "allowed_callers": "allowedCallers",
    "defer_loading": "deferLoading",
    "eager_input_streaming": "eagerInputStreaming",
    "input_examples": "inputExamples",
}


class RequestFields:
    """The fields of the object at `path` in the body; the body itself has the path "".

    Every method raises BadRequest with the path of the invalid field. Null counts as missing.
    """

    __slots__ = ("path", "raw")

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise invalid_field(path, f"must be an object, got {_describe_value(value)}")
        self.raw: dict[str, Any] = value
        self.path = path

    def path_of(self, name: str) -> str:
        """Return the path of the field `name`."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self.raw.get(name) is not None

    def text(self, name: str, *, empty: bool = False) -> str:
        """Return a required string, not empty unless `empty`."""
        value = self.raw.get(name)
        if value is None:
            raise invalid_field(self.path_of(name), "this field is required")
        if not isinstance(value, str):
            raise invalid_field(self.path_of(name), f"must be a string, got {_describe_value(value)}")
        if not value and not empty:
            raise invalid_field(self.path_of(name), "must not be empty")
        return value

    def optional_text(self, name: str) -> str:
        """Return an optional string; "" if missing."""
        return self.text(name, empty=True) if self.has(name) else ""

    def flag(self, name: str) -> bool:
        """Return an optional boolean; False if missing."""
        value = self.raw.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise invalid_field(self.path_of(name), f"must be true or false, got {_describe_value(value)}")

    def number(self, name: str) -> float | None:
        """Return an optional number; None if missing."""
        value = self.raw.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise invalid_field(self.path_of(name), f"must be a number, got {_describe_value(value)}")

    def count(self, name: str) -> int | None:
        """Return an optional integer of 0 or more; None if missing."""
        value = self.raw.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        raise invalid_field(
            self.path_of(name), f"must be an integer of 0 or more, got {_describe_value(value)}"
        )

    def nested(self, name: str) -> RequestFields:
        """Return the required object in the field `name`."""
        return RequestFields(self.raw.get(name), self.path_of(name))

    def items(self, name: str) -> list[Any]:
        """Return a required list."""
        value = self.raw.get(name)
        if isinstance(value, list):
            return value
        raise invalid_field(self.path_of(name), f"must be a list, got {_describe_value(value)}")

    def objects(self, name: str) -> list[RequestFields]:
        """Return a required list of objects."""
        items = self.items(name)
        check_count(len(items), self.path_of(name), limit=MAX_TOOLS if name == "tools" else MAX_ITEMS)
        return [RequestFields(item, f"{self.path_of(name)}[{index}]") for index, item in enumerate(items)]

    def content_blocks(self, name: str) -> list[RequestFields]:
        """Return the content blocks in the field; a string is one text block."""
        value = self.raw.get(name)
        if isinstance(value, str):
            return [RequestFields({"type": "text", "text": value}, self.path_of(name))]
        if isinstance(value, list):
            return self.objects(name)
        raise invalid_field(
            self.path_of(name), f"must be a string or a list of content blocks, got {_describe_value(value)}"
        )

    def unknown_fields(self, supported: Collection[str], *, place: str) -> list[str]:
        """Return the names of fields that are not `supported` and not empty, as fields of `place`."""
        return [
            f"{place}.{name}"
            for name, value in self.raw.items()
            if name not in supported and value not in (None, "", [], {})
        ]

    def provider_metadata(self, *names: str) -> ProviderMetadata | None:
        """Anthropic's own fields of a block: its cache breakpoint and the fields `names`, unchanged."""
        if self.has("cache_control"):
            self.nested("cache_control")
        fields = {
            _CAMEL_NAMES.get(name, name): self.raw[name]
            for name in ("cache_control", *names)
            if self.raw.get(name) not in (None, [])
        }
        return {"anthropic": fields} if fields else None


def invalid_field(path: str, problem: str, *, hint: str | None = None) -> BadRequest:
    """Return the error for an invalid field; its message begins with the path, as Anthropic's do."""
    return BadRequest(f"{path}: {problem}", field=path, hint=hint)


def quoted_list(values: Iterable[str]) -> str:
    """Return the names as a quoted, comma-separated list."""
    return ", ".join(repr(name) for name in values)


def _describe_value(value: Any) -> str:
    """Describe a value briefly, without the contents of a list or an object."""
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
