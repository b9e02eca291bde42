"""Calls of a spoke's operations: results, progress, errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import Conflict, Forbidden, NotFound, Unauthorized
from dragoman.operations import Context, Registry, operation
from dragoman.spokes import Capacity, Spoke
from dragoman.spokes.client.handshake import endpoint_url
from dragoman.spokes.hub.permissions import NamespacePermissions
from tests.spokes.hubs import LIMIT, house
from tests.waiting import until


@operation("far", effect="read")
async def greet(name: str, context: Context) -> dict[str, Any]:
    """Greet somebody.

    Args:
        name: Whom.
    """
    context.progress({"half": True})
    return {"said": f"hello {name}", "owner": context.identity.owner, "key": context.idempotency_key}


@operation("far")
def slow(text: str) -> str:
    """A sync function."""
    return text.upper()


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not today")


@operation("far", effect="read")
async def fail(kind: str) -> None:
    """Fail."""
    if kind == "unreadable":
        raise Unreadable
    if kind == "missing":
        raise NotFound("there is no such thing", hint="look elsewhere")
    raise ValueError("broken inside")


@operation("far", effect="read")
async def big(size: int) -> str:
    """Much text."""
    return "é" * size


async def test_an_operation_of_a_spoke_is_called_like_any_other() -> None:
    async with house() as hub, Spoke(Registry(greet, slow), hub=hub.url, key="key-a", name="texts"):
        pending = hub.registry.get("far.greet")
        assert (pending.source, pending.effect, pending.description) == (
            "spoke:texts",
            "read",
            "Greet somebody.",
        )
        assert pending.input_schema["properties"]["name"]["description"] == "Whom."
        heard: list[Any] = []
        outcome = await hub.calls.call(
            "far.greet", {"name": "Eve"}, context=Context(idempotency_key="k1"), on_progress=heard.append
        )
        assert outcome.result == {"said": "hello Eve", "owner": "local", "key": "k1"}
        assert heard == [{"half": True}]
        assert await hub.result("far.slow", {"text": "abc"}) == "ABC"


async def test_wrong_input_and_failures_are_reported_in_the_spoke_s_words() -> None:
    async with house() as hub, Spoke(Registry(greet, fail), hub=hub.url, key="key-a"):
        wrong = await hub.call("far.greet", {"name": 7})
        assert wrong.error is not None
        assert (wrong.error.code, wrong.error.problems[0]["path"]) == ("invalid_input", "name")
        missing = (await hub.call("far.fail", {"kind": "missing"})).error
        assert missing is not None
        assert (missing.code, missing.message, missing.hint) == (
            "not_found",
            "there is no such thing",
            "look elsewhere",
        )
        broken = (await hub.call("far.fail", {"kind": "x"})).error
        assert broken is not None
        assert (broken.code, broken.message) == ("call_failed", "ValueError: broken inside")
        async with asyncio.timeout(LIMIT):
            unreadable = (await hub.call("far.fail", {"kind": "unreadable"})).error
        assert unreadable is not None
        assert unreadable.message == "Unreadable"


async def test_a_result_over_the_size_of_a_frame_comes_in_parts() -> None:
    async with house() as hub, Spoke(Registry(big), hub=hub.url, key="key-a"):
        result = await hub.result("far.big", {"size": 3_000_000})
        assert result == "é" * 3_000_000


async def test_a_result_over_the_size_of_a_message_is_a_clear_error() -> None:
    async with house() as hub, Spoke(Registry(big), hub=hub.url, key="key-a"):
        error = (await hub.call("far.big", {"size": 17_000_000})).error
        assert error is not None
        assert error.code == "too_large"
        assert await hub.result("far.big", {"size": 3}) == "ééé"


async def test_operations_come_and_go_while_the_spoke_is_connected() -> None:
    registry = Registry(greet)
    async with house() as hub, Spoke(registry, hub=hub.url, key="key-a"):
        registry.add(slow)
        await hub.has("far.slow")
        registry.remove("far.greet")
        await hub.lacks("far.greet")
        assert await hub.result("far.slow", {"text": "x"}) == "X"


async def test_a_spoke_that_leaves_takes_its_operations_along_and_ends_what_it_has() -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @operation("far")
    async def work() -> str:
        """Work until told."""
        began.set()
        await go.wait()
        return "done"

    async with house() as hub:
        spoke = Spoke(Registry(work), hub=hub.url, key="key-a")
        async with spoke:
            calling = asyncio.create_task(hub.result("far.work"))
            await began.wait()
            closing = asyncio.create_task(spoke.close())
            await hub.lacks("far.work")
            go.set()
            assert await calling == "done"
            await closing
        await until(lambda: hub.board.status() == [])


async def test_a_call_from_a_spoke_to_the_hub_is_below_the_call_that_made_it() -> None:
    @operation("near", effect="read")
    async def add(a: int, b: int, context: Context) -> int:
        """Add."""
        context.progress("adding")
        return a + b

    heard: list[Any] = []

    @operation("far")
    async def twice(n: int, context: Context) -> int:
        """Double by way of the hub."""
        return int(await context.call("near.add", {"a": n, "b": n}, on_progress=heard.append))

    async with house(add) as hub, Spoke(Registry(twice), hub=hub.url, key="key-a"):
        outcome = await hub.call("far.twice", {"n": 21})
        assert outcome.unwrap() == 42
        assert heard == ["adding"]
        (below,) = hub.ledger.children(outcome.call_id)
        assert (below.record.operation, below.status) == ("near.add", "done")


async def test_what_a_call_of_the_hub_fails_with_reaches_the_spoke() -> None:
    caught: list[Exception] = []

    @operation("far")
    async def ask(name: str, context: Context) -> None:
        """Call what is named."""
        try:
            await context.call(name, {"x": 1})
        except Exception as error:  # to be looked at
            caught.append(error)
            raise

    @operation("near")
    async def refuse(x: str) -> None:
        """Takes text."""

    async with house(refuse) as hub, Spoke(Registry(ask), hub=hub.url, key="key-a"):
        missing = (await hub.call("far.ask", {"name": "near.nothing"})).error
        wrong = (await hub.call("far.ask", {"name": "near.refuse"})).error
        assert missing is not None
        assert wrong is not None
        assert (missing.code, wrong.code) == ("not_found", "invalid_input")
        assert len(caught) == 2


async def test_spokes_that_call_one_another_do_not_block_at_a_full_window() -> None:
    @operation("far")
    async def outer(context: Context) -> str:
        """Call inner by way of the hub."""
        return str(await context.call("hubs.relay"))

    @operation("far")
    async def inner() -> str:
        """The innermost."""
        return "deep"

    @operation("hubs")
    async def relay(context: Context) -> Any:
        """Go back to the spoke."""
        return await context.call("far.inner")

    capacity = Capacity(window=1)
    async with (
        house(relay) as hub,
        Spoke(Registry(outer, inner), hub=hub.url, key="key-a", capacity=capacity),
    ):
        assert await hub.result("far.outer") == "deep"


async def test_what_a_spoke_spends_is_the_tree_s() -> None:
    @operation("far")
    async def pay(context: Context) -> str:
        """Cost something."""
        context.spend(0.25)
        return "paid"

    async with house() as hub, Spoke(Registry(pay), hub=hub.url, key="key-a"):
        outcome = await hub.call("far.pay")
        assert hub.ledger.get(outcome.call_id).cost == 0.25


@pytest.mark.parametrize(
    ("key", "error"), [("key-x", Unauthorized), (None, Unauthorized), ("key-chat", Forbidden)]
)
async def test_a_key_that_is_not_good_for_operations_is_refused(
    key: str | None, error: type[Exception]
) -> None:
    async with house() as hub:
        with pytest.raises(error):
            await Spoke(Registry(greet), hub=hub.url, key=key).run()


async def test_a_key_that_is_revoked_ends_the_connection() -> None:
    async with house() as hub:
        spoke = Spoke(Registry(greet), hub=hub.url, key="key-a")
        running = asyncio.create_task(spoke.run())
        await hub.has("far.greet")
        del hub.keys["key-a"]
        with pytest.raises(Unauthorized):
            await running


async def test_only_granted_namespaces_are_taken() -> None:
    permits = NamespacePermissions({"bob": ["bob-*"]}, reserved=["kept"])
    async with house(greet, permits=permits) as hub:

        @operation("kept")
        async def stored() -> None:
            """In a reserved namespace."""

        @operation("bob-tools")
        async def tools() -> None:
            """In a namespace of bob's."""

        for function in (slow, stored, tools):
            with pytest.raises(Forbidden):
                await Spoke(Registry(function), hub=hub.url, key="key-a").run()
        async with Spoke(Registry(tools), hub=hub.url, key="key-b"):
            assert hub.registry.get("bob-tools.tools").source.startswith("spoke:")


