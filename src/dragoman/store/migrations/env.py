"""How Alembic runs the revisions: on the connection that store/schema.py hands it."""

from __future__ import annotations

from alembic import context

from dragoman.store.tables.core import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
