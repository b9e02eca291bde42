"""Agents of the hub as models of the Responses API: chains, calls of the hub, client tools, approvals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from dragoman.errors import Unavailable
from dragoman.identity import LOCAL
from dragoman.messages import Message, TextPart
from dragoman.server.gateway.responses import background
from dragoman.store.hosts.queued_runs import QueuedRun
from dragoman.store.runs import RunRecord
from dragoman.wire.ui.client_request import ChatRequest, NewMessage
from tests.serving import Served, serving
from tests.waiting import poll, until

DANGER = str(Path(__file__).parents[1] / "flows" / "approval_operation.py")
PAINT: Any = {"type": "function", "name": "paint", "parameters": {"type": "object"}, "strict": False}
HUB_TOOL: Any = {"type": "mcp", "server_label": "dragoman"}
WIPE: list[dict[str, Any]] = [
    {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]},
    {"text": "So it is."},
]


@asynccontextmanager
async def client_of(hub: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client for a hub."""
    async with openai.AsyncOpenAI(base_url=f"{hub.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def ask(client: openai.AsyncOpenAI, words: Any = "hi", *, stream: bool = False, **fields: Any) -> Any:
    """Ask the default agent; the whole response."""
    if not stream:
        return await client.responses.create(model="agent/default", input=words, **fields)
    async with client.responses.stream(model="agent/default", input=words, **fields) as events:
        return await events.get_final_response()


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


async def runs_of(hub: Served, response: Any) -> Sequence[RunRecord]:
    """The runs of the session of a response."""
    return await hub.runs(response.dragoman["session"])


async def sessions(hub: Served) -> list[Any]:
    answer = await hub.http.get("/api/sessions")
    found: list[Any] = answer.json()["sessions"]
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_of_responses_is_a_session_and_may_branch(tmp_path: Path, stream: bool) -> None:
    steps: list[dict[str, Any]] = [
        {"reasoning": "Hm.", "text": ["Hel", "lo"]},
        {"text": "Again."},
        {"text": "Otherwise."},
    ]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        first = await ask(client, stream=stream)
        assert (first.output_text, kinds(first), first.status) == (
            "Hello",
            ["reasoning", "message"],
            "completed",
        )
        second = await ask(client, "more", stream=stream, previous_response_id=first.id)
        assert second.output_text == "Again."
        session = second.dragoman["session"]
        assert session == first.dragoman["session"]
        assert [message["role"] for message in await hub.messages(session)] == ["user", "assistant"] * 2
        branch = await ask(client, "or else", stream=stream, previous_response_id=first.id)
        assert branch.output_text == "Otherwise."
        assert branch.dragoman["session"] != session
        texts = [message["parts"][-1]["text"] for message in await hub.messages(branch.dragoman["session"])]
        assert texts == ["hi", "Hello", "or else", "Otherwise."]
        stored = await client.responses.retrieve(second.id)
        assert (stored.output_text, stored.output[0].id) == ("Again.", second.output[0].id)


async def test_a_client_that_sends_its_items_back_goes_on_in_its_session(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hello"}, {"text": "Again."}]) as hub, client_of(hub) as client:
        question: Any = {"role": "user", "content": "hi", "id": "msg_client-made-id-of-180000"}
        first = await ask(client, [question])
        more: Any = {"role": "user", "content": "more"}
        reference: Any = {"type": "item_reference", "id": first.output[0].id}
        second = await ask(client, [question, reference, more])
        assert second.output_text == "Again."
        assert second.dragoman["session"] == first.dragoman["session"]
        made_up: Any = {"role": "assistant", "content": "I am the hub."}
        with pytest.raises(openai.BadRequestError, match="no record"):
            await ask(client, [question, made_up, more])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_the_hub_runs_is_an_mcp_call_with_its_output(tmp_path: Path, stream: bool) -> None:
    call = {"name": "hub_call", "input": {"calls": [{"operation": "time.now", "input": {}}]}}
    steps: list[dict[str, Any]] = [{"text": "Looking.", "tools": [call]}, {"text": "Done."}]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        response = await ask(client, stream=stream)
        assert kinds(response) == ["message", "mcp_call", "message"]
        shown = response.output[1]
        assert (shown.server_label, shown.name, shown.status) == ("dragoman", "hub_call", "completed")
        assert "time" in shown.output
        assert response.output_text == "Looking.Done."


async def test_a_tool_of_the_client_ends_the_response_and_its_output_goes_on(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "paint", "input": {"colour": "red"}}]},
        {"text": "Red."},
    ]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        first = await ask(client, tools=[PAINT])
        assert (kinds(first), first.status) == (["function_call"], "completed")
        call = first.output[0]
        assert (call.name, call.arguments) == ("paint", '{"colour":"red"}')
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "painted"}
        second = await ask(client, [output], previous_response_id=first.id, tools=[PAINT])
        assert (kinds(second), second.output_text) == (["message"], "Red.")
        messages = await hub.messages(second.dragoman["session"])
        [part] = [part for part in messages[1]["parts"] if part["type"] == "tool-paint"]
        assert (part["state"], part["output"]) == ("output-available", "painted")
        with pytest.raises(openai.APIStatusError):
            await ask(client, [{**output, "call_id": "other"}], previous_response_id=second.id)


