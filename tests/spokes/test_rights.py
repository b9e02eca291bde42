"""Rights of spokes: who sees what they register, and what they may call for callers of other owners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import Forbidden, NotFound
from dragoman.identity import Identity
from dragoman.operations import Context, Registry, operation
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.outcome import CallOutcome
from dragoman.spokes import Spoke
from dragoman.spokes.hub.permissions import NamespacePermissions
from tests.serving import Served, serving
from tests.spokes.hubs import House, house
from tests.spokes.test_endpoint import raw

ANN = Identity(owner="ann", key_id="k-ann")
BOB = Identity(owner="bob", key_id="k-bob")
SHARED = NamespacePermissions({"bob": ["far"]})
SPELLINGS = ("far.ask", "FAR.ask", "far_ask", "Far-Ask", "far.Ask")


@operation("far", effect="read")
async def ask(name: str, input: dict[str, Any], context: Context) -> Any:
    """Have the hub call what is named."""
    return await context.call(name, input)


@operation("near", effect="read")
async def whoami(context: Context) -> dict[str, Any]:
    """Tell what is known of the caller."""
    return {"owner": context.identity.owner, "session": context.session_id}


@operation("near", effect="read")
async def double(n: int) -> int:
    """Double a number."""
    return n + n


@operation("near", effect="read", identity_aware=False)
async def trace(context: Context) -> dict[str, Any]:
    """Tell all that the context has of the caller."""
    names = ("run_id", "session_id", "tool_call_id", "agent", "step")
    found = {name: getattr(context, name) for name in names if getattr(context, name) is not None}
    return {**found, "owner": context.identity.owner, "key": context.idempotency_key}


@operation("near", effect="read", identity_aware=False)
async def relay(context: Context) -> Any:
    """Call on, one step further away from the spoke."""
    return await context.call("near.whoami")


@pytest.mark.parametrize(
    ("key", "may"),
    [("key-a", True), ("key-admin", True), ("key-plain", False), ("key-chat", False)],
)
async def test_a_spoke_needs_the_scope_spoke_or_admin(key: str, may: bool) -> None:
    async with house() as hub:
        spoke = Spoke(Registry(ask), hub=hub.url, key=key)
        if may:
            async with spoke:
                assert [each.id for each in hub.registry.list()] == ["far.ask"]
            return
        with pytest.raises(Forbidden, match="scope 'spoke' or 'admin'"):
            await spoke.run()


async def test_what_a_spoke_registers_is_there_for_its_own_owner_only() -> None:
    async with house(double) as hub, Spoke(Registry(ask), hub=hub.url, key="key-b"):
        for spelling in SPELLINGS:
            theirs, unknown = [
                (await call(hub, ANN, name, name="near.double", input={"n": 2})).error
                for name in (spelling, spelling.replace("sk", "sx"))
            ]
            assert theirs is not None
            assert unknown is not None
            assert (theirs.code, theirs.hint) == ("not_found", unknown.hint)
            own = await call(hub, BOB, spelling, name="near.double", input={"n": 2})
            assert own.result == 4
        with pytest.raises(NotFound):
            hub.calls.get_operation("far.ask", Context(identity=ANN))


async def test_a_private_operation_does_not_make_another_s_name_ambiguous() -> None:
    @operation("near-double", name="x", effect="read")
    async def first() -> str:
        """The hub's."""
        return "first"

    @operation("near", name="double-x", effect="read")
    async def second() -> str:
        """The spoke's, of which the name is the same with underscores."""
        return "second"

    async with house(first) as hub, raw(hub) as spoke:
        await spoke.join(token="key-b")
        offer = {"namespace": "near", "name": "double-x", "inputSchema": {"type": "object"}}
        await spoke.register(offer)
        assert (await call(hub, ANN, "near_double_x")).result == "first"


async def test_no_meta_tool_tells_of_a_private_operation() -> None:
    async with house(double) as hub, Spoke(Registry(ask), hub=hub.url, key="key-b"):
        meta = MetaTools(hub.registry, hub.calls)
        for tool, input in (
            ("hub.list", {}),
            ("hub.list", {"namespace": "far"}),
            ("hub.search", {"q": "have the hub call what is named"}),
            ("hub.search", {"q": "far.as"}),
            ("hub.search", {"namespace": "far"}),
            ("hub.schema", {"tool": "far.ask"}),
            ("hub.call", {"calls": [{"tool": "far.ask", "input": {}}]}),
        ):
            shown = await meta.run(tool, input, context=Context(identity=ANN))
            hidden = str(shown).replace(str(input.get("namespace")), "").replace("far.ask", "")
            assert "far" not in hidden, (tool, input, shown)
            assert "Have the hub" not in str(shown)
            own = await meta.run(tool, input, context=Context(identity=BOB))
            assert own.result != shown.result


