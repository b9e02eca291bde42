"""Two hosts on one Postgres: what both change at the same time is changed once, and nothing is lost.

Each test lets two stores race many times, and counts deadlocks at its end: Postgres resolves one after a
second in which both hosts wait, so there must be none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import Conflict, DragomanError, NotFound, RunActive
from dragoman.events import Usage
from dragoman.identity import LOCAL
from dragoman.operations.ledger import CallCompletion, CallRecord
from dragoman.operations.results.artifact import Artifact
from dragoman.store import retention
from dragoman.store.accounts.budgets import ChargedBudget
from dragoman.store.connection import DatabaseConnection, DatabaseJob
from dragoman.store.encryption import MasterKey
from dragoman.store.mcp_servers import DefinitionPin
from dragoman.store.sessions.shares import new_share
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.effort import rounds
from tests.postgres_server import shared_server
from tests.store.conftest import Clock
from tests.store.places import Place, empty_place
from tests.store.samples import FINISHED, assistant, converse, run, session, text, user
from tests.store.test_approvals import asking
from tests.store.test_branches import fork

ROUNDS = rounds(quick=6, thorough=60)
KEY = MasterKey(bytes(32))
COUNT_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with empty_place("postgres", tmp_path / "data") as found:
        yield found


@pytest.fixture
async def hosts(place: Place, clock: Clock) -> AsyncIterator[tuple[Store, Store]]:
    """Two hosts whose transactions run at the same time; no deadlock has taken place at the end."""
    before = shared_server().execute(COUNT_DEADLOCKS)
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(await place.open(clock=clock, exclusive=False, master_key=KEY))
            for _ in range(2)
        ]
        await asyncio.gather(first.flush(), second.flush())
        yield first, second
    assert shared_server().execute(COUNT_DEADLOCKS) == before


async def race(*attempts: Awaitable[Any]) -> Sequence[Any]:
    """The results, or the errors of the hub's tree, of attempts that run at the same time."""
    results = await asyncio.gather(*attempts, return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException) and not isinstance(each, DragomanError):
            raise each
    return results


def count(results: Sequence[Any], kind: type) -> int:
    return sum(isinstance(each, kind) for each in results)


async def test_a_key_keeps_all_changes(hosts: tuple[Store, Store]) -> None:
    first, second = hosts
    key, _ = await first.keys.create("ann")
    for number in range(ROUNDS):
        (_, secret), _, _ = await race(
            first.keys.rotate(key.id, 60),
            second.keys.update(key.id, name=f"n{number}"),
            first.keys.update(key.id, expires_at=2_000.0 + number),
        )
        found = await second.keys.authenticate(secret)
        assert not isinstance(found, str)
        assert (found.name, found.expires_at) == (f"n{number}", 2_000.0 + number)


async def test_a_revoked_key_takes_no_further_secret(hosts: tuple[Store, Store]) -> None:
    first, second = hosts
    for _ in range(ROUNDS):
        key, _ = await first.keys.create("ann")
        await race(first.keys.revoke(key.id), second.keys.rotate(key.id, 60))
        with pytest.raises(NotFound):
            await second.keys.update(key.id, name="n")


async def test_a_session_keeps_all_changes(hosts: tuple[Store, Store]) -> None:
    first, second = hosts
    await first.sessions.create(session())
    for number in range(ROUNDS):
        await race(
            first.sessions.update("s", title=f"t{number}"),
            second.sessions.update("s", agent=f"a{number}"),
            second.sessions.update("s", max_steps=number),
        )
        found = await first.sessions.get("s")
        assert found is not None
        assert (found.title, found.agent, found.max_steps) == (f"t{number}", f"a{number}", number)


async def test_a_session_is_created_once(hosts: tuple[Store, Store]) -> None:
    for number in range(ROUNDS):
        results = await race(*(host.sessions.create(session(f"s{number}")) for host in hosts))
        assert count(results, Conflict) == 1


