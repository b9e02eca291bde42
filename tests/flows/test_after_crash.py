"""What becomes of an answer that a crash cut off: what its page gets, what is counted, when it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.model_request import ModelRequest
from dragoman.operations import Registry, operation
from dragoman.providers import scripted
from dragoman.providers.scripted import ScriptedProvider
from dragoman.runs import crash_recovery
from dragoman.server.app.services import HubServices
from dragoman.spokes import Spoke
from dragoman.store.store import DATABASE_FILE
from tests.databases import BACKENDS, database_url, query
from tests.faults.commits import Copies
from tests.faults.process import write_config
from tests.serving import Served, ask, frames_in, hub_of, text_of, types
from tests.waiting import until

WORDS = ["So ", "it ", "is."]
ANSWER: list[dict[str, Any]] = [{"reasoning": WORDS, "text": WORDS, "delay": 0.01}]
HALF = """select 1 from parts where body like '%"reasoning"%'
    and exists (select 1 from runs where status = 'running')"""
AGENTS: dict[str, Any] = {
    "clerk": {"model": "sim/any"},
    "brief": {"model": "sim/any", "after_crash": "close"},
}


CUT_OFF: dict[str, bytes] = {}
"""The database of a hub that was killed when the reasoning of an answer was stored, but not its text."""


@contextmanager
def copying(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take copies; no model goes on behind its reasoning before there is one."""
    play = scripted.play

    async def play_until_copied(
        step: scripted.Step, request: ModelRequest, *, key: int, name: str
    ) -> AsyncGenerator[Sequence[e.Event], None]:
        async with aclosing(play(step, request, key=key, name=name)) as batches:
            async for batch in batches:
                yield batch
                if any(isinstance(event, e.ReasoningEnd) for event in batch):
                    await until(lambda: bool(copies.taken))

    with copies.after_each_commit(monkeypatch), monkeypatch.context() as patched:
        patched.setattr(scripted, "play", play_until_copied)
        yield