def wiping(data: Path, steps: list[dict[str, Any]]) -> AbstractAsyncContextManager[Served]:
    """A hub with an operation that needs an approval."""
    return serving(data, steps, operations=[DANGER], pinned=["danger.wipe"])


async def test_what_an_agent_does_not_use_of_a_request_is_listed(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "{}"}, {"text": "Hi."}]) as hub:
        output = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
        fields = {"text": {"format": output}, "temperature": 0, "max_tool_calls": 1, "metadata": {"a": "b"}}
        body = {"model": "agent/default", "input": "hi", **fields}
        response = await hub.http.post("/v1/responses", json=body)
        assert response.headers["x-dragoman-dropped"] == "temperature"
        rules = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        search = {"type": "tool_search", "execution": "client"}
        body = {"model": "agent/default", "input": rules, "tools": [search]}
        response = await hub.http.post("/v1/responses", json=body)
        dropped = response.headers["x-dragoman-dropped"]
        assert dropped == "input[].role.developer,tools[].type.tool_search"


async def test_an_approval_waits_in_the_hub_unless_the_client_answers_approvals(tmp_path: Path) -> None:
    async with wiping(tmp_path, WIPE[:1]) as hub, client_of(hub) as client:
        response = await ask(client)
        assert kinds(response) == ["mcp_call"]
        assert "waits for an approval" in str(response.output[0].error)
        pending = (await hub.http.get("/api/approvals")).json()
        assert len(pending["approvals"]) == 1


@pytest.mark.parametrize("approve", [True, False])
async def test_a_client_that_declares_the_hub_answers_approvals(tmp_path: Path, approve: bool) -> None:
    async with wiping(tmp_path, WIPE) as hub, client_of(hub) as client:
        first = await ask(client, tools=[HUB_TOOL])
        request = first.output[-1]
        assert (request.type, request.name) == ("mcp_approval_request", "danger_wipe")
        answer: Any = {
            "type": "mcp_approval_response",
            "approval_request_id": request.id,
            "approve": approve,
        }
        second = await ask(client, [answer], previous_response_id=first.id, tools=[HUB_TOOL])
        assert second.output_text == "So it is."
        assert kinds(second) == ["mcp_call", "message"]
        assert (second.output[0].output == "wiped a") is approve
        messages = await hub.messages(second.dragoman["session"])
        [part] = [part for part in messages[1]["parts"] if part["type"] == "tool-danger_wipe"]
        assert part["state"] == ("output-available" if approve else "output-denied")


async def test_unknown_agents_and_responses_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hello"}]) as hub, client_of(hub) as client:
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="agent/nobody", input="hi")
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(client, previous_response_id="resp_none")
        assert refused.value.code == "previous_response_not_found"
        assert await sessions(hub) == []
        assert (await ask(client)).output_text == "Hello"


async def ended(client: openai.AsyncOpenAI, id: str) -> Any:
    """A response in the background once it has ended."""

    async def look() -> Any:
        response = await client.responses.retrieve(id)
        return None if response.status in ("queued", "in_progress") else response

    return await poll(look)