async def test_a_new_session_gets_one_run_and_its_messages_in_order(hosts: tuple[Store, Store]) -> None:
    for number in range(ROUNDS):
        id = f"s{number}"
        results = await race(
            *(
                host.runs.create(
                    run(f"{id}-{at}", session_id=id, message_id=f"a{at}"),
                    session=session(id),
                    user=user(f"u{at}", "hi"),
                    assistant=assistant(f"a{at}"),
                )
                for at, host in enumerate(hosts)
            )
        )
        assert count(results, RunActive) == 1, results
        assert [each.role for each in await hosts[0].messages.list(id)] == ["user", "assistant"]


async def test_runs_that_follow_each_other_on_two_hosts_leave_no_gap(
    hosts: tuple[Store, Store], place: Place
) -> None:
    await hosts[0].sessions.create(session())

    async def answer(host: Store, id: str) -> None:
        while True:
            try:
                await host.runs.create(
                    run(id, message_id=f"a-{id}"), user=user(f"u-{id}", id), assistant=assistant(f"a-{id}")
                )
            except RunActive:
                await asyncio.sleep(0)
            else:
                break
        await host.runs.finish(id, FINISHED)

    await race(*(answer(host, f"{at}-{number}") for number in range(5) for at, host in enumerate(hosts)))
    assert place.query("SELECT position FROM messages ORDER BY position") == [(at,) for at in range(20)]


async def test_a_session_with_an_active_run_is_not_deleted(hosts: tuple[Store, Store]) -> None:
    first, second = hosts
    for number in range(ROUNDS):
        id = f"s{number}"
        await first.sessions.create(session(id))
        begun, deleted = await race(
            first.runs.create(run(id, session_id=id), assistant=assistant()),
            second.session_deletion.delete(id),
        )
        assert isinstance(begun, NotFound) is (deleted is True), (begun, deleted)
        assert isinstance(deleted, RunActive) is (begun is None), (begun, deleted)
        assert ((await first.runs.get(id)) is None) is (deleted is True)