async def test_the_namespace_of_another_owner_s_spoke_is_taken() -> None:
    async with house() as hub, Spoke(Registry(greet), hub=hub.url, key="key-a"):
        with pytest.raises(Forbidden):
            await Spoke(Registry(slow), hub=hub.url, key="key-b").run()


async def test_a_differing_operation_of_the_same_name_is_refused_and_the_rest_taken() -> None:
    @operation("far", name="greet", effect="read")
    async def other(name: int) -> None:
        """Another."""

    async with (
        house() as hub,
        Spoke(Registry(greet), hub=hub.url, key="key-a"),
        Spoke(Registry(other, slow), hub=hub.url, key="key-a") as second,
    ):
        assert list(second.refused) == ["far.greet"]
        assert second.refused["far.greet"].code == "conflict"
        assert await hub.result("far.slow", {"text": "ok"}) == "OK"


async def test_the_id_of_another_owner_s_spoke_is_taken() -> None:
    async with house() as hub, Spoke(Registry(greet), hub=hub.url, key="key-a", id="one"):
        with pytest.raises(Conflict):
            await Spoke(Registry(slow), hub=hub.url, key="key-b", id="one").run()


async def test_the_newer_of_two_connections_with_one_id_takes_over() -> None:
    async with house() as hub:
        first = asyncio.create_task(Spoke(Registry(greet), hub=hub.url, key="key-a", id="one").run())
        await hub.has("far.greet")
        async with Spoke(Registry(greet, slow), hub=hub.url, key="key-a", id="one"):
            with pytest.raises(Conflict):
                await first
            assert await hub.result("far.slow", {"text": "new"}) == "NEW"
            assert len(hub.board.status()) == 1