async def cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The configuration and the data of such a hub."""
    database = "sqlite" if database_url(folder / "hub") is None else "postgres"
    config, data = write_config(folder, ANSWER, agents=AGENTS), folder / "crashed"
    if database not in CUT_OFF:
        copies = Copies(folder / "hub", folder / "copies", once=HALF)
        with copying(copies, monkeypatch):
            async with hub_of(config, folder / "hub") as hub:
                await hub.post(ask("go"))
        CUT_OFF[database] = (copies.taken[0] / DATABASE_FILE).read_bytes()
    data.mkdir(mode=0o700)
    (data / DATABASE_FILE).write_bytes(CUT_OFF[database])
    return config, data


async def is_closed(hub: Served) -> bool:
    """Whether the run has ended."""
    return (await hub.runs())[-1].status != "running"


def texts(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(part["type"], part["text"]) for part in message["parts"] if "text" in part]


@pytest.mark.promise("runs-go-on-after-a-crash")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_page_that_comes_back_gets_one_whole_answer_and_the_lost_attempt_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = await cut_off(tmp_path, monkeypatch)
    async with hub_of(config, data) as hub:
        response = await hub.http.get("/api/chat/s/stream")
        assert response.status_code == 200
        [start, *_] = frames = [
            msgspec.json.decode(line[6:])
            for line in response.text.split("\n\n")
            if line.startswith("data: {")
        ]
        assert start["type"] == "start"
        assert types(frames).count("start-step") == 1
        assert text_of(frames) == "So it is."
        [_, answer] = await hub.messages()
        assert answer["id"] == start["messageId"]
        assert texts(answer) == [("reasoning", "So it is."), ("text", "So it is.")]
        [run] = await hub.runs()
        assert (run.status, run.finish_reason, run.crashes) == ("finished", "stop", 1)
        await hub.hub.meter.ledger.flush()
        lost, made = await hub.hub.store.usage.list(filters={"run_id": run.id})
        assert (lost.is_lost, lost.tokens.estimated, lost.status, lost.step) == (True, True, "aborted", 1)
        assert lost.tokens.input_tokens
        assert (made.is_lost, made.status, made.step) == (False, "finished", 1)
        assert answer["metadata"]["usage"]["estimated"] is True


@pytest.mark.parametrize(("text", "answers"), [("more", 2), ("go", 1)], ids=["another", "the same"])
async def test_a_new_message_waits_for_the_answer_that_goes_on_and_the_same_one_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, answers: int
) -> None:
    config, data = await cut_off(tmp_path, monkeypatch)
    async with hub_of(config, data) as hub:
        assert text_of(await hub.post(ask(text))) == "So it is."
        assert [message["role"] for message in await hub.messages()] == ["user", "assistant"] * answers
        assert [run.status for run in await hub.runs()] == ["finished"] * answers


async def test_a_stop_ends_an_answer_that_has_not_gone_on_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data = await cut_off(tmp_path, monkeypatch)
    config = write_config(tmp_path, [{"text": WORDS * 100, "delay": 0.01}])
    async with hub_of(config, data) as hub:
        stopped = (await hub.http.post("/api/chat/s/stop")).json()
        [run] = await hub.runs()
        assert (stopped["stopped"], stopped["runId"], run.status) == (True, run.id, "stopped")


@pytest.mark.parametrize("broken", ["restore_answer", "load_run"])
async def test_an_answer_that_cannot_go_on_by_an_internal_error_is_closed_and_its_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    config, data = await cut_off(tmp_path, monkeypatch)
    monkeypatch.setattr(crash_recovery, broken, None)
    async with hub_of(config, data) as hub:
        await until(lambda: is_closed(hub))
        assert text_of(await hub.post(ask("more"))) == "So it is."
        first, second = await hub.runs()
        assert (first.status, second.status) == ("failed", "finished")


CLOSED = {
    "a run of an agent that says so": ("update runs set agent = 'brief'", "the hub stopped during the run"),
    "a run whose key is gone": ("update runs set key_id = 'key_x'", "'key_x' of run RUN has expired or was"),
    "a run whose agent is gone": ("update runs set agent = 'boss'", "there is no agent 'boss'"),
    "a run whose model is gone": ("update runs set model = 'gone/any'", "no provider answers for 'gone/any'"),
    "a run of an earlier version": ("update runs set crashes = null", "the hub was updated"),
}


@pytest.mark.parametrize("case", CLOSED)
async def test_what_cannot_go_on_is_closed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    config, data = await cut_off(tmp_path, monkeypatch)
    sql, reason = CLOSED[case]
    query(data, sql)
    async with hub_of(config, data) as hub:
        [_, answer] = await hub.messages()
        [run] = await hub.runs()
        assert run.status == "interrupted"
        assert reason.replace("RUN", run.id) in (run.error or "")
        assert answer["metadata"]["finishReason"] == "interrupted"
        assert all(part.get("state") != "streaming" for part in answer["parts"])
        assert text_of(await hub.post(ask("more"))) == "So it is."


@pytest.mark.promise("runs-go-on-after-a-crash")
async def test_a_run_that_ends_its_process_three_times_is_closed_as_failed_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = await cut_off(tmp_path, monkeypatch)
    for crashes in (1, 2):
        once = f"{HALF} and {crashes} = (select crashes from runs)"
        copies = Copies(data, tmp_path / f"crash{crashes}", once=once)
        with copying(copies, monkeypatch):
            async with hub_of(config, data) as hub:
                await hub.http.get("/api/chat/s/stream")
                [run] = await hub.runs()
                assert (run.status, run.crashes) == ("finished", crashes)
        data = copies.taken[0]
    async with hub_of(config, data) as hub:
        [_, answer] = await hub.messages()
        [run] = await hub.runs()
        assert (run.status, run.crashes) == ("failed", 2)
        assert "the hub stopped 3 times" in (run.error or "")
        assert answer["metadata"]["finishReason"] == "error"
        assert text_of(await hub.post(ask("more"))) == "So it is."


async def test_steps_that_were_finished_stay_and_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {"name": "time_now", "input": {}, "id": "c1"}
    steps: list[dict[str, Any]] = [{"text": ["First."], "tools": [call]}, *ANSWER]
    config = write_config(tmp_path, steps, pinned=["time.now"])
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once=HALF)
    with copying(copies, monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            await hub.post(ask("go"))
            [_, expected] = await hub.messages()
    async with hub_of(config, copies.taken[0]) as hub:
        frames = (await hub.http.get("/api/chat/s/stream")).text
        assert frames.count('"start-step"') == 2
        [_, answer] = await hub.messages()
        assert answer["parts"][:3] == expected["parts"][:3]
        assert texts(answer) == texts(expected)
        assert answer["metadata"]["steps"] == 2
        [run] = await hub.runs()
        [made] = await hub.hub.store.calls.list_for_run(run.id)
        assert (made.record.operation, made.status) == ("time.now", "done")


async def test_a_continuation_sent_again_after_a_crash_gets_the_rest_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = {"name": "colour", "description": "Ask.", "inputSchema": {"type": "object"}}
    steps: list[dict[str, Any]] = [{"tools": [{"name": "colour", "input": {}, "id": "c1"}]}, *ANSWER]
    config = write_config(tmp_path, steps)
    second = "select 1 from runs group by session_id having count(*) = 2"
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once=second)
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            await hub.post(ask("go", tools=[tool]))
            [_, waiting] = await hub.messages()
            waiting["parts"][1] |= {"state": "output-available", "output": "blue"}
            again = {"id": "s", "messages": [waiting], "trigger": "submit-message", "tools": [tool]}
            whole = await hub.post(again)
    async with hub_of(config, copies.taken[0]) as hub:
        frames = await hub.post(again)
        assert types(frames).count("start-step") == types(whole).count("start-step") == 1
        assert text_of(frames) == "So it is."
        assert [run.status for run in await hub.runs()] == ["finished", "finished"]
        [_, answer] = await hub.messages()
        assert answer["parts"][1]["output"] == "blue"


async def test_front_end_tools_of_the_request_are_there_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colour = {"name": "colour", "description": "Ask.", "inputSchema": {"type": "object"}}
    asks = {"reasoning": WORDS, "tools": [{"name": "colour", "input": {}, "id": "c1"}], "delay": 0.01}
    config = write_config(tmp_path, [asks, {"text": ["It is blue."]}])
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once=HALF)
    with copying(copies, monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            await hub.post(ask("go", tools=[colour]))
    async with hub_of(config, copies.taken[0]) as hub:
        frames = frames_in((await hub.http.get("/api/chat/s/stream")).text)
        assert frames[-1]["finishReason"] == "tool-calls"
        [_, waiting] = await hub.messages()
        call = waiting["parts"][-1]
        assert (call["type"], call["state"]) == ("tool-colour", "input-available")
        call |= {"state": "output-available", "output": "blue"}
        again = {"id": "s", "messages": [waiting], "trigger": "submit-message"}
        assert text_of(await hub.post(again)) == "It is blue."


STOPS: dict[str, tuple[Any, int]] = {
    "a call": ([{"tool": "time.now"}], 1),
    "a call and another, made later": ([{"all": [{"tool": "time.now"}, {"tool": "hub.search"}]}], 2),
    "failures": ([{"no_progress": 2}], 3),
}


@pytest.mark.parametrize("case", STOPS)
async def test_stop_conditions_count_the_calls_from_before_the_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    stops, expected = STOPS[case]
    failing = {"name": "time_now", "input": {"timezone": "Nowhere/None"}}
    steps: list[dict[str, Any]] = [
        {"text": "First.", "tools": [failing]},
        {"text": "Second.", "tools": [{"name": "hub_search", "input": {"q": "time"}}]},
        {"text": "Third.", "tools": [failing]},
        {"text": "Done."},
    ]
    agents = {"default": {"model": "sim/any", "operations": ["time.now"], "stop_when": stops}}
    config = write_config(tmp_path, steps, agents=agents)
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from calls where ended_at > 0")
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            await hub.post(ask("go"))
            [_, answer] = await hub.messages()
    assert answer["metadata"]["steps"] == expected
    for data in (copies.taken[0], copies.taken[-4:][0]):  # after the first call, and after the last one
        async with hub_of(config, data) as hub:
            await hub.http.get("/api/chat/s/stream")
            [_, after] = await hub.messages()
            assert after["metadata"]["steps"] == expected
            assert texts(after) == texts(answer)


@pytest.mark.parametrize("at_once", [1, 3])
async def test_no_more_runs_than_configured_go_on_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    sessions = ["a", "b", "c"]
    config = write_config(tmp_path, [{"reasoning": WORDS, "text": WORDS * 300, "delay": 0.01}])
    all_halves = f"select 1 where 3 = (select count(*) from ({HALF}) as halves)"
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once=all_halves)
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            posts = [asyncio.ensure_future(hub.post(ask("go", session=session))) for session in sessions]
            await until(lambda: bool(copies.taken))
            for session in sessions:
                await hub.http.post(f"/api/chat/{session}/stop")
            await asyncio.gather(*posts)
    begun: list[int] = []
    stream = ScriptedProvider.stream

    async def counting(provider: ScriptedProvider, request: ModelRequest) -> AsyncGenerator[Any, None]:
        begun.append(sum(hub.active_run(session) is not None for session in sessions))
        await until(lambda: len(begun) >= at_once)  # none ends before all have begun that may
        async with aclosing(stream(provider, request)) as batches:
            async for batch in batches:
                yield batch

    monkeypatch.setattr(ScriptedProvider, "stream", counting)
    config = write_config(tmp_path, ANSWER, limits={"resumed": at_once})
    async with hub_of(config, copies.taken[0]) as hub:
        await until(lambda: len(begun) == 3 and not any(hub.active_run(session) for session in sessions))
        for session in sessions:
            assert [run.status for run in await hub.runs(session)] == ["finished"]
    assert max(begun) == at_once


@operation("far", effect="read")
async def look(what: str) -> str:
    """Look at something."""
    return f"{what} is there"


async def cut_off_in_a_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The configuration and the data of a hub that was killed while a spoke had a call."""
    call = {"name": "hub_call", "input": {"calls": [{"tool": "far.look", "input": {"what": "it"}}]}}
    config = write_config(folder, [{"tools": [call]}, {"text": WORDS}])
    running = "select 1 from calls where operation = 'far.look' and ended_at is null"
    copies = Copies(folder / "hub", folder / "copies", once=running)

    @operation("far", name="look", effect="read")
    async def killed(what: str) -> str:
        """Look at something until the hub is killed."""
        await until(lambda: bool(copies.taken))
        return what

    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, folder / "hub") as hub, Spoke(Registry(killed), hub=hub.url) as spoke:
            await spoke.ready()
            await hub.post(ask("go"))
    return config, copies.taken[0]