async def test_a_session_is_deleted_at_both_hosts_while_its_forks_change(
    hosts: tuple[Store, Store], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_SECONDS", 0.0)
    first, second = hosts
    for number in range(ROUNDS):
        s, f, g, h = (f"{name}{number}" for name in "sfgh")
        await converse(first, "one?", "two?", "three?", session_id=s)
        for id in (f, g):
            await fork(first, "a2", source=s, id=id)
        whole = await first.messages.list(f)
        token = new_share(g, owner="ann", now=1.0, expires_at=None, tools=False)
        await race(
            first.session_deletion.delete(s),
            second.session_deletion.finish(s),
            fork(second, "a1", source=f, id=h),
            second.branches.rewind(g, "a0"),
            first.branches.rewind(f, "u1"),
            second.shares.create(token),
            second.retention.purge({}),
        )
        await second.session_deletion.finish(s)
        assert await first.sessions.get(s) is None
        assert not place.query(f"SELECT 1 FROM branches WHERE parent_session_id = '{s}'")
        assert not place.query(f"SELECT 1 FROM shares WHERE branch_session_id = '{s}'")
        assert await second.messages.list(f) == whole[:3]
        assert await second.messages.list(g) == whole[:2]
        assert [page async for page in second.messages.pages(share_id=token.id)] in ([whole], [whole[:2]])
        if await second.sessions.get(h) is not None:
            assert await second.messages.list(h) == whole[:4]


async def test_an_approval_is_asked_for_answered_and_used_once(hosts: tuple[Store, Store]) -> None:
    call = {"owner": "local", "operation": "mail.send"}
    for number in range(ROUNDS):
        hash = f"h{number}"
        requests = await race(
            *(
                host.approvals.create(asking(f"{at}-{number}", input_hash=hash))
                for at, host in enumerate(hosts)
            )
        )
        assert len({each.id for each in requests}) == 1
        id = requests[0].id
        answers = [
            host.approvals.answer(id, approved=approved, by=LOCAL)
            for host in hosts
            for approved in (True, True, False)
        ]
        assert count(await race(*answers), Conflict) == 5
        uses = [host.approvals.use(id, **call, input_hash=hash) for host in hosts for _ in range(3)]
        is_approved = (await hosts[0].approvals.get(id)).status == "approved"
        assert count(await race(*uses), Conflict) == (5 if is_approved else 6)


async def test_budgets_are_never_exceeded_and_nothing_is_counted_twice(hosts: tuple[Store, Store]) -> None:
    charges = [ChargedBudget("owner:ann", "total", 100), ChargedBudget("key:k", "day:2026-11-23", 60)]

    async def pay(host: Store, order: int) -> bool:
        ordered = charges[::order]
        if await host.budgets.reserve(ordered, 10) is not None:
            return False
        record = UsageRecord(owner="bob", tokens=Usage(), status="ok", started_at=1.0, id=f"{id(ordered)}")
        settle = host.budgets.settle_job(ordered, reserved=10, spent=3)
        insert = host.usage.insert_job(record)
        await race(host.write(insert), host.write(settle))
        return True

    paid = await race(*(pay(host, order) for host in hosts for order in (1, -1) * ROUNDS))
    spent = 3 * sum(paid)
    assert spent > 0
    for charge in charges:
        assert await hosts[0].budgets.get_balance(charge.scope, charge.window) == (spent, 0)
        assert spent <= charge.limit + 7


async def test_a_namespace_gets_one_owner_and_both_hosts_are_told(hosts: tuple[Store, Store]) -> None:
    first, second = hosts
    for number in range(ROUNDS):
        names = [f"{letter}{number}" for letter in "abcd"]
        mine, theirs = await race(
            first.spoke_namespaces.claim(dict.fromkeys(names, "ann")),
            second.spoke_namespaces.claim(dict.fromkeys(reversed(names), "bob")),
        )
        stored = await first.spoke_namespaces.list()
        assert mine == theirs == {name: stored[name] for name in names}


def pin(name: str, hash: str, *, server: str = "m") -> DefinitionPin:
    return DefinitionPin(server=server, name=name, hash=hash, body="{}", approved_at=1.0)


async def test_the_first_definitions_of_a_server_are_those_of_one_host(hosts: tuple[Store, Store]) -> None:
    for number in range(ROUNDS):
        server = f"m{number}"
        await race(
            *(
                host.definition_pins.put_first(
                    server, [pin(name, str(at), server=server) for name in ("x", "y")[:: 1 - 2 * at]]
                )
                for at, host in enumerate(hosts)
            )
        )
        pins = await hosts[0].definition_pins.list(server)
        assert len({each.hash for each in pins}) == 1
        assert [each.name for each in pins] == ["x", "y"]


async def test_pins_that_two_hosts_write_in_another_order_are_all_written(hosts: tuple[Store, Store]) -> None:
    names = [f"t{at}" for at in range(40)]
    for _ in range(ROUNDS):
        await race(
            hosts[0].definition_pins.put([pin(name, "0") for name in names]),
            hosts[1].definition_pins.put([pin(name, "1") for name in reversed(names)]),
            hosts[0].definition_pins.delete_names([("m", name) for name in reversed(names)]),
        )


async def test_an_mcp_server_that_is_replaced_while_it_is_encrypted_stays_replaced(
    hosts: tuple[Store, Store], place: Place
) -> None:
    first, second = hosts
    for number in range(ROUNDS):
        name = f"m{number}"
        place.query(f"INSERT INTO mcp_servers VALUES ('{name}', 'old', 1)")
        await race(first.mcp_servers.list(), second.mcp_servers.put(name, "new"))
        (body,) = [each.body for each in await first.mcp_servers.list() if each.name == name]
        assert body == "new"


async def test_a_secret_that_is_set_while_all_are_encrypted_anew_keeps_its_value(
    hosts: tuple[Store, Store],
) -> None:
    first, second = hosts
    for number in range(ROUNDS):
        await race(*(first.secrets.put(f"s{at}", "old") for at in range(5)))
        await race(first.secrets.rotate(KEY), second.secrets.put("s3", f"new{number}"))
        assert await first.secrets.get("s3") == f"new{number}"


async def test_an_artifact_id_is_taken_once(hosts: tuple[Store, Store]) -> None:
    for number in range(ROUNDS):
        made = Artifact(id=f"f{number}", owner="ann", media_type="text/plain", size=1, created_at=1.0)
        results = await race(*(host.artifacts.save(made, b"x") for host in hosts))
        assert count(results, Conflict) == 1


async def test_a_pending_call_is_resumed_once_or_closed(hosts: tuple[Store, Store]) -> None:
    first, second = hosts
    for number in range(ROUNDS):
        record = CallRecord(
            id=f"c{number}",
            operation="a.b",
            effect="once",
            owner="ann",
            input={},
            input_hash="h",
            idempotency_key="k",
            started_at=1.0,
        )
        await first.calls.record_start(record)
        waiting = replace(asking(f"p{number}", input_hash=f"h{number}"), call_id=record.id)
        await first.approvals.create(waiting)
        ended = CallCompletion(status="aborted", ended_at=2.0)
        results = await race(
            first.calls.record_resume(record),
            second.calls.record_resume(record),
            second.calls.close_pending(record.id, ended),
        )
        entry = await first.calls.get(record.id)
        assert entry is not None
        assert (entry.status, count(results, Conflict)) in (("running", 1), ("aborted", 2))


async def test_expired_rows_are_deleted_by_one_host_at_a_time(
    hosts: tuple[Store, Store], place: Place, clock: Clock
) -> None:
    for number in range(4):
        await converse(hosts[0], "one", "two", session_id=f"s{number}")
    clock.now = 1e6
    counts = await race(*(host.retention.purge({"sessions": 10.0}) for host in hosts))
    assert sum(each.get("sessions", 0) for each in counts) == 4
    assert place.query("SELECT count(*) FROM messages") == [(0,)]
    async with hosts[0].database.try_lock("retention") as is_alone:
        assert is_alone
        assert await hosts[1].retention.purge({"sessions": 10.0}) == {}


async def test_both_hosts_index_one_session_and_find_the_same(
    hosts: tuple[Store, Store], place: Place
) -> None:
    place.query("DROP TABLE IF EXISTS passage_index")  # both create it
    for number in range(ROUNDS):
        await converse(hosts[0], *(f"word{number:02} {at}" for at in range(5)), session_id=f"s{number}")
        begun = hosts[0].runs.create(
            run(f"last{number}", session_id=f"s{number}", message_id="last", at=9.0),
            user=user("last-u", f"word{number:02} last"),
            assistant=assistant("last", "some"),
        )
        shorter = hosts[0].messages.write_parts_job(f"s{number}", "last", changed=[(0, text("x"))], count=0)

        async def write(begun: Any = begun, job: Any = shorter) -> None:
            await begun
            await hosts[0].write(job)

        found = await race(write(), *(host.history.search(f"word{number:02}", owner="ann") for host in hosts))
        assert all(each.passages for each in found[1:])
    for number in range(ROUNDS):
        results = await race(*(host.history.search(f"word{number:02}", owner="ann") for host in hosts))
        assert [len(each.passages) for each in results] == [6, 6]
    place.check_index()


async def test_transactions_of_several_jobs_do_not_wait_for_each_other_in_a_circle(
    hosts: tuple[Store, Store],
) -> None:
    for id in ("s0", "s1"):
        await hosts[0].sessions.create(session(id))
    met = threading.Barrier(2)
    attempts: list[int] = []

    def job(at: int, *, is_first: bool) -> DatabaseJob[int]:
        def update(connection: DatabaseConnection) -> int:
            changed = connection.execute(f"UPDATE sessions SET max_steps = 1 WHERE id = 's{at}'", {})
            attempts.append(at)
            if is_first and attempts.count(at) == 1:
                met.wait()  # each host has locked one row, and wants the other's next
            return changed

        return update

    results = await race(
        *(host.write(job(at, is_first=True)) for at, host in enumerate(hosts)),
        *(host.write(job(1 - at, is_first=False)) for at, host in enumerate(hosts)),
    )
    assert results == [1, 1, 1, 1]
    assert len(attempts) > 4
