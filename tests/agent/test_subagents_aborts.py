"""Aborts, deadlines and budgets reach sub-agents at any depth."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from dragoman import Agent, Context, ScriptedModel, operation
from dragoman import events as e
from dragoman.accounts.price_lookup import PriceOverride
from dragoman.agent.settings import RunLimits
from dragoman.events import Usage
from dragoman.fold import Fold
from dragoman.messages import ToolPart
from dragoman.operations import Calls, Operation, Registry
from dragoman.operations.budget import Budget
from dragoman.operations.ledger import MemoryLedger
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.scripted import ScriptedCall, Step
from tests.agent.scripted import PRICES, add, wait
from tests.agent.team import TASK, driven, lead, outputs, outputs_in, worker
from tests.agent.test_aborts import HEAD, check_valid, tasks
from tests.effort import rounds
from tests.loop_clock import LoopClock
from tests.providers.servers import Peer, chunk, serving
from tests.wire.openai_streams import chunk as said
from tests.wire.openai_streams import sse

ABORTS = rounds(quick=40, thorough=100)  # of each of five
TURNS = 60  # of the event loop; the lowest agent talks after some 20
DEAR = Usage(input_tokens=15, output_tokens=1_000)
RESERVED = 1_024 * 10e-6  # dollars that an answer of unknown length is reserved for


class Line:
    """A server of models that talk without an end, once they have no tool of the kind to call."""

    def __init__(self) -> None:
        self.open = 0
        self.opened = 0
        self._change = asyncio.Event()

    async def serve(self, peer: Peer) -> None:
        while True:
            body = (await peer.request()).body
            name = next((name for name in ("agents_worker", "agents_clerk") if name.encode() in body), None)
            if name is None:
                await self._talk(peer)
                return
            call = {"index": 0, "id": "c1", "function": {"name": name, "arguments": '{"prompt": "Do it."}'}}
            stream = sse(said({"tool_calls": [call]}), said(finish="tool_calls"))
            await peer.send(HEAD + chunk(stream) + b"0\r\n\r\n")

    async def _talk(self, peer: Peer) -> None:
        self.open += 1
        self.opened += 1
        self._change.set()
        leaving = asyncio.ensure_future(peer.gone())
        try:
            await peer.send(HEAD)
            while not leaving.done():
                await peer.send(chunk(sse(said({"content": "word "}), done=False)))
                await asyncio.wait([leaving], timeout=0.001)
        finally:
            leaving.cancel()
            self.open -= 1
            self._change.set()

    async def opened_after(self, count: int) -> None:
        """Return when more than `count` have begun to listen."""
        while self.opened <= count:
            self._change.clear()
            await self._change.wait()

    async def closed(self) -> None:
        """Return when nobody listens any more."""
        while self.open:
            self._change.clear()
            await self._change.wait()


def team(url: str, *, deep: bool) -> Agent[Any]:
    """An agent with a worker, which has a clerk if it is to be deep."""
    model = OpenAIProvider(base_url=f"{url}/v1").model("any")
    prices = {"*": PriceOverride(input=1, output=1)}
    clerk = Agent(model, name="clerk", prices=prices).as_operation("Writes.")
    helper = Agent(model, name="worker", prices=prices, operations=[clerk] if deep else [])
    return Agent(model, name="lead", prices=prices, operations=[helper.as_operation("Works.")])


@pytest.mark.promise("an-abort-reaches-sub-agents")
@pytest.mark.parametrize("seed", range(5))
async def test_an_abort_at_any_moment_closes_the_sockets_of_agents_below(seed: int) -> None:
    chance, line, clock = random.Random(seed), Line(), LoopClock()
    async with serving(line.serve) as server:
        before = tasks()
        for number in range(ABORTS):
            budget, before_it = Budget(usd=1_000), line.opened
            run = team(server.url, deep=seed % 2 == 1).spawn("Go.", context=Context(budget=budget))
            if number % 2:  # every other one is aborted while it talks
                await line.opened_after(before_it)
            for _ in range(chance.randint(0, TURNS)):
                await asyncio.sleep(0)
            with clock.stopped():  # nothing waits for a time
                run.abort()
                result = await run.result
                await run.wait_closed()
                left = {task for task in tasks() - before if "tests/" not in repr(task)}
                await line.closed()
            assert (result.exit_reason, left, budget.reserved) == ("aborted", set(), 0)
            check_valid(result.messages)
        assert line.opened > ABORTS / 5, "most of them were talking"


async def test_a_call_from_a_program_that_is_given_up_stops_the_agent() -> None:
    helper, model = worker([("lab_wait", {})], operations=[wait])
    async with Calls(Registry(helper), MemoryLedger()) as calls:
        begun = asyncio.Event()
        calling = asyncio.ensure_future(
            calls.call(
                "agents.worker",
                {"prompt": "Wait."},
                context=Context(),
                on_progress=lambda _: begun.set(),
            )
        )
        await begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert len(model.requests) <= 1


async def test_the_deadline_of_the_run_ends_those_below() -> None:
    helper, _ = worker([("lab_wait", {})], operations=[wait])
    agent, _ = lead([TASK], operations=[helper], limits=RunLimits(timeout=0.1))
    async with agent:
        events, result = await driven(agent.spawn("Wait."))
    assert (result.exit_reason, outputs_in(events)) == ("aborted", [])
    check_valid(result.messages)


async def test_an_agents_own_deadline_ends_only_that() -> None:
    helper, _ = worker([("lab_wait", {})], operations=[wait], limits=RunLimits(timeout=0.1))
    agent, model = lead([TASK], "Well.", operations=[helper])
    async with agent:
        _, result = await driven(agent.spawn("Wait."))
    assert result.exit_reason == "success"
    assert outputs(model.requests[1]) == ["agents.worker timed out: it did not end by its deadline."]


def spenders(count: int, *, seed: int) -> tuple[list[Operation], list[ScriptedModel]]:
    """Agents each of which takes some time, and spends something like a cent."""
    chance, made, models = random.Random(seed), list[Operation](), list[ScriptedModel]()
    for number in range(count):
        used = Usage(input_tokens=15, output_tokens=chance.randint(1, 1_000))
        step = Step(text="word " * 10, usage=used, delay=chance.uniform(0, 0.02))
        made_one, model = worker(step, name=f"w{number}", prices=PRICES)
        made.append(made_one)
        models.append(model)
    return made, models


@pytest.mark.promise("a-budget-is-never-overdrawn")
@pytest.mark.parametrize("seed", range(4))
async def test_fifty_agents_of_one_step_never_overspend_the_budget_of_the_run(seed: int) -> None:
    made, models = spenders(50, seed=seed)
    calls = [(f"agents_w{number}", {"prompt": "Spend."}) for number in range(50)]
    budget = Budget(usd=0.2)
    agent, _ = lead(calls, "Done.", operations=made, prices=PRICES)
    async with agent:
        run = agent.spawn("Go.", context=Context(budget=budget))
        await driven(run)
        result = await run.result
    spent = [len(model.requests) for model in models]
    assert 15 <= sum(spent) < 50
    assert budget.spent <= 0.2 + RESERVED
    assert budget.reserved == pytest.approx(0)
    calls_made = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    failed = [part.error_text or "" for part in calls_made if part.state == "output-error"]
    assert len(failed) == 50 - sum(spent)
    assert all("did not finish: The budget of 0.2 USD has" in text for text in failed)


async def test_an_agent_below_that_is_aborted_pays_and_gives_back_the_rest() -> None:
    budget = Budget(usd=1)
    helper, _ = worker(Step(text=["word " * 20] * 100, delay=0.01), prices=PRICES)
    agent, _ = lead([TASK], operations=[helper], prices=PRICES)
    run = agent.spawn("Go.", context=Context(budget=budget))
    async for event in run.events():
        if isinstance(event, e.ToolOutputAvailable) and len(event.output["parts"]) > 1:
            run.abort()
    await run.result
    assert (budget.reserved, budget.spent > 0) == (0, True)


async def test_what_an_agent_costs_stands_at_its_call_also_over_a_wait() -> None:
    @operation(namespace="lab", approval=True)
    async def do() -> str:
        """Do it."""
        return "done"

    steps = [Step(tools=[ScriptedCall("lab_do")], usage=DEAR), Step(text="Over.", usage=DEAR)]
    helper, _ = worker(*steps, operations=[do], prices=PRICES)
    ledger = MemoryLedger()
    async with Calls(Registry(helper), ledger) as calls:
        waiting = await calls.call("agents.worker", {"prompt": "x"}, context=Context())
        await calls.answer_approval(waiting.approval_id or "", approved=True, by=Context().identity)
        done = await calls.call("agents.worker", {"prompt": "x"}, context=Context())
    assert done.ok
    assert ledger.get(done.call_id).cost == pytest.approx(2 * (15e-6 + 1_000 * 10e-6))


async def test_what_is_shown_of_an_agent_that_does_much_stays_small() -> None:
    @operation(namespace="lab", effect="read")
    async def pile(number: int) -> str:
        """Give much."""
        return f"{number}" + "x" * 5_000

    text = ["word " * 50] * 4_000  # a million characters
    steps = [[("lab_pile", {"number": at * 20 + n}) for n in range(20)] for at in range(10)]
    helper, _ = worker(*steps, Step(text=text, delay=0.0), operations=[pile])
    agent, _ = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Go."))
    shown = [event for event in events if isinstance(event, e.ToolOutputAvailable) and event.preliminary]
    sizes = [len(msgspec.json.encode(event.output)) for event in shown]
    assert (result.exit_reason, outputs_in(events)[0]["size"]) == ("success", 1_000_000)
    assert max(sizes) < 20_000
    assert len(sizes) < 25 + 4 * result.duration


async def test_the_grammar_of_events_holds_at_each_moment() -> None:
    helper, _ = worker([("math_add", {"a": 1, "b": 1})], "Over.", operations=[add])
    agent, _ = lead([TASK, ("math_add", {"a": 1, "b": 1})], "Done.", operations=[helper, add])
    fold = Fold()
    async with agent:
        run = agent.spawn("Go.")
        async for event in run.events():
            fold.add([event])
    assert fold.phase == "finished"
