"""What operations of spokes publish: events of the session, and data parts of the answer that calls them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.operations import Context, Registry, current, operation
from dragoman.spokes import Spoke
from dragoman.spokes.hub.server import SpokeServer
from dragoman.spokes.protocol import WelcomeFrame
from tests.doors.state_operation import ask, clear, fill
from tests.serving import serving
from tests.spokes.hubs import House, house
from tests.spokes.test_endpoint import raw
from tests.spokes.test_rights import ANN, BOB, SHARED
from tests.waiting import until

Parts = list[tuple[str, Any]]


@operation("far", effect="once")
async def show(text: str) -> str:
    """Put a text into the answer."""
    current().publish("state", {"text": text}, in_answer=True)
    return text


@operation("far", effect="once")
async def show_there(text: str) -> Any:
    """Have the hub put a text into the answer."""
    return await current().call("near.put", {"text": text})


@operation("near", effect="once")
async def put(text: str) -> str:
    """Put a text into the answer, at the hub."""
    current().publish("state", {"text": text}, in_answer=True)
    return text


@operation("far", effect="once")
async def flood() -> str:
    """Publish more parts than an answer takes."""
    for number in range(21):
        current().publish(f"part-{number}", {"n": number}, in_answer=True)
    return "all"


async def test_operations_of_a_spoke_put_data_into_the_answer_and_events_into_its_session(
    tmp_path: Path,
) -> None:
    calls: list[tuple[str, Any]] = [("fill", {"count": 3}), ("clear", {}), ("ask", {})]
    inputs: list[dict[str, Any]] = [{"tool": f"board.{name}", "input": input} for name, input in calls]
    steps = [{"tools": [{"name": "hub_call", "input": {"calls": [call]}}]} for call in inputs]
    async with serving(tmp_path, [*steps, {"text": "Done."}]) as hub:
        async with Spoke(Registry(fill, clear, ask), hub=hub.url) as spoke:
            await spoke.ready()
            frames = await hub.chat("go")
        shown = [frame["data"] for frame in frames if frame["type"] == "data-state"]
        assert (shown[-2:], "data-question" in {frame["type"] for frame in frames}) == (
            [{"cards": 3, "of": 3}, {"cards": 0}],
            False,
        )
        parts = (await hub.messages())[-1]["parts"]
        states = [part for part in parts if part["type"] == "data-state"]
        assert [part["data"] for part in states] == [{"cards": 0}]
        assert "the hub writes the data part 'question' itself" in str(parts)
        stored = await hub.hub.store.database.read(
            lambda connection: connection.fetch_all(
                "SELECT data FROM hub_events WHERE name = 'data-state' ORDER BY id", {}
            )
        )
        assert [row[0] for row in stored] == [
            *(f'{{"cards":{done},"of":3}}' for done in (1, 2, 3)),
            '{"cards":0}',
        ]


async def collect(hub: House, operation: str, parts: Parts, identity: Any = BOB, **input: Any) -> Any:
    context = Context(identity=identity, on_data=lambda name, value: parts.append((name, value)))
    return await hub.calls.call(operation, input, context=context)


async def test_a_spoke_puts_nothing_into_the_answer_of_another_owner_also_through_the_hub() -> None:
    async with (
        house(put, permits=SHARED) as hub,
        Spoke(Registry(show, show_there), hub=hub.url, key="key-b") as spoke,
    ):
        await spoke.ready()
        for name in ("far.show", "far.show_there"):
            foreign: Parts = []
            assert (await collect(hub, name, foreign, ANN, text="a")).result == "a"
            assert foreign == []
            own: Parts = []
            assert (await collect(hub, name, own, text="b")).result == "b"
            assert own == [("state", {"text": "b"})]


async def test_a_call_has_a_bounded_number_of_parts() -> None:
    async with house() as hub, Spoke(Registry(flood), hub=hub.url, key="key-b") as spoke:
        await spoke.ready()
        parts: Parts = []
        outcome = await collect(hub, "far.flood", parts)
        assert outcome.error is not None
        assert outcome.error.code == "too_large"
        assert len(parts) == 20


async def test_what_belongs_to_no_call_under_way_is_nothing_and_what_is_wrong_fails_alone() -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.join(token="key-b")
        parts: Parts = []
        calling = asyncio.create_task(collect(hub, "raw.work", parts, text="x"))
        id = (await spoke.hear("call"))["id"]
        place = {"id": id, "inAnswer": True}
        await spoke.say("publish", **{**place, "id": "at_other"}, name="state", data={"n": 0})
        await spoke.say("publish", **place, name="question", data={"n": 1})
        await spoke.say("publish", **place, name="state", data=[2])
        await spoke.say("publish", **place, name="x" * 65, data={"n": 3})
        await spoke.say("publish", **place, name="state", data={"n": 4})
        await spoke.say("result", id=id, result="done")
        await spoke.say("publish", **place, name="state", data={"n": 5})
        assert (await calling).result == "done"
        await spoke.say("ping", n=7)
        await spoke.hear("pong")
        assert parts == [("state", {"n": 4})]


async def test_the_newest_part_is_sent_again_when_the_connection_was_lost() -> None:
    begun, away, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @operation("far", effect="once")
    async def slow() -> str:
        """Publish before, while and after the hub is away."""
        current().publish("state", {"n": 1}, in_answer=True)
        begun.set()
        await away.wait()
        current().publish("state", {"n": 2}, in_answer=True)
        await released.wait()
        return "done"

    async with house() as hub, Spoke(Registry(slow), hub=hub.url, key="key-b") as spoke:
        await spoke.ready()
        parts: Parts = []
        calling = asyncio.create_task(collect(hub, "far.slow", parts))
        await begun.wait()
        await until(lambda: parts)
        assert spoke._connection is not None
        spoke._connection._socket.transport.abort()
        await until(lambda: spoke._connection is None)
        away.set()
        await until(lambda: parts[-1] == ("state", {"n": 2}))
        released.set()
        assert (await calling).result == "done"


async def test_a_hub_of_an_earlier_version_is_sent_nothing_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    welcome = SpokeServer._welcome_frame

    def earlier(self: SpokeServer, *arguments: Any) -> WelcomeFrame:
        frame = welcome(self, *arguments)
        fields = {name: getattr(frame, name) for name in frame.__struct_fields__ if name != "publishes"}
        return WelcomeFrame(**fields)

    monkeypatch.setattr(SpokeServer, "_welcome_frame", earlier)
    async with house() as hub, Spoke(Registry(show), hub=hub.url, key="key-b") as spoke:
        await spoke.ready()
        parts: Parts = []
        assert (await collect(hub, "far.show", parts, text="a")).result == "a"
        assert parts == []
