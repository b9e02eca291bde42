"""Percentiles in SQL: by rank, since neither database has the same function for them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer, case, func, literal_column, type_coerce

PERCENTS = (50, 95, 99)


def percentile_columns(
    value: ColumnElement[Any], *, rank: ColumnElement[Any], count: ColumnElement[Any]
) -> list[ColumnElement[Any]]:
    """Return the aggregates of the PERCENTS (nearest rank) of a group of rows.

    `rank` is that of the row's value in its group, from 1, unknown ones last; `count` is how many are known.
    """
    number = type_coerce(count, Integer)
    found: list[ColumnElement[Any]] = []
    for percent in PERCENTS:
        place = (number * whole_number(percent) + whole_number(99)) // whole_number(100)
        found.append(func.max(case((rank == place, value), else_=literal_column("NULL"))))
    return found


def whole_number(value: int) -> ColumnElement[int]:
    """Return a number as SQL text: a division of whole numbers cuts off the rest."""
    return literal_column(str(value), Integer)
