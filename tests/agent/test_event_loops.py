"""One agent in many tasks, threads and event loops; runs whose waiters are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragoman import Context, Hooks, operation
from dragoman.agent import run as run_module
from dragoman.agent.agent import Agent
from dragoman.agent.hooks.events import PreModel
from dragoman.agent.run import Run
from dragoman.errors import Conflict
from dragoman.model_request import Tool
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.scripted import ScriptedCall
from tests.agent.scripted import ASK, add, calling, scripted, wait
from tests.providers.servers import Peer, chunk, serving
from tests.waiting import until
from tests.wire.openai_streams import chunk as said
from tests.wire.openai_streams import sse

THREADS = 20
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = chunk(sse(said({"content": "four"}), said({}, finish="stop"))) + b"0\r\n\r\n"
WAITING = calling(ScriptedCall("lab_wait", {}))


@operation(namespace="lab", effect="read")
def double(value: int) -> int:
    """Double a number, in a thread."""
    return 2 * value


async def endless(peer: Peer) -> None:
    """Answer without an end, until the client has gone."""
    await peer.request()
    await peer.send(HEAD + chunk(sse(said({"content": "word "}), done=False)))
    await peer.gone()


async def first_delta(run: Run) -> None:
    async for event in run.events():
        if event.type == "text-delta":
            return


async def test_an_agent_answers_in_twenty_threads_and_in_this_event_loop_at_once() -> None:
    everybody = asyncio.Barrier(THREADS + 1)

    async def talk(peer: Peer) -> None:
        await peer.request()
        await everybody.wait()  # no answer before all requests are there
        await peer.send(HEAD + ANSWER)

    with ThreadPoolExecutor(THREADS) as threads:
        async with serving(talk) as server:
            agent = Agent(OpenAIProvider(base_url=f"{server.url}/v1").model("any"), operations=[add, double])
            loop = asyncio.get_running_loop()
            here = agent.spawn(ASK)
            jobs = [loop.run_in_executor(threads, agent.run_sync, ASK) for _ in range(THREADS)]
            results = [*await asyncio.gather(*jobs), await here.result]
            await agent.cleanup()
    assert [(result.exit_reason, result.text) for result in results] == [("success", "four")] * (THREADS + 1)


async def test_an_agent_calls_tools_in_threads_one_after_the_other_and_at_once() -> None:
    agent = Agent(
        scripted(calling(ScriptedCall("lab_double", {"value": 2})), "four", turns=True), operations=[double]
    )
    with ThreadPoolExecutor(4) as threads:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(threads, agent.run_sync, ASK) for _ in range(12)]
        results = await asyncio.gather(*jobs)
    assert [(result.exit_reason, result.text, result.tool_calls.total) for result in results] == [
        ("success", "four", 1)
    ] * 12


async def test_the_first_to_leave_an_agent_does_not_end_the_runs_of_others() -> None:
    agent = Agent(scripted(WAITING, "never"), operations=[wait])
    async with agent:
        run = agent.spawn(ASK)
        async with agent:
            pass
        await asyncio.sleep(0)
        assert not run.result.done
    assert (await run.result).stopped_by == "the agent is closed"


async def test_a_thread_that_leaves_does_not_end_runs_in_other_event_loops() -> None:
    agent = Agent(scripted(WAITING, "never"), operations=[wait])
    async with agent:
        run = agent.spawn(ASK)

        async def visit() -> None:
            async with agent:
                pass
            await agent.cleanup()

        await asyncio.to_thread(asyncio.run, visit())
        assert not run.result.done


async def await_result(run: Run) -> None:
    await run.result


async def read_events(run: Run) -> None:
    async for _ in run.events():
        pass


async def leave_block(run: Run) -> None:
    async with run:
        await asyncio.Event().wait()


@pytest.mark.parametrize("follow", [await_result, read_events, leave_block])
@pytest.mark.parametrize("cancel", ["task", "wait_for"])
async def test_cancelling_the_last_waiter_closes_the_connection(
    follow: Callable[[Run], Awaitable[None]], cancel: str
) -> None:
    async with serving(endless) as server:
        agent = Agent(OpenAIProvider(base_url=f"{server.url}/v1").model("any"))
        run = agent.spawn(ASK)
        await first_delta(run)
        if cancel == "task":
            waiting = asyncio.ensure_future(follow(run))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(follow(run), 0.01)
        await server.wait_closed(1)
        assert (await run.result).exit_reason == "aborted"


async def test_a_cancelled_agent_run_closes_its_connection() -> None:
    async with serving(endless) as server:
        agent = Agent(OpenAIProvider(base_url=f"{server.url}/v1").model("any"))
        running = asyncio.ensure_future(agent.run(ASK))
        await until(lambda: server.connections)
        running.cancel()
        await server.wait_closed(1)
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_run_goes_on_while_somebody_waits_and_a_detached_one_always() -> None:
    agent = Agent(scripted(WAITING, "never", turns=True), operations=[wait])
    for details, others in (({}, 1), ({"detached": True}, 0)):
        run = agent.spawn(ASK, **details)  # type: ignore[arg-type]
        first = asyncio.ensure_future(await_result(run))
        remaining = [asyncio.ensure_future(await_result(run)) for _ in range(others)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        await asyncio.sleep(0)
        assert not run.result.done
        run.abort()
        await asyncio.gather(*remaining)


async def test_agent_run_connects_runs_and_returns_the_result() -> None:
    result = await Agent(scripted(calling(), "four"), operations=[add]).run(ASK)
    assert (result.exit_reason, result.text) == ("success", "four")


async def test_a_run_can_be_aborted_from_another_thread() -> None:
    run = Agent(scripted(WAITING, "never"), operations=[wait]).spawn(ASK)
    await asyncio.to_thread(run.abort, "stopped elsewhere")
    assert (await run.result).stopped_by == "stopped elsewhere"


async def test_another_event_loop_is_told_to_wait_in_the_runs_own() -> None:
    run = Agent(scripted(WAITING, "never"), operations=[wait]).spawn(ASK)
    for follow in (await_result, read_events):
        with pytest.raises(Conflict, match="belongs to another event loop"):
            await asyncio.to_thread(asyncio.run, follow(run))
    run.abort()
    await run.result
    for follow in (await_result, read_events):  # an ended run is read anywhere
        await asyncio.to_thread(asyncio.run, follow(run))


async def test_the_output_of_a_client_tool_may_come_from_another_thread() -> None:
    tool = Tool("ask_page", "Ask the page.", {"type": "object"})
    agent = Agent(scripted(calling(ScriptedCall("ask_page", {}, id="c1")), "four"), client_tools=[tool])
    run = agent.spawn(ASK)
    async for event in run.events():
        if event.type == "tool-input-available":
            await asyncio.to_thread(run.add_tool_result, "c1", 4)
    assert (await run.result).text == "four"


async def test_an_agent_that_calls_itself_within_its_own_calls_ends() -> None:
    depth = 0

    @operation(namespace="lab", effect="read")
    async def again(context: Context) -> str:
        nonlocal depth
        depth += 1
        return (await agent.run(ASK, context=context)).text

    step = calling(ScriptedCall("lab_again", {}))
    agent = Agent(scripted(*[step] * 6, *["four"] * 6), operations=[again])
    result = await agent.run(ASK)
    assert (result.exit_reason, result.text, depth) == ("success", "four", 6)


@pytest.mark.parametrize("broken", ["make_result", "shared_fields"])
async def test_a_result_is_set_when_reporting_the_end_fails(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(run_module, broken, fail)
    result = await Agent(scripted("hi")).run("hi")
    assert result.exit_reason == "crashed"
    assert "no memory" in result.error.message


async def test_an_agent_that_ends_does_not_end_the_hooks_that_it_shares() -> None:
    hooks, begun, release = Hooks(), list[str](), threading.Event()

    @hooks.pre_model
    def look(event: PreModel) -> None:
        begun.append(event.run_id or "")
        release.wait()

    agent = Agent(scripted(*["four"] * 9, turns=True), hooks=hooks)
    runs = [agent.spawn(ASK) for _ in range(9)]  # one more than there are threads
    try:
        await until(lambda: len(begun) == 8)
        async with Agent(scripted("four"), hooks=hooks):
            pass
    finally:
        release.set()
    assert {(await run.result).exit_reason for run in runs} == {"success"}
