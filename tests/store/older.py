"""Databases as earlier versions left them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import StaticPool, create_engine

from dragoman.store.schema import migration_config


def downgrade(path: Path, revision: str) -> None:
    """Bring a database of SQLite back to an earlier revision."""
    from alembic import command

    with closing(sqlite3.connect(path)) as raw:
        config = migration_config()
        engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, revision)
            connection.commit()
