"""A host begins no run from messages that a run of another host has changed since it read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.errors import RunActive
from dragoman.store.store import DatabaseSettings, Store
from tests.postgres_server import shared_server
from tests.store.samples import FINISHED, assistant, run, session


async def test_a_session_in_which_another_host_has_answered_is_read_again(tmp_path: Path) -> None:
    server = shared_server()
    with server.schema() as schema:
        database = DatabaseSettings(server.url(schema))
        async with (
            await Store.open(tmp_path / "a", database=database) as first,
            await Store.open(tmp_path / "b", database=database) as second,
        ):
            await first.sessions.create(session())
            stale = await first.sessions.get(session().id)
            assert stale is not None
            await second.runs.create(run("r1", at=5.0), assistant=assistant("a1"), session=stale)
            assert await second.runs.finish("r1", FINISHED)
            with pytest.raises(RunActive):
                await first.runs.create(run("r2", at=6.0), assistant=assistant("a2"), session=stale)
            fresh = await first.sessions.get(session().id)
            await first.runs.create(run("r2", at=6.0), assistant=assistant("a2"), session=fresh)
            messages = await first.messages.list(session().id)
    assert [message.id for message in messages] == ["a1", "a2"]
