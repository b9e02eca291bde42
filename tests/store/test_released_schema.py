"""An older hub goes on through a rolling upgrade: within a minor version migrations only add.

`released_schema.json` holds the tables of the last release. What it has stays as it is; what is new is empty
or has a default, so that a statement of the older hub still works. A release replaces the file by the tables
of its own: `python -m tests.store.test_released_schema`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import UniqueConstraint

from dragoman.store.postgres.schema import DIALECT
from dragoman.store.tables.core import metadata

RELEASED = Path(__file__).with_name("released_schema.json")


def describe_tables() -> dict[str, Any]:
    """The tables of this version: columns with type and whether a row needs a value, and what is unique."""
    found: dict[str, Any] = {}
    for table in metadata.sorted_tables:
        columns = {
            column.name: {
                "type": column.type.compile(dialect=DIALECT),
                "required": not column.nullable
                and column.server_default is None
                and column.autoincrement is not True
                and not (column.primary_key and column is table.autoincrement_column),
            }
            for column in table.columns
        }
        unique = [sorted(index.columns.keys()) for index in table.indexes if index.unique]
        unique += [
            sorted(each.columns.keys()) for each in table.constraints if isinstance(each, UniqueConstraint)
        ]
        key = [column.name for column in table.primary_key.columns]
        found[table.name] = {"columns": columns, "key": key, "unique": sorted(unique)}
    return found


async def test_migrations_since_the_last_release_only_add_what_an_older_hub_does_not_need() -> None:
    released, current = json.loads(RELEASED.read_text()), describe_tables()
    assert set(released) <= set(current), "a table of the last release is gone"
    for name, old in released.items():
        new = current[name]
        assert old["columns"].items() <= new["columns"].items(), f"a column of {name} is gone or has changed"
        added = new["columns"].keys() - old["columns"].keys()
        needed = [column for column in added if new["columns"][column]["required"]]
        assert not needed, f"rows that an older hub writes to {name} have no {needed}"
        assert (new["key"], new["unique"]) == (old["key"], old["unique"]), f"other rows of {name} are refused"


if __name__ == "__main__":
    RELEASED.write_text(json.dumps(describe_tables(), indent=1) + "\n")