async def test_an_agent_answers_in_the_background_and_is_followed_and_continued(tmp_path: Path) -> None:
    call = {"name": "hub_call", "input": {"calls": [{"operation": "time.now", "input": {}}]}}
    steps: list[dict[str, Any]] = [
        {"text": "Looking.", "tools": [call]},
        {"text": "Done."},
        {"tools": [{"name": "paint", "input": {"colour": "red"}}]},
        {"text": "Red."},
        {"text": "Streamed."},
    ]
    async with serving(tmp_path, steps, disconnect_grace=0) as hub, client_of(hub) as client:
        begun = await ask(client, background=True)
        assert (begun.status, begun.background, begun.output) == ("queued", True, [])
        first = await ended(client, begun.id)
        assert (first.status, first.output_text) == ("completed", "Looking.Done.")
        assert kinds(first) == ["message", "mcp_call", "message"]
        begun = await ask(client, "paint", background=True, previous_response_id=first.id, tools=[PAINT])
        second = await ended(client, begun.id)
        output: Any = {"type": "function_call_output", "call_id": second.output[0].call_id, "output": "ok"}
        third = await ask(client, [output], background=True, previous_response_id=second.id, tools=[PAINT])
        assert kinds(await ended(client, third.id)) == ["message"]
        runs = await runs_of(hub, first)
        assert [run.background for run in runs] == [True] * 3
        fields: Any = {"background": True, "stream": True, "previous_response_id": third.id}
        stream = await client.responses.create(model="agent/default", input="more", **fields)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events[:3]] == [
            f"response.{word}" for word in ("created", "queued", "in_progress")
        ]
        assert events[-1].response.output_text == "Streamed."
        again = await client.responses.retrieve(events[0].response.id, stream=True, starting_after=4)
        assert [event async for event in again] == events[5:]
        with pytest.raises(openai.BadRequestError, match="store"):
            await ask(client, background=True, store=False)


async def test_a_cancelled_response_of_an_agent_stops_its_run(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"text": ["One ", "two ", *["and more "] * 200], "delay": 0.2}]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        begun = await ask(client, background=True)
        with pytest.raises(openai.BadRequestError, match="in progress"):
            await ask(client, "more", previous_response_id=begun.id)
        cancelled = await client.responses.cancel(begun.id)
        assert cancelled.status == "cancelled"
        assert (await client.responses.retrieve(begun.id)).status == "cancelled"
        await until(lambda: not hub.hub.runs.active_count)
        [run] = await runs_of(hub, begun)
        assert run.status == "stopped"


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_response_of_an_agent_goes_on_without_the_process_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    monkeypatch.setattr(background, "LOST_AFTER", -1.0)
    slow: dict[str, Any] = {"text": ["Half ", *["a word "] * 200], "delay": 0.2}
    async with serving(tmp_path, [slow], play="turns") as hub, client_of(hub) as client:
        begun = await ask(client, background=True)
        await until(lambda: hub.hub.runs.active_count)
        for run in list(hub.hub.runs._active.values()):
            run.stop_unwritten()  # as a kill leaves it
    steps = [slow] if is_cancelled else [{"text": "Whole."}]
    async with serving(tmp_path, steps, play="turns") as hub, client_of(hub) as client:
        if is_cancelled:
            assert (await client.responses.cancel(begun.id)).status == "cancelled"
            await until(lambda: not hub.hub.runs.active_count)
        response = await ended(client, begun.id)
        assert response.status == ("cancelled" if is_cancelled else "completed")
        if not is_cancelled:
            assert response.output_text == "Whole."
            events = await client.responses.retrieve(begun.id, stream=True)
            assert [event.type async for event in events][-1] == "response.completed"
            more = await client.responses.retrieve(response.id)
            assert more.output == response.output


@pytest.mark.parametrize("mode", ["document", "stream", "background"])
async def test_an_agent_compacts_its_conversation_above_the_clients_threshold(
    tmp_path: Path, mode: str
) -> None:
    steps: list[dict[str, Any]] = [
        {"text": "A long answer about ships. " * 200},
        {"text": "We spoke about ships."},
        {"text": "Ships."},
        {"text": "Bye."},
    ]
    rule: Any = [{"type": "compaction", "compact_threshold": 1_500}]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        first = await ask(client, context_management=rule)
        assert kinds(first) == ["message"]
        again = {"context_management": rule, "previous_response_id": first.id}
        if mode == "background":
            second = await ask(client, "About what?", background=True, **again)

            async def ended() -> Any:
                found = await client.responses.retrieve(second.id)
                return found if found.status == "completed" else None

            second = await poll(ended)
        else:
            second = await ask(client, "About what?", stream=mode == "stream", **again)
        assert kinds(second) == ["compaction", "message"]
        assert second.output[0].encrypted_content == "dragoman-compaction:We spoke about ships."
        third: Any = [*second.output, {"role": "user", "content": "Bye!"}]
        items: Any = [
            item if isinstance(item, dict) else item.model_dump(exclude_unset=True) for item in third
        ]
        last: Any = await client.responses.create(model="agent/default", input=items)
        assert (kinds(last), last.output_text) == (["message"], "Bye.")
        assert last.dragoman["session"] == first.dragoman["session"]