async def test_spokes_share_the_calls_of_an_operation() -> None:
    served: list[str] = []
    go = asyncio.Event()

    def made(name: str) -> Registry:
        @operation("far", name="work", effect="read")
        async def work() -> str:
            """Work."""
            served.append(name)
            await go.wait()
            return name

        return Registry(work)

    async with (
        house() as hub,
        Spoke(made("a"), hub=hub.url, key="key-a", name="a"),
        Spoke(made("b"), hub=hub.url, key="key-a", name="b"),
    ):
        calls = [asyncio.create_task(hub.result("far.work")) for _ in range(10)]
        await until(lambda: len(served) == 10)
        assert sorted(served) == ["a"] * 5 + ["b"] * 5
        go.set()
        await asyncio.gather(*calls)


async def test_an_operation_stays_as_long_as_one_spoke_serves_it() -> None:
    async with house() as hub, Spoke(Registry(slow), hub=hub.url, key="key-a", name="b"):
        async with Spoke(Registry(slow), hub=hub.url, key="key-a", name="a"):
            assert hub.registry.get("far.slow").source == "spoke:b"
        await until(lambda: len(hub.board.status()) == 1)
        assert await hub.result("far.slow", {"text": "still"}) == "STILL"
    assert hub.registry.list() == ()


def test_a_spoke_that_was_closed_can_be_opened_again_also_in_another_loop() -> None:
    registry = Registry(greet)

    async def serve(spoke: Spoke | None) -> Spoke:
        async with house() as hub:
            spoke = spoke or Spoke(registry, hub=hub.url, key="key-a")
            spoke.url = endpoint_url(hub.url)
            for _ in range(2):
                async with spoke:
                    assert (await hub.result("far.greet", {"name": "you"}))["said"] == "hello you"
                    with pytest.raises(Conflict, match="serves already"):
                        await spoke.__aenter__()
                await hub.lacks("far.greet")
        return spoke

    asyncio.run(serve(asyncio.run(serve(None))))
