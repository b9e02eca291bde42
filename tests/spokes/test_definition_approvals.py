"""Single operations of spokes that an administrator approves for callers of all owners."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.errors import Conflict, NotFound
from dragoman.operations import Context
from dragoman.operations.meta_tools import MetaTools
from dragoman.spokes import Spoke
from dragoman.spokes.hub.permissions import NamespacePermissions
from dragoman.store.mcp_servers import DefinitionPinRepository, MemoryPinStore, PinStore
from dragoman.store.store import Store
from tests.serving import serving
from tests.spokes.hubs import House, house
from tests.spokes.test_endpoint import Raw, raw
from tests.spokes.test_namespace_owners import Hub
from tests.spokes.test_rights import ANN, BOB, call, gift_registry, key_of, pages

OFFER: dict[str, Any] = {
    "namespace": "far",
    "name": "work",
    "description": "Give a flower.",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    "effect": "read",
}
CHANGES: dict[str, dict[str, Any]] = {
    "the description": {"description": "Take all money."},
    "an invisible character that is shown": {"description": "Give a flower. \u00a0."},
    "a parameter": {"inputSchema": {"type": "object", "properties": {"n": {}, "token": {}}}},
    "a parameter's description": {
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "description": "secret"}}}
    },
    "the output": {"outputSchema": {"type": "object"}},
    "the effect": {"effect": "once"},
    "whether it asks": {"approval": True},
}


async def found_by_ann(hub: House) -> tuple[str | None, bool, bool]:
    """The error of her call, and whether search and list show her the operation."""
    meta = MetaTools(hub.registry, hub.calls)
    context = Context(identity=ANN)
    failure = (await call(hub, ANN, "far.nothing")).error
    error = None
    if not any(each.id == "far.work" for each in meta.visible_operations(context)):
        failure = (await call(hub, ANN, "far.work")).error
        error = None if failure is None else failure.code
    found = await meta.run("hub.search", {"q": "give a flower far work"}, context=context)
    listed = await meta.run("hub.list", {"namespace": "far"}, context=context)
    return error, "far.work" in str(found.result), "far.work" in str(listed.result)


HIDDEN = ("not_found", False, False)
SHOWN = (None, True, True)


async def join(spoke: Raw, **changes: Any) -> None:
    await spoke.join(token="key-b")
    await spoke.register({**OFFER, **changes})


async def test_an_approved_operation_is_there_for_all_owners_until_it_is_revoked() -> None:
    async with house() as hub, raw(hub) as spoke:
        await join(spoke)
        assert await found_by_ann(hub) == HIDDEN
        assert await hub.board.operations.approve(["FAR.work"], by="root") == ["far.work"]
        assert await found_by_ann(hub) == SHOWN
        calling = asyncio.ensure_future(call(hub, ANN, "far.work"))
        frame = await spoke.hear("call")
        await spoke.say("result", id=frame["id"], result="a flower")
        assert (await calling).result == "a flower"
        assert await hub.board.operations.revoke(["far.Work"]) == ["far.work"]
        assert await found_by_ann(hub) == HIDDEN
        with pytest.raises(NotFound, match="no definition"):
            await hub.board.operations.revoke(["far.work"])


@pytest.mark.promise("spoke-approval-is-of-a-definition")
@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_definition_loses_the_approval(change: str) -> None:
    async with house() as hub, raw(hub) as spoke:
        await join(spoke)
        await hub.board.operations.approve(["far.work"], by="root")
        await spoke.register({**OFFER, **CHANGES[change]})
        assert await found_by_ann(hub) == HIDDEN
        [status] = await hub.board.operations.definitions()
        assert (status.sharing, status.approved_by) == ("changed", "root")
        await spoke.register(OFFER)
        assert await found_by_ann(hub) == SHOWN


async def test_only_the_definition_that_was_shown_is_approved() -> None:
    async with house() as hub, raw(hub) as spoke:
        await join(spoke)
        shown = await hub.board.operations.definition("far.work")
        assert "Give a flower." in shown.diff
        await spoke.register({**OFFER, "description": "Take all money."})
        with pytest.raises(Conflict, match="changed since"):
            await hub.board.operations.approve({"far.work": shown.hash}, by="root")
        assert await found_by_ann(hub) == HIDDEN
        again = await hub.board.operations.definition("far.work")
        await hub.board.operations.approve({"far.work": again.hash}, by="root")
        assert await found_by_ann(hub) == SHOWN
        with pytest.raises(NotFound, match="no spoke offers"):
            await hub.board.operations.approve(["far.other"], by="root")


async def test_an_approval_does_not_pass_to_another_owner_or_survive_that_its_namespace_is_freed() -> None:
    async with house() as hub:
        async with raw(hub) as spoke:
            await join(spoke)
            await hub.board.operations.approve(["far.work"], by="root")
            await hub.board.operations.free_namespace("Far")
            assert await hub.board.operations.definitions() == []
            await spoke.register(OFFER)
            assert await found_by_ann(hub) == HIDDEN
            await hub.board.operations.approve(["far.work"], by="root")
            await spoke.say("bye")
        await hub.lacks("far.work")
        hub.board.operations.claims._owners.clear()  # as if another hub had freed it
        async with raw(hub) as other:
            await other.join(token="key-a", id="other")
            await other.register(OFFER)
            assert await found_by_ann(hub) == HIDDEN


async def test_a_granted_namespace_needs_no_approval_and_says_so() -> None:
    permits = NamespacePermissions({"bob": ["far"]})
    async with house(permits=permits) as hub, raw(hub) as spoke:
        await join(spoke)
        assert [each.sharing for each in await hub.board.operations.definitions("FAR")] == ["granted"]
        assert await hub.board.operations.definitions("near") == []
        await hub.board.operations.approve(["far.work"], by="root")
        hub.board.set_permissions(NamespacePermissions())
        assert await found_by_ann(hub) == SHOWN


@pytest.mark.parametrize("kind", ["memory", "store"])
async def test_approvals_are_there_after_a_restart_and_can_be_revoked_while_the_spoke_is_away(
    tmp_path: Path, kind: str
) -> None:
    async with await Store.open(tmp_path) as store:
        pins: PinStore = MemoryPinStore() if kind == "memory" else DefinitionPinRepository(store.database)
        first = Hub(None, pins=pins)
        await first.offer("eve", "shop", stay=True)
        await first.operations.approve(["shop.work"], by="root")
        assert not first.registry.get("shop.work").private
        second = Hub(None, pins=pins)
        [status] = await second.operations.definitions()
        assert (status.id, status.owner, status.offered) == ("shop.work", "eve", False)
        await second.offer("eve", "shop", stay=True)
        assert not second.registry.get("shop.work").private
        third = Hub(None, pins=pins)
        await third.operations.revoke(["shop.work"])
        await third.offer("eve", "shop", stay=True)
        assert third.registry.get("shop.work").private


async def test_an_administrator_approves_over_the_api_and_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    async with serving(tmp_path, keys=True, mcp={"pinned": ["gift.*"]}) as hub:
        ann, root = await key_of(hub, "ann"), await key_of(hub, "root", "admin")
        _, secret = await hub.hub.store.keys.create("bob", scopes=("spoke",))
        command = commands(hub.url, root["authorization"].removeprefix("Bearer "), capsys)
        async with Spoke(gift_registry(), hub=hub.url, key=secret, id="worker"):
            listed = await command("list")
            assert re.search(r"^worker +bob +connected +0 +1$", listed, re.MULTILINE)
            assert re.search(r"^gift.open +bob +its owner +[0-9a-f]{12}$", listed, re.MULTILINE)
            shown = await command("show", "gift.open")
            assert "Unwrap the gift" in shown
            [approval] = re.findall(r"dragoman spokes approve (\S+)", shown)
            for path in ("/api/spokes/operations", "/api/spokes/operations/gift.open"):
                assert (await hub.http.get(path, headers=ann)).status_code == 403
            for path in ("/api/spokes/approve", "/api/spokes/revoke"):
                body = {"operations": ["gift.open"]}
                assert (await hub.http.post(path, headers=ann, json=body)).status_code == 403
                refused = await hub.http.post(path, headers=root, json={"operations": "all"})
                assert refused.status_code == 400
            assert await pages(hub, ann) == [""] * 4
            wrong = "gift.open@ffffffffffff"
            assert "has changed" in await command("approve", wrong)
            assert await command("approve", approval) == "approved: gift.open\n"
            assert await pages(hub, ann) == ["gift"] * 4
            assert "all owners, approved" in await command("list", "--namespace", "gift")
            assert await command("revoke", "gift.open") == "revoked: gift.open\n"
            assert await pages(hub, ann) == [""] * 4
            assert await command("free", "gift") == "freed gift\n"
            assert "gift" not in await command("list")


def commands(url: str, key: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs `dragoman spokes` in a thread; what it prints, to both streams."""

    async def command(*arguments: str) -> str:
        whole = ["spokes", *arguments, "--hub", url, "--key", key]

        def work() -> None:
            with pytest.raises(SystemExit):
                main(whole)

        await asyncio.to_thread(work)
        printed = capsys.readouterr()
        return printed.out + printed.err

    return command


async def test_its_own_owner_calls_an_operation_whatever_is_approved() -> None:
    async with house() as hub, raw(hub) as spoke:
        await join(spoke)
        for _ in range(2):
            calling = asyncio.ensure_future(call(hub, BOB, "far.work"))
            frame = await spoke.hear("call")
            await spoke.say("result", id=frame["id"], result=1)
            assert (await calling).result == 1
            await hub.board.operations.approve(["far.work"], by="root")
