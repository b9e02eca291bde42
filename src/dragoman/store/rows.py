"""Rows and structs: a struct's fields are columns of a table, by name."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from sqlalchemy import Select, Table, select

from dragoman.store.connection import Row

S = TypeVar("S", bound=msgspec.Struct)


def select_all(kind: type[msgspec.Struct], table: Table) -> Select[Any]:
    """Select the columns of the struct's fields, in their order."""
    return select(*(table.c[name] for name in kind.__struct_fields__))


def to_fields(kind: type[msgspec.Struct], row: Row) -> dict[str, Any]:
    """The fields in a row of `select_all`; JSON is still text."""
    return dict(zip(kind.__struct_fields__, row, strict=True))


def to_struct(kind: type[S], row: Row) -> S:
    """The struct in a row of `select_all`, when none of its fields is kept as JSON."""
    return kind(**to_fields(kind, row))


def to_params(struct: msgspec.Struct) -> dict[str, Any]:
    """The struct's fields as parameters; what is kept as JSON is to be replaced by its text."""
    return msgspec.structs.asdict(struct)


def to_text(value: Any) -> str | None:
    """The value as JSON text; None, which stands for NULL, as it is."""
    return None if value is None else msgspec.json.encode(value).decode()


def from_text(text: str | None, kind: Any = Any) -> Any:
    """The value of JSON text; None for NULL."""
    return None if text is None else msgspec.json.decode(text, type=kind)