def results(frames: list[dict[str, Any]]) -> str:
    """The outputs in the frames, as text."""
    return " ".join(str(frame.get("output", "")) for frame in frames)


async def test_a_call_waits_for_its_spoke_to_come_back_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = await cut_off_in_a_call(tmp_path, monkeypatch)
    waits: list[Sequence[str]] = []
    wait = HubServices.wait_for_operations

    async def waiting(services: HubServices, ids: Sequence[str]) -> None:
        waits.append(ids)
        await wait(services, ids)

    monkeypatch.setattr(HubServices, "wait_for_operations", waiting)
    async with hub_of(config, data) as hub:
        await until(lambda: waits == [["far.look"]])
        assert hub.active_run() is None
        async with Spoke(Registry(look), hub=hub.url):
            frames = frames_in((await hub.http.get("/api/chat/s/stream")).text)
    assert "it is there" in results(frames)
    assert text_of(frames) == "So it is."


async def test_a_run_goes_on_without_the_spoke_that_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = await cut_off_in_a_call(tmp_path, monkeypatch)
    monkeypatch.setattr("dragoman.server.app.services.REJOIN_TIMEOUT", 0.01)
    async with hub_of(config, data) as hub:
        frames = frames_in((await hub.http.get("/api/chat/s/stream")).text)
        assert "far.look" in results(frames)
        assert "it is there" not in results(frames)
        assert text_of(frames) == "So it is."
        [run] = await hub.runs()
        assert (run.status, run.finish_reason) == ("finished", "stop")