async def test_no_endpoint_tells_of_a_private_operation(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True, mcp={"pinned": ["gift.*"]}) as hub:
        bob, ann = await key_of(hub, "bob", "spoke", "operations"), await key_of(hub, "ann")
        _, secret = await hub.hub.store.keys.create("bob", scopes=("spoke",))
        async with Spoke(gift_registry(), hub=hub.url, key=secret):
            assert await pages(hub, bob) == ["gift"] * 4
            assert await pages(hub, ann) == [""] * 4
            reply = await hub.http.post("/api/operations/gift.open/call", headers=ann, json={})
            unknown = await hub.http.post("/api/operations/gift.shut/call", headers=ann, json={})
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
            assert reply.text.replace("gift.open", "gift.shut") == unknown.text


async def test_a_namespace_that_is_granted_by_name_is_for_all_owners() -> None:
    async with house(double, permits=SHARED) as hub, Spoke(Registry(ask), hub=hub.url, key="key-b"):
        assert (await call(hub, ANN, "far.ask", name="near.double", input={"n": 4})).result == 8


async def test_a_namespace_that_is_open_to_everybody_is_not_granted_to_anybody() -> None:
    permits = NamespacePermissions({"*": ["far"]})
    async with house(double, permits=permits) as hub, Spoke(Registry(ask), hub=hub.url, key="key-b"):
        error = (await call(hub, ANN, "far.ask", name="near.double", input={"n": 4})).error
        assert error is not None
        assert error.code == "not_found"


@pytest.mark.promise("spoke-lends-no-rights")
@pytest.mark.parametrize("name", ["near.whoami", "near.relay"])
async def test_a_spoke_cannot_call_what_acts_for_a_caller_of_another_owner(name: str) -> None:
    async with house(whoami, relay, permits=SHARED) as hub, Spoke(Registry(ask), hub=hub.url, key="key-b"):
        refused = (await call(hub, ANN, "far.ask", name=name, input={}, session="s-ann")).error
        assert refused is not None
        assert (refused.code, "of another owner" in refused.message) == ("call_denied", True)
        own = await call(hub, BOB, "far.ask", name=name, input={}, session="s-bob")
        assert own.result == {"owner": "bob", "session": "s-bob"}


async def test_history_artifacts_agents_and_questions_act_for_their_caller(tmp_path: Path) -> None:
    agents = {"helper": {"description": "Helps.", "model": "sim/any"}}
    async with serving(tmp_path, agents=agents) as hub:
        registry = hub.hub._services.registry
        acting = {each.id for each in registry.list() if each.identity_aware}
        names = {each.id.partition(".")[0] for each in registry.list()}
        assert {"agents", "artifacts", "history", "user"} <= {id.partition(".")[0] for id in acting}
        assert names - {id.partition(".")[0] for id in acting} == {"math", "time", "web"}


async def test_nothing_of_the_caller_goes_along_to_another_owner_s_spoke() -> None:
    async with house(trace, permits=SHARED) as hub, raw(hub) as spoke:
        await spoke.say("hello", protocol=1, id="raw", token="key-b")
        offer = {"namespace": "far", "name": "work", "inputSchema": {"type": "object"}}
        await spoke.register(offer)
        context = Context(
            identity=ANN,
            run_id="run_secret",
            session_id="s_secret",
            agent="a_secret",
            step=3,
            tool_call_id="t_secret",
            idempotency_key="run_secret:t_secret",
        )
        calling = asyncio.ensure_future(hub.calls.call("far.work", {}, context=context))
        frame = await spoke.hear("call")
        assert "secret" not in str(frame)
        assert frame["owner"] == "ann"
        await spoke.say("subcall", id="s1", parent=frame["id"], operation="near.trace", input={})
        reply = await spoke.hear("result")
        await spoke.say("result", id=frame["id"], result=1)
        await calling
        assert reply["result"]["owner"] == "bob"
        assert set(reply["result"]) == {"owner", "key"}
        assert "secret" not in str(reply)


