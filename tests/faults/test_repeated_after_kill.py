"""A request that is sent again after a kill at any commit gets its run, or its stored answer, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.effort import rounds
from tests.faults.commits import Copies
from tests.faults.test_run_commits import batch, call, configure, effects
from tests.runners.wire_runner import Turn, WireRunner, connected, new_session
from tests.serving import Served, ask, frames_in, hub_of, serving, text_of
from tests.waiting import LIMIT

pytestmark = pytest.mark.anyio
KILLS = rounds(quick=4, thorough=1_000)
SESSIONS = "select 1 from sessions"
WORDS = ["So ", "it ", "is."]
STEPS: list[dict[str, Any]] = [
    {"reasoning": WORDS, "text": WORDS, "tools": [call("effects_put", word="one")]},
    {"tools": [batch(("effects.put", "two"), ("effects.look", "three"))]},
    {"text": WORDS},
]
BODY = ask("go")
RUNNERS: Any = {"runners": {"grace": 60.0}, "disconnect_grace": "never"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def spread(copies: Sequence[Path]) -> Iterator[tuple[int, Path]]:
    """Some of the copies, with their numbers: the first, the last, and others between them."""
    step = max(1, len(copies) // KILLS)
    yield from ((at, copy) for at, copy in enumerate(copies) if at % step == 0 or at + 1 == len(copies))


async def post_again(hub: Served) -> str:
    """Post the request once more; the text of its answer, which has to end."""
    async with asyncio.timeout(LIMIT):
        response = await hub.http.post("/api/sessions/s/chat", json=BODY)
    assert response.status_code == 200, response.text
    frames = frames_in(response.text)
    assert frames[-1]["type"] == "finish"
    return text_of(frames)


async def check_once(hub: Served) -> None:
    """The message was answered once, by one run that has ended."""
    assert [message["role"] for message in await hub.messages()] == ["user", "assistant"]
    assert [run.status for run in await hub.runs()] == ["finished"]


async def test_the_hubs_agent_answers_a_request_that_is_sent_again_after_a_kill_at_any_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "effects"
    monkeypatch.setenv("EFFECTS", str(done))
    config = configure(tmp_path, STEPS)
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once=SESSIONS, beside=done)
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            expected = text_of(await hub.post(BODY))
    assert len(copies.taken) > 5
    for _, data in spread(copies.taken):
        monkeypatch.setenv("EFFECTS", str(data / "effects"))
        async with hub_of(config, data) as hub:
            assert await post_again(hub) == expected, data
            await check_once(hub)
        keys = {(word, key) for kind, word, key in effects(data / "effects") if kind == "idempotent"}
        assert Counter(word for word, _ in keys) == {"one": 1, "two": 1}


def make_turn(runner: WireRunner, place: Mapping[str, Any]) -> Turn:
    """A turn with all its frames, none of which is sent."""
    turn = Turn(runner, {"sessionId": "s", "turnId": place["turnId"]})
    turn.frame("message.create")
    turn.frame("message.part.text-delta", delta="one ")
    for number in range(3):
        tool = {"callId": f"c{number}", "toolName": "bash"}
        turn.frame("message.part.tool-update", **tool, status="running", args={"n": number})
        turn.frame("message.part.tool-update", **tool, status="completed", result=number)
    turn.frame("message.part.text-delta", delta="two")
    turn.frame("message.finalize", reason="end_turn")
    return turn


async def answer_slowly(runner: WireRunner) -> None:
    """Answer a turn frame by frame, each when the one before it is stored."""
    turn = make_turn(runner, (await runner.prompt()).prompt)
    for frame in turn.sent:
        await runner.send(frame)
        await runner.acknowledged(frame["seq"])


async def answer_rest(runner: WireRunner) -> None:
    """Go on with the turn that the hub has, or answer the one that it gives; it may have none any more."""
    [state] = runner.welcome["sessions"]
    if not state.get("seq"):
        state = {**(await runner.prompt()).prompt, "seq": 0}
    await runner.send(*make_turn(runner, state).sent[state["seq"] :])


@pytest.mark.parametrize("joins_first", [True, False])
async def test_a_runner_answers_a_request_that_is_sent_again_after_a_kill_at_any_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joins_first: bool
) -> None:
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once=SESSIONS)
    with copies.after_each_commit(monkeypatch):
        async with serving(tmp_path, **RUNNERS) as hub:
            await new_session(hub)
            async with connected(hub, "s") as runner:
                answering = asyncio.create_task(answer_slowly(runner))
                assert text_of(await hub.post(BODY)) == "one two"
                await answering
    assert len(copies.taken) > 5
    for _, data in spread(copies.taken):
        data.rename(data.with_name(f"{data.name}-hub"))
        data.mkdir()
        data.with_name(f"{data.name}-hub").rename(data / "hub")
        async with serving(data, **RUNNERS) as hub:
            await repeat(hub, joins_first=joins_first)
            await check_once(hub)


async def repeat(hub: Served, *, joins_first: bool) -> None:
    """Send the request again, before or after its runner has joined."""
    posting: asyncio.Task[str] | None = None
    async with AsyncExitStack() as stack:
        if not joins_first:
            posting = asyncio.create_task(post_again(hub))
            await until_begun(hub)
        runner = await stack.enter_async_context(connected(hub, "s"))
        posting = posting or asyncio.create_task(post_again(hub))
        answering = asyncio.create_task(answer_rest(runner))
        assert await posting == "one two"
        answering.cancel()


async def until_begun(hub: Served) -> None:
    """Wait until the request's run is active, or over."""
    found: Callable[[], Awaitable[Sequence[Any]]] = hub.runs
    while not await found():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
