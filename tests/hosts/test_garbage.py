"""A host that answers what no host answers: whoever asked it hears that, and others are served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.accounts.shared_budgets import SharedBudgets
from dragoman.accounts.spool import Spool
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import CallUncertain, DragomanError, HostUnreachable, Unavailable
from dragoman.hosts.client import HostClient
from dragoman.operations import Context, Registry
from dragoman.operations.operation import Effect, Operation
from dragoman.spokes.hub.balancer import not_bound
from dragoman.spokes.hub.host_operations import HostOperations, SharedCallRunner
from dragoman.store.hosts.hosts import HostRecord
from dragoman.store.store import Store
from tests.providers.servers import Peer, ok, serving

TOKEN = "a-token-of-this-start"
HOST = HostRecord(id="b", name="b", version="1", started_at=1.0, token=TOKEN)
LIST = ok(
    b'{"version": "1", "operations": [{"namespace": "stock", "name": "level", "input_schema": {},'
    b'"description": "",'
    b'"output_schema": null, "effect": "read", "effect_claimed": true, "timeout": null, "approval": false,'
    b'"source": "spoke:s", "owner": null, "private": false}]}'
)


def status(line: str, body: bytes = b"", *headers: str) -> bytes:
    return ok(body, *headers).replace(b"200 OK", line.encode(), 1)


STRANGE = {
    "not JSON": ok(b"<html>"),
    "deep": ok(b"[" * 100_000),
    "cut": ok(b"{}").replace(b"length: 2", b"length: 9"),
    "another value": ok(b"7"),
    "a redirect": status("302 Found", b"{}", "location: http://127.0.0.1:1/"),
    "another success": status("201 Created", b"{}"),
    "an error of a proxy": status("502 Bad Gateway", b"<html>"),
    "an error that is a list": status("404 Not Found", b"[1]"),
    "an error that is text": status("500 Internal Server Error", b'{"error": "no"}'),
}
TICKET = ok(b'{"id": "t"}')
FRAMES = {
    "not JSON": ok(b"<html>\n"),
    "another value": ok(b"[1]\n"),
    "deep": ok(b'{"progress": ' + b"[" * 100_000 + b"\n"),
    "no end": ok(b"\n\n"),
    "a wrong end": ok(b'{"end": {"cost": "much"}}\n'),
    "nothing": b"",
}


@asynccontextmanager
async def answering_host(folder: Path, answers: Sequence[bytes]) -> AsyncIterator[tuple[HostClient, Store]]:
    """Yield a client for a host "b" that answers with these responses, one after another."""
    left = list(answers)

    async def answer(peer: Peer) -> None:
        await peer.request()
        await peer.send(left.pop(0))

    async with await Store.open(folder) as store, serving(answer) as server:
        await store.hosts.add(replace(HOST, url=server.url))
        client = HostClient(store.hosts)
        try:
            yield client, store
        finally:
            await client.close()


def budgets_of(store: Store) -> SharedBudgets:
    return SharedBudgets(store.budgets, UsageLedger(store, Spool(store.folder / "b.spool")))


async def test_what_is_not_of_a_host_counts_as_no_answer_and_is_not_followed(tmp_path: Path) -> None:
    strange = {kind: answer for kind, answer in STRANGE.items() if kind != "another value"}
    async with answering_host(tmp_path, list(strange.values())) as (client, _):
        for kind in strange:
            with pytest.raises(HostUnreachable, match="the host 'b' does not answer") as failure:
                await client.post("b", "/echo", body={})
            assert TOKEN not in str(failure.value.to_json()), kind


async def test_a_list_that_cannot_be_read_leaves_the_one_before_and_those_of_other_hosts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering_host(tmp_path, [LIST, *STRANGE.values()]) as (client, store):
        operations = HostOperations(
            registry := Registry(), client, hosts=store.hosts, own_id="a", shared_budgets=budgets_of(store)
        )
        assert await operations.poll()
        for kind in STRANGE:
            operations.refresh("b")
            assert not await operations.poll(), kind
            assert [each.id for each in registry.list()] == ["stock.level"]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(("effect", "error"), [("once", CallUncertain), ("read", Unavailable)])
async def test_a_call_whose_frames_cannot_be_read_may_have_begun(
    tmp_path: Path, effect: Effect, error: type[DragomanError]
) -> None:
    answers = [answer for frames in FRAMES.values() for answer in (TICKET, frames)]
    async with answering_host(tmp_path, answers) as (client, store):
        operation = Operation.from_schema(not_bound, {}, namespace="s", name="order", effect=effect)
        runner = SharedCallRunner(client, lambda: ["b"], operation=operation, budgets=budgets_of(store))
        for kind in FRAMES:
            with pytest.raises(error, match="went away"):
                await runner.run({}, Context())
            assert kind


async def test_a_call_that_is_not_accepted_has_not_begun(tmp_path: Path) -> None:
    async with answering_host(tmp_path, list(STRANGE.values())) as (client, store):
        operation = Operation.from_schema(not_bound, {}, namespace="s", name="order", effect="once")
        runner = SharedCallRunner(client, lambda: ["b"], operation=operation, budgets=budgets_of(store))
        for _ in STRANGE:
            with pytest.raises(HostUnreachable):
                await runner.run({}, Context())