async def test_the_clients_threshold_outlives_the_process_and_the_wait_for_a_busy_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LOST_AFTER", -1.0)
    rule: Any = [{"type": "compaction", "compact_threshold": 1_500}]
    slow: dict[str, Any] = {"text": ["We ", *["a word "] * 200], "delay": 0.2}
    long: dict[str, Any] = {"text": "A long answer about ships. " * 200}
    async with serving(tmp_path, [long, slow]) as hub, client_of(hub) as client:
        first = await ask(client)
        again = {"context_management": rule, "previous_response_id": first.id}
        begun = await ask(client, "About what?", background=True, **again)
        await until(lambda: hub.hub.runs.active_count)
        for run in list(hub.hub.runs._active.values()):
            run.stop_unwritten()  # as a kill leaves it
    steps: list[dict[str, Any]] = [
        {"text": "We spoke about ships."},
        {"text": "Ships."},
        long,
        slow,
        {"text": "About ships again."},
        {"text": "More ships."},
    ]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        assert (await ended(client, begun.id)).output_text == "Ships."
        await hub.chat("one")
        busy = asyncio.create_task(hub.chat("two"))
        await until(hub.active_run)
        message = Message("u3", "user", (TextPart("three"),))
        request = ChatRequest(
            session_id="s", action=NewMessage(message), when_busy="queue", compact_threshold=1_500
        )
        queued = await hub.hub.runs.start_run(request, LOCAL, waits=False)
        assert isinstance(queued, QueuedRun)
        await hub.http.post("/api/sessions/s/stop")
        await busy
        await until(lambda: texts_of(hub))
        assert (await hub.messages())[-1]["parts"][-1]["text"] == "More ships."


async def texts_of(hub: Served) -> bool:
    """Whether the third answer is there: the message of a run is stored just before the run is active."""
    messages = await hub.messages()
    return len(messages) == 6 and bool(messages[-1]["parts"]) and hub.active_run() is None


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_continue_the_same_response_at_once_are_branches(
    tmp_path: Path, stream: bool
) -> None:
    async with (
        serving(tmp_path, [{"text": "Hello"}, *[{"text": "Yes"}] * 3]) as hub,
        client_of(hub) as client,
    ):
        first = await ask(client)
        branches = (ask(client, word, stream=stream, previous_response_id=first.id) for word in "abc")
        found = await asyncio.gather(*branches)
        histories = [await hub.messages(each.dragoman["session"]) for each in found]
        texts = [[message["parts"][-1]["text"] for message in history] for history in histories]
        assert texts == [["hi", "Hello", word, "Yes"] for word in "abc"]


async def test_no_run_goes_on_whose_response_in_the_background_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, [{"text": "Hello", "delay": 60}]) as hub, client_of(hub) as client:

        async def refuse(*_: object) -> None:
            raise Unavailable("the database does not take it")

        monkeypatch.setattr(hub.hub.store.responses, "save", refuse)
        with pytest.raises(openai.APIStatusError):
            await ask(client, background=True)
        [session] = await sessions(hub)
        [run] = await hub.runs(session["id"])
        assert run.status == "stopped"