@pytest.mark.parametrize("identity", ["ann", "bob"])
async def test_a_call_across_owners_has_to_be_allowed_to_both(tmp_path: Path, identity: str) -> None:
    policy = [{"deny": "math", "identity": identity}]
    spokes = {"namespaces": {"bob": "gift"}}
    async with serving(tmp_path, keys=True, policy=policy, spokes=spokes) as hub:
        ann = await key_of(hub, "ann")
        _, secret = await hub.hub.store.keys.create("bob", scopes=("spoke",))
        async with Spoke(gift_registry(), hub=hub.url, key=secret):
            reply = await hub.http.post("/api/operations/gift.open/call", headers=ann, json={})
            assert reply.json()["error"]["code"] in ("call_denied", "not_found")


async def test_neither_owner_s_call_tree_shows_the_other_s_calls(tmp_path: Path) -> None:
    spokes = {"namespaces": {"bob": "gift"}}
    async with serving(tmp_path, keys=True, spokes=spokes) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        root = await key_of(hub, "root", "admin")
        _, secret = await hub.hub.store.keys.create("bob", scopes=("spoke",))
        async with Spoke(gift_registry(), hub=hub.url, key=secret):
            reply = (await hub.http.post("/api/operations/gift.open/call", headers=ann, json={})).json()
        assert reply["result"] == 42
        shown = {
            who: (await hub.http.get(f"/api/calls/{reply['callId']}/tree", headers=key)).text
            for who, key in (("ann", ann), ("bob", bob), ("root", root))
        }
        assert ("math.calculate" in shown["ann"], "math.calculate" in shown["root"]) == (False, True)
        assert '"error"' in shown["bob"]
        [below] = (await hub.http.get("/api/calls", headers=bob)).json()["calls"]
        tree = (await hub.http.get(f"/api/calls/{below['id']}/tree", headers=bob)).json()
        assert (below["name"], tree["path"]) == ("math.calculate", [])


async def test_two_owners_do_not_share_one_operation_even_in_a_namespace_of_both() -> None:
    permits = NamespacePermissions({"bob": ["far"], "local": ["far"]})
    offer = {"namespace": "far", "name": "work", "inputSchema": {"type": "object"}}
    async with house(permits=permits) as hub, raw(hub) as first, raw(hub) as second:
        await first.say("hello", protocol=1, id="first", token="key-b")
        await first.register(offer)
        await second.say("hello", protocol=1, id="second", token="key-a")
        refused = (await second.register(offer))["refused"]
        assert [each["error"]["code"] for each in refused] == ["conflict"]


async def test_a_changed_definition_is_not_run_for_who_saw_the_earlier_one() -> None:
    async with house(permits=SHARED) as hub, raw(hub) as spoke:
        await spoke.say("hello", protocol=1, id="raw", token="key-b")
        offer = {"namespace": "far", "name": "work", "inputSchema": {"type": "object"}}
        await spoke.register({**offer, "description": "Give a flower."})
        seen = hub.registry.get("far.work")
        await spoke.register({**offer, "description": "Take all money."})
        error = (await hub.calls.call(seen, {}, context=Context(identity=ANN))).error
        assert error is not None
        assert (error.code, "changed" in error.message) == ("unavailable", True)


def gift_registry() -> Registry:
    """An operation that has the hub calculate."""

    @operation("gift", name="open")
    async def unwrap(context: Context) -> Any:
        """Unwrap the gift."""
        return await context.call("math.calculate", {"expression": "6 * 7"})

    return Registry(unwrap)


async def call(
    hub: House, identity: Identity, operation: str, *, session: str | None = None, **input: Any
) -> CallOutcome:
    """The outcome of an operation that somebody calls."""
    return await hub.calls.call(operation, input, context=Context(identity=identity, session_id=session))


async def key_of(hub: Served, owner: str, *scopes: str) -> Mapping[str, str]:
    """The headers of somebody with a new key."""
    _, secret = await hub.hub.store.keys.create(owner, scopes=scopes)
    return {"authorization": f"Bearer {secret}"}


async def pages(hub: Served, key: Mapping[str, str]) -> list[str]:
    """Whether each endpoint that shows operations shows the gift."""
    texts = [
        (await hub.http.get(path, headers=key)).text
        for path in ("/api/operations", "/api/operations?q=unwrap+gift")
    ]
    one = await hub.http.get("/api/operations/gift.open", headers=key)
    texts.append(one.text if one.status_code == 200 else "")
    wanted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    listed = await hub.http.post("/mcp", headers={**key, **wanted}, json=message)
    assert "hub_call" in listed.text
    return ["gift" if "Unwrap the gift" in text else "" for text in (*texts, listed.text)]
