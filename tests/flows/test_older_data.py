"""Data of earlier versions: tables are migrated, and everything in them is read, answered and gone on with.

`older/<revision>.json` has what a hub of that revision has written: two sessions (one waits for an approval),
a request to the gateway, a key, and since there are teams a task, a memory and a trigger.
"""

from __future__ import annotations

import base64
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Boolean, Connection, MetaData, StaticPool, create_engine

from dragoman.store.schema import migration_config
from dragoman.store.store import DATABASE_FILE
from tests.databases import BACKENDS, BackendName, databases_as_named
from tests.serving import Served, ask, frames_in, serving, text_of
from tests.store.places import Place, empty_place
from tests.waiting import poll

OLDER = Path(__file__).with_name("older")
REVISIONS = sorted(path.stem for path in OLDER.glob("*.json"))
SECRET = "dgm_of-a-test"
WIPE = Path(__file__).with_name("approval_operation.py")
STEPS = [{"text": "It is wiped."}, {"text": "Still here."}]


class OlderData(msgspec.Struct):
    """What a hub of a revision has written, and the messages as it returned them."""

    revision: str
    messages: dict[str, list[dict[str, Any]]]
    rows: dict[str, list[dict[str, Any]]]


@contextmanager
def connected(place: Place) -> Iterator[Connection]:
    """Yield a connection to an empty place, beside every store; it is committed at the end."""
    if place.url is None:
        place.folder.mkdir(parents=True)
        with closing(sqlite3.connect(place.folder / DATABASE_FILE)) as raw:
            engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
            with engine.begin() as connection:
                yield connection
        return
    import psycopg

    with psycopg.connect(place.url) as raw_connection:
        engine = create_engine("postgresql+psycopg://", creator=lambda: raw_connection, poolclass=StaticPool)
        with engine.begin() as connection:
            yield connection


def write_older(place: Place, older: OlderData) -> None:
    """Create the tables of the revision, and insert the rows, as old as if they had been written just now."""
    from alembic import command

    age = time.time() - max(each["updated_at"] for each in older.rows["sessions"])
    with connected(place) as connection:
        config = migration_config()
        config.attributes["connection"] = connection
        command.upgrade(config, older.revision)
        tables = MetaData()
        tables.reflect(connection, only=list(older.rows))
        for table in tables.sorted_tables:
            kinds = {column.name: column.type for column in table.columns}
            for row in older.rows[table.name]:
                values = {name: value_of(value, name, kinds[name], age=age) for name, value in row.items()}
                connection.execute(table.insert().values(values))


def value_of(value: Any, name: str, kind: Any, *, age: float) -> Any:
    if isinstance(value, Mapping):
        return base64.b64decode(value["base64"])
    if isinstance(value, float) and (name.endswith("_at") or name == "deadline"):
        return value + age
    return bool(value) if isinstance(kind, Boolean) else value


async def get(served: Served, path: str) -> Any:
    response = await served.http.get(path)
    assert response.status_code == 200, (path, response.text)
    return response.json()


QUICK: Collection[tuple[BackendName, str]] = {("sqlite", REVISIONS[0]), ("postgres", REVISIONS[-2])}
CASES = [
    pytest.param(backend, revision, marks=() if (backend, revision) in QUICK else pytest.mark.thorough)
    for backend in BACKENDS
    for revision in REVISIONS
]


@pytest.mark.parametrize(("backend", "revision"), CASES)
async def test_what_an_earlier_version_has_stored_is_read_and_gone_on_with(
    backend: BackendName, revision: str, tmp_path: Path
) -> None:
    older = msgspec.json.decode((OLDER / f"{revision}.json").read_bytes(), type=OlderData)
    team = tmp_path / "teams" / "news"
    team.mkdir(parents=True)
    (team / "team.yaml").write_text("description: writes news\nallowed_tools: ['math.*']\n")
    config: dict[str, Any] = {"operations": [str(WIPE)], "teams": str(team.parent)}
    with databases_as_named(), empty_place(backend, tmp_path / "hub", new=True) as place:
        write_older(place, older)
        if place.url is not None:
            config["database"] = place.url
        async with serving(tmp_path, STEPS, keys=True, **config) as served:
            served.http.headers["authorization"] = f"Bearer {SECRET}"
            await check_reads(served, older)
            await check_goes_on(served)


async def check_reads(served: Served, older: OlderData) -> None:
    """Read all that the older hub returned."""
    for session, messages in older.messages.items():
        assert (await get(served, f"/api/sessions/{session}/messages"))["messages"] == messages
    rows = older.rows
    assert {each["id"] for each in (await get(served, "/api/keys"))["keys"]} == {
        row["id"] for row in rows["keys"]
    }
    assert len((await get(served, "/api/sessions"))["sessions"]) == len(rows["sessions"])
    usage = await get(served, "/api/usage")
    assert usage["total"]["calls"] == len(rows["usage"])
    assert usage["total"]["usage"]["totalTokens"] == sum(row["total_tokens"] for row in rows["usage"])
    for run in rows["runs"]:
        assert (await get(served, f"/api/runs/{run['id']}"))["id"] == run["id"]
    if "team_tasks" in rows:
        tasks = (await get(served, "/api/tasks"))["tasks"]
        assert [(each["state"], each["result"]) for each in tasks] == [("done", "Task done.")]
        memories = (await get(served, "/api/memory?team=news"))["memories"]
        assert [each["content"] for each in memories] == ["be brief"]
        triggers = (await get(served, "/api/triggers"))["triggers"]
        assert [(each["name"], each["state"]) for each in triggers] == [("daily", "pending")]


async def check_goes_on(served: Served) -> None:
    """Answer the approval that has waited since, and go on in a session."""
    (approval,) = (await get(served, "/api/approvals"))["approvals"]
    answered = await served.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})
    assert answered.status_code == 200, answered.text

    async def look() -> bool:
        *_, last = await served.messages("danger")
        return bool(last["parts"][-1].get("text") == "It is wiped.")

    await poll(look)
    assert "wiped a" in str(await served.messages("danger"))
    response = await served.http.post("/api/chat", json=ask("and now?", session="plans"))
    assert text_of(frames_in(response.text)) == "Still here."
    found = await get(served, "/api/search?q=hello")
    assert found["found"], "what was written before the words of messages were indexed is found"