ANSWER: Any = {
    "type": "json_schema",
    "name": "answer",
    "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}


def clock_calls(count: int) -> dict[str, Any]:
    call = {"tool": "time.now", "input": {}}
    return {"name": "hub_call", "input": {"calls": [call] * count}}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_in_a_format_is_the_only_text_of_its_response(tmp_path: Path, stream: bool) -> None:
    steps: list[dict[str, Any]] = [
        {"text": "Looking.", "tools": [clock_calls(1)]},
        {"text": '{"n": "seven"}'},
        {"text": 'Here: ```json\n{"n": 7}\n```'},
        {"text": "[1]"},
        {"text": '{"any": 1}'},
    ]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        response = await ask(client, stream=stream, text={"format": ANSWER, "verbosity": "low"})
        assert (kinds(response), response.output_text) == (["mcp_call", "message"], '{"n":7}')
        stored = await client.responses.retrieve(response.id)
        assert (kinds(stored), stored.output_text) == (kinds(response), response.output_text)
        [run] = await runs_of(hub, response)
        assert '"integer"' in (run.output_format or "")
        other = await ask(client, stream=stream, text={"format": {"type": "json_object"}})
        assert (kinds(other), other.output_text) == (["message"], '{"any": 1}')
        raw = await client.responses.with_raw_response.create(
            model="agent/default", input="hi", text={"format": {"type": "text"}, "verbosity": "low"}, top_p=1
        )
        assert raw.headers["x-dragoman-dropped"] == "top_p,text.verbosity"


async def test_a_client_tool_with_the_name_of_the_last_tool_is_called_by_its_client(tmp_path: Path) -> None:
    own: Any = {"tools": [{**PAINT, "name": "final_answer"}], "text": {"format": ANSWER}}
    call = {"name": "final_answer", "input": {"colour": "red"}}
    async with serving(tmp_path, [{"tools": [call]}, {"text": '{"n": 7}'}]) as hub, client_of(hub) as client:
        first = await ask(client, **own)
        assert [(each.type, each.name) for each in first.output] == [("function_call", "final_answer")]
        output: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "done"}
        second = await ask(client, [output], previous_response_id=first.id, **own)
        assert (kinds(second), second.output_text) == (["message"], '{"n": 7}')


async def test_an_answer_that_never_fits_its_format_fails_and_a_bad_schema_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "No JSON."}] * 3) as hub, client_of(hub) as client:
        failed = await ask(client, text={"format": ANSWER})
        assert (failed.status, failed.error.message) == (
            "failed",
            "the answer does not fit the schema of the request, asked 3 times: the answer is not valid JSON",
        )
        for schema in (
            {"type": 7},
            {"$ref": "http://127.0.0.1:1/x"},
            {"type": "object", "title": "x" * 120_001},
        ):
            with pytest.raises(openai.BadRequestError, match=r"schema|format"):
                await ask(client, text={"format": {**ANSWER, "schema": schema}})


async def test_calls_beyond_max_tool_calls_are_refused_and_each_response_has_its_own(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [clock_calls(3)]},
        {"tools": [clock_calls(1)]},
        {"tools": [{"name": "paint", "input": {}}]},
        {"tools": [clock_calls(1)]},
        {"text": "Done."},
    ]
    async with serving(tmp_path, steps) as hub, client_of(hub) as client:
        first = await ask(client, tools=[PAINT], max_tool_calls=2)
        assert kinds(first) == ["mcp_call", "mcp_call", "function_call"]

        assert [item.output.count('"success":true') for item in first.output[:2]] == [2, 0]
        assert "budget of 2 calls is used up" in first.output[1].output
        output: Any = {
            "type": "function_call_output",
            "call_id": first.output[2].call_id,
            "output": "painted",
        }
        second = await ask(client, [output], previous_response_id=first.id, tools=[PAINT], max_tool_calls=1)
        assert (second.output_text, second.output[0].output.count('"success":true')) == ("Done.", 1)
        assert [run.max_tool_calls for run in await runs_of(hub, second)] == [2, 1]


async def test_what_is_asked_of_an_answer_holds_after_an_approval_in_the_inbox(tmp_path: Path) -> None:
    steps = [WIPE[0], {"text": '{"n": 1}'}]
    async with wiping(tmp_path, steps) as hub, client_of(hub) as client:
        first = await ask(client, text={"format": ANSWER}, max_tool_calls=5)
        [request] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        await hub.http.post(f"/api/approvals/{request['id']}", json={"approved": True})

        async def has_gone_on() -> bool:
            return [run.status for run in await runs_of(hub, first)][1:] == ["finished"]

        await poll(has_gone_on)
        limits = [(run.max_tool_calls, run.output_format) for run in await runs_of(hub, first)]
        assert limits[0] == limits[1]
        assert limits[0][0] == 5
