"""Advisory locks on a schema: hosts share it, maintenance that needs it unused locks it exclusively."""

from __future__ import annotations

import time
from typing import Any

from dragoman.errors import StoreError
from dragoman.store.postgres.connection import RawConnection

# Classes of locks; the key of the first and the last is the schema, of the others it and the id of a host.
USE_LOCK = 0x64726167
HOST_LOCK = 0x64726168
RESCUE_LOCK = 0x64726169
FENCE_LOCK = 0x6472616A

LOCK_SECONDS = 2.0  # to wait for the lock of a process that ended a moment ago
LOCK_INTERVAL = 0.05
SHARE_SCHEMA = "SELECT pg_try_advisory_lock_shared(%s, hashtext(current_schema()))"
TAKE_SCHEMA = "SELECT pg_try_advisory_lock(%s, hashtext(current_schema()))"
LOCK_ID = "SELECT pg_try_advisory_lock(%s, hashtext(current_schema() || %s))"
UNLOCK_ID = "SELECT pg_advisory_unlock(%s, hashtext(current_schema() || %s))"
FIND_USERS = """
SELECT activity.application_name, coalesce(host(activity.client_addr), 'this machine'), activity.pid
FROM pg_locks locks JOIN pg_stat_activity activity USING (pid)
WHERE locks.locktype = 'advisory' AND locks.classid = %s AND locks.granted
    AND locks.objid = (hashtext(current_schema())::bigint & 4294967295)::oid
    AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY activity.application_name, activity.pid
"""
SHARE_HINT = "wait until its maintenance ends; a hub of an earlier version cannot share it: stop that one"
TAKE_HINT = "this needs a database that no hub uses: stop it first"


def take_schema(raw: RawConnection, name: str, *, is_shared: bool, seconds: float) -> None:
    """Lock the schema for this session, shared or alone. Raises StoreError when others do not let it."""
    deadline = time.monotonic() + seconds
    while not (is_taken := fetch_value(raw, SHARE_SCHEMA if is_shared else TAKE_SCHEMA, USE_LOCK)):
        if is_taken is None:
            raise missing_schema(name)
        if time.monotonic() > deadline:
            raise StoreError(
                f"the database {name!r} is in use by {find_users(raw) or 'another hub'}",
                hint=SHARE_HINT if is_shared else TAKE_HINT,
            )
        time.sleep(LOCK_INTERVAL)


def take_id(raw: RawConnection, id: str, *, lock: int) -> bool:
    """Lock the id of a host for this session; return False when another session has it."""
    return bool(fetch_value(raw, LOCK_ID, lock, id))


def release_id(raw: RawConnection, id: str, *, lock: int) -> None:
    """Release the lock of an id."""
    raw.execute(UNLOCK_ID, (lock, id))


def find_users(raw: RawConnection) -> str | None:
    """Return who has locked the schema, hosts or maintenance, as text; None if nobody has."""
    users = raw.execute(FIND_USERS, (USE_LOCK,)).fetchall()
    return ", ".join("{!r} at {} (server process {})".format(*user) for user in users) or None


def missing_schema(name: str) -> StoreError:
    """Return the error of a URL whose schema does not exist."""
    return StoreError(
        f"cannot use the database {name!r}: its search_path names no schema",
        hint="create the schema that the URL's search_path names",
    )


def fetch_value(raw: RawConnection, sql: str, *values: Any) -> Any:
    """Return the first value of the first row."""
    row = raw.execute(sql, values).fetchone()
    return row[0] if row else None
