"""Automatic and manual mode."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dragoman import Agent, Context, Tool, operation, tool_called, truncate_messages
from dragoman import events as e
from tests.parity.upstream import call, openai_model, text


class Kitchen:
    """An operation that is busy until it is told to end."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.cancelled = False

    def operations(self) -> list[Any]:
        @operation(namespace="kitchen")
        async def cook(dish: str, context: Context) -> str:
            """Cook a dish."""
            context.progress(f"cooking {dish}")
            try:
                await self.done.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return f"{dish} is ready"

        return [cook]


COOKS = call("kitchen_cook", {"dish": "soup"})


async def test_in_automatic_mode_a_call_is_seen_to_run_before_its_result_is_there() -> None:
    kitchen = Kitchen()
    cards: list[tuple[str, Any]] = []
    async with openai_model(COOKS, text("Soup", " is ready.")) as (_, model):
        run = Agent(model, operations=kitchen.operations()).spawn("Cook!")
        async for event in run.events():
            if isinstance(event, e.ToolInputAvailable):
                cards.append(("pending", event.input))
            elif isinstance(event, e.ToolOutputAvailable) and event.preliminary:
                cards.append(("pending", event.output))
                kitchen.done.set()  # nothing ends the call before it was seen
            elif isinstance(event, e.ToolOutputAvailable):
                cards.append(("done", event.output))
    assert cards == [
        ("pending", {"dish": "soup"}),
        ("pending", "cooking soup"),
        ("done", "soup is ready"),
    ]


async def test_the_answer_so_far_is_there_at_any_moment_with_the_state_of_each_part() -> None:
    kitchen = Kitchen()
    async with openai_model(COOKS, text("Ready.")) as (_, model):
        run = Agent(model, operations=kitchen.operations()).spawn("Cook!")
        async for event in run.events():
            if isinstance(event, e.ToolOutputAvailable) and event.preliminary:
                card: Any = run.message.parts[-1]
                assert (card.type, card.preliminary) == ("tool-kitchen_cook", True)
                kitchen.done.set()
        states = [(part.type, getattr(part, "state", None)) for part in (await run.result).messages[-1].parts]
    assert states == [
        ("step-start", None),
        ("tool-kitchen_cook", "output-available"),
        ("step-start", None),
        ("text", "done"),
    ]


async def test_in_manual_mode_each_call_is_handed_out_and_its_result_handed_in() -> None:
    schema = {"type": "object", "properties": {"room": {"type": "string"}}}
    async with openai_model(call("read_sensor", {"room": "attic"}), text("Warm.")) as (up, model):
        run = Agent(model, client_tools=[Tool("read_sensor", "Read it.", schema)]).spawn("How warm?")
        async for event in run.events():
            if isinstance(event, e.ToolInputAvailable):
                assert len(up.received) == 1  # the loop waits
                run.add_tool_result(event.tool_call_id, {"degrees": 21.5})
        assert (await run.result).text == "Warm."
    assert up.bodies[1]["messages"][-1]["content"] == '{"degrees":21.5}'


async def test_in_manual_mode_operations_are_not_run_and_a_failure_can_be_handed_in() -> None:
    kitchen = Kitchen()
    async with openai_model(COOKS, text("Sorry.")) as (up, model):
        run = Agent(model, operations=kitchen.operations(), manual=True).spawn("Cook!")
        async for event in run.events():
            if isinstance(event, e.ToolInputAvailable):
                run.add_tool_result(event.tool_call_id, error="the stove is cold")
        assert (await run.result).exit_reason == "success"
    assert "the stove is cold" in up.bodies[1]["messages"][-1]["content"]


async def test_events_go_to_a_front_end_as_json_by_their_names() -> None:
    kitchen = Kitchen()
    kitchen.done.set()
    async with openai_model(COOKS, text("Ready.")) as (_, model):
        run = Agent(model, operations=kitchen.operations()).spawn("Cook!")
        channel = [msgspec.json.encode(event) async for event in run.events()]
    received = [msgspec.json.decode(line) for line in channel]
    assert [each["type"] for each in received][:2] == ["start", "start-step"]
    [card] = [each for each in received if each["type"] == "tool-input-available"]
    assert card["input"] == {"dish": "soup"}
    [done] = [
        each for each in received if each["type"] == "tool-output-available" and not each.get("preliminary")
    ]
    assert (done["toolCallId"], done["output"]) == (card["toolCallId"], "soup is ready")
    assert received[-1]["type"] == "finish"


async def test_an_interrupt_drops_the_connection_and_not_only_what_is_read() -> None:
    async with openai_model(text("I", " think", endless=True)) as (up, model):
        run = Agent(model).spawn("Think.")
        async for event in run.events():
            if isinstance(event, e.TextDelta):
                run.abort()
        async with asyncio.timeout(120):
            await up.left.wait()  # nothing more was sent, and yet it is gone
        assert (await run.result).exit_reason == "aborted"


async def test_an_interrupt_cancels_the_call_that_runs_and_the_talk_can_go_on() -> None:
    kitchen = Kitchen()
    async with openai_model(COOKS, text("All right.")) as (up, model):
        agent = Agent(model, operations=kitchen.operations())
        run = agent.spawn("Cook!")
        async for event in run.events():
            if isinstance(event, e.ToolOutputAvailable) and event.preliminary:
                run.abort("no soup today")
        first = await run.result
        assert (first.exit_reason, kitchen.cancelled) == ("aborted", True)
        second = await agent.spawn([*first.messages, {"role": "user", "content": "Leave it."}]).result
        assert second.exit_reason == "success"
    tool_messages = [each for each in up.bodies[1]["messages"] if each["role"] == "tool"]
    assert [each["tool_call_id"] for each in tool_messages] == ["call_1"]
    assert "no soup today" in tool_messages[0]["content"]


async def test_a_loop_ends_with_the_tool_that_ends_it() -> None:
    kitchen = Kitchen()
    kitchen.done.set()
    async with openai_model(COOKS) as (up, model):
        agent = Agent(model, operations=kitchen.operations(), stop_when=tool_called("kitchen.cook"))
        result = await agent.spawn("Cook!").result
    assert (result.exit_reason, len(up.received)) == ("success", 1)
    assert result.messages[-1].tool_calls[-1].name == "kitchen_cook"


async def test_the_history_is_yours_to_edit() -> None:
    kitchen = Kitchen()
    kitchen.done.set()
    async with openai_model(COOKS, text("Ready."), text("Yes.")) as (up, model):
        agent = Agent(model, operations=kitchen.operations())
        first = await agent.spawn("Cook!").result
        history: list[Any] = list(first.messages)
        history[0] = {"role": "user", "content": "Cook soup, please!"}
        history.append({"role": "user", "content": "Is it hot?"})
        await agent.spawn(history).result
        await agent.spawn(truncate_messages(history, 1)).result
    edited, cut = [each["messages"] for each in up.bodies[-2:]]
    assert [each["role"] for each in edited] == ["user", "assistant", "tool", "assistant", "user"]
    assert edited[0]["content"] == "Cook soup, please!"
    assert cut == [{"role": "user", "content": "Is it hot?"}]
