"""The tables of hosts that share a database, and of what they spend and count together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Table

from dragoman.store.tables.types import INTEGER, TEXT, metadata

# The processes that share a Postgres database. `token` is the secret by which the others call this one; it is
# new at each start. A host with `fenced_at` writes nothing any more, and others take its runs over.
hosts = Table(
    "hosts",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("name", TEXT, nullable=False),
    Column("url", TEXT),
    Column("token", TEXT),
    Column("version", TEXT, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("draining_at", Double),
    Column("fenced_at", Double),
)

# Money in billionths of a US dollar: whole numbers add up without rounding. Budgets that tasks share with
# what gave them have `opened_at`; those of keys and owners do not.
budgets = Table(
    "budgets",
    metadata,
    Column("scope", TEXT, primary_key=True, nullable=False),
    Column("window", TEXT, primary_key=True, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("opened_at", Double),
)

# The part of each budget's `reserved` that is a host's: given back when the host dies.
host_reservations = Table(
    "host_reservations",
    metadata,
    Column("host", TEXT, primary_key=True, nullable=False),
    Column("scope", TEXT, primary_key=True, nullable=False),
    Column("window", TEXT, primary_key=True, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)

# Each host's part of a rate of the last minute: counts by second, and what it may count until `lease_until`.
host_rates = Table(
    "host_rates",
    metadata,
    Column("scope", TEXT, primary_key=True, nullable=False),
    Column("kind", TEXT, primary_key=True, nullable=False),
    Column("host", TEXT, primary_key=True, nullable=False),
    Column("counts", TEXT, nullable=False),
    Column("lease", BigInteger, nullable=False),
    Column("lease_until", Double, nullable=False),
)

# How many sockets of each owner have a session open at a host. Rows of hosts that are gone do not count.
session_people = Table(
    "session_people",
    metadata,
    Column(
        "session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True, nullable=False
    ),
    Column("host", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, primary_key=True, nullable=False),
    Column("sockets", INTEGER, nullable=False),
)
