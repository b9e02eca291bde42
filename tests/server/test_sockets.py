"""The socket of a session: its first frame, answers, events, and what its client sends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import websockets

from dragoman.server.sockets.session_socket import MAX_BAD_FRAMES
from tests.server.test_grants import SESSION, grant
from tests.server.test_session_owners import Headers, key_of
from tests.serving import Served, serving
from tests.teams import gate
from tests.waiting import LIMIT, until

Frame = dict[str, Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class SocketClient:
    """A client of a session's socket."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket

    async def send(self, type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def until(self, type: str) -> list[Frame]:
        """Frames up to the first of this type."""
        frames: list[Frame] = []
        async with asyncio.timeout(LIMIT):
            while not frames or frames[-1]["type"] != type:
                frames.append(json.loads(await self.socket.recv()))
        return frames


@asynccontextmanager
async def connected(
    hub: Served, session: str = "s", query: str = "", *, origin: str | None = None, **headers: str
) -> AsyncIterator[SocketClient]:
    url = f"{hub.url.replace('http', 'ws')}/api/sessions/{session}/socket{query}"
    async with websockets.connect(
        url,
        additional_headers=headers,
        origin=None if origin is None else websockets.Origin(origin),
        proxy=None,
        open_timeout=LIMIT,
        max_size=4_000_000,
        max_queue=None,  # a client that does not read would not see the end of its connection for 10 s
    ) as socket:
        yield SocketClient(socket)


def text_of(frames: list[Frame]) -> str:
    return "".join(frame["content"] for frame in frames if frame["type"] == "chunk")


async def create(hub: Served, headers: Headers | None = None) -> None:
    response = await hub.http.post("/api/sessions", json={"id": "s"}, headers=headers or {})
    assert response.status_code == 201, response.text


async def test_a_prompt_is_answered_to_everybody_who_has_the_session_open(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Good day to you."}]) as hub:
        await create(hub)
        async with connected(hub) as first, connected(hub) as second:
            for client in (first, second):
                [init] = await client.until("init")
                assert (init["status"], init["messages"], init["session"]["id"]) == ("idle", [], "s")
            await first.send("prompt", text="hi", requestId="r1")
            for client in (first, second):
                frames = await client.until("message.updated")
                prompt = next(frame for frame in frames if frame["type"] == "message")
                assert prompt["message"]["parts"][0]["text"] == "hi"
                if client is first:  # a short answer may be over before the others hear of it
                    assert text_of(frames) == "Good day to you."
                assert frames[-1]["message"]["parts"][-1]["text"] == "Good day to you."


async def test_a_client_that_reconnects_gets_what_it_has_missed(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "one"}, {"text": "two"}], play="turns") as hub:
        await create(hub)
        async with connected(hub) as client:
            await client.until("init")
            await client.send("prompt", text="hi")
            last = (await client.until("message.updated"))[-1]["eventId"]
        await hub.chat("more")
        async with connected(hub, query=f"?after={last}") as client:
            [init] = await client.until("init")
            assert len(init["messages"]) == 4
            missed = await client.until("message.updated")
            assert [frame["type"] for frame in missed if "eventId" in frame] == [
                "message",
                "status",
                "status",
                "message.updated",
            ]


async def test_the_first_frame_shows_the_last_messages_of_a_long_session_and_reads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as hub:
        monkeypatch.setattr(hub.hub.store.messages, "list", None)  # it reads all of them
        texts = ["x"] * 250
        assert await first_frame(hub, "many", texts) == (200, 50)
        assert await first_frame(hub, "large", [*texts, "x" * 300_000, "x"]) == (1, 251)
        assert await first_frame(hub, "one", [*texts, "x" * 2_000_000]) == (1, 250)


async def first_frame(hub: Served, session: str, texts: list[str]) -> tuple[int, int]:
    """How many messages the first frame has, and how many are before them, of a session with these texts."""
    lines = [{"role": "user", "parts": [{"type": "text", "text": text}]} for text in texts]
    body = {"messages": [{"id": f"{session}-{at}", **line} for at, line in enumerate(lines)]}
    imported = await hub.http.post(f"/api/sessions/import?id={session}", json=body)
    assert imported.status_code == 201, imported.text
    async with connected(hub, session) as client:
        [init] = await client.until("init")
    assert init["messages"][-1]["parts"][0]["text"] == texts[-1]
    return len(init["messages"]), init["earlierMessages"]


async def test_a_socket_opened_in_mid_answer_gets_all_of_it_and_can_stop_it(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "word " * 400, "delay": 0.01}]) as hub:
        await create(hub)
        async with connected(hub) as first:
            await first.until("init")
            await first.send("prompt", text="hi")
            statuses = [
                frame["status"] for frame in await first.until("chunk") if frame["type"] == "agentStatus"
            ]
            assert statuses[-1] == "streaming"
            async with connected(hub) as second:
                [init] = await second.until("init")
                assert init["status"] == "running"
                assert text_of(await second.until("chunk")).startswith("word")
                await second.send("abort", requestId="x")
                done = (await second.until("done"))[-1]
                assert (done["requestId"], done["stopped"]) == ("x", True)
            ended = [frame for frame in await first.until("message.updated") if frame["type"] == "status"]
            assert ended[-1]["data"]["status"] == "stopped"


async def test_an_approval_is_asked_and_answered_over_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [{"name": "time_now", "input": {}}, {"name": "gate_hold", "input": {"name": "socket"}}]
    steps: list[dict[str, Any]] = [*({"tools": [call]} for call in calls), {"text": "It is late."}]
    config: dict[str, Any] = {"pinned": ["time.now", "gate.hold"], "policy": [{"ask": "time.now"}]}
    config["operations"] = [gate.__name__]
    monkeypatch.setitem(gate.doors, "socket", door := asyncio.Event())
    async with serving(tmp_path, steps, **config) as hub:
        await create(hub)
        async with connected(hub) as client, connected(hub) as other:
            await client.send("prompt", text="what time is it?")
            approval = (await other.until("approval.requested"))[-1]["approval"]
            await other.send("answer", approvalId=approval["id"], approved=True)
            await client.until("approval.answered")
            while (await client.until("status"))[-1]["status"] != "running":
                pass  # the run that asked may end after its answer
            door.set()  # the client follows the run that goes on: otherwise it may be over before
            frames = await client.until("message.updated")
            while not text_of(frames):  # the message was updated when it began to wait, too
                frames = await client.until("message.updated")
            assert text_of(frames) == "It is late."
        async with connected(hub) as client:
            [init] = await client.until("init")
            assert init["approvals"] == []
            assert ("approval.answered", "local") in [(each["name"], each["actor"]) for each in init["audit"]]
        delete = "DELETE FROM approvals"
        await hub.hub.store.database.write(lambda connection: connection.execute(delete, {}))
        async with connected(hub, query="?after=0") as client:  # what is gone ends no socket
            missed = [frame["type"] for frame in await client.until("approval.answered")]
            assert "approval.requested" not in missed
            await client.send("ping")
            await client.until("pong")


async def test_people_see_each_other_come_and_go_and_a_removed_grant_closes_a_socket(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        await create(hub, ann)
        async with connected(hub, **ann) as owner:
            await owner.until("init")
            async with connected(hub, SESSION, **bob) as refused:
                assert (await refused.until("error"))[-1]["error"]["code"] == "not_found"
                with pytest.raises(websockets.ConnectionClosed):
                    await refused.until("init")
            await grant(hub, ann, "read", owner="bob")
            async with connected(hub, SESSION) as guest:
                await guest.send("auth", token=bob["authorization"].removeprefix("Bearer "))
                [init] = await guest.until("init")
                assert {each["owner"] for each in init["people"]} == {"ann", "bob"}
                joined = (await owner.until("user.joined"))[-1]
                assert joined["data"] == {"owner": "bob"}
                await guest.send("prompt", text="may I?")
                assert (await guest.until("error"))[-1]["error"]["code"] == "forbidden"
                removed = await hub.http.delete(f"/api/sessions/{SESSION}/grants?owner=bob", headers=ann)
                assert removed.status_code == 204
                assert (await guest.until("error"))[-1]["error"]["code"] == "grant_revoked"
            assert (await owner.until("user.left"))[-1]["data"] == {"owner": "bob"}


async def test_pages_of_other_origins_and_clients_without_a_key_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        ann = await key_of(hub, "ann")
        await create(hub, ann)
        with pytest.raises(websockets.InvalidStatus) as refusal:
            async with connected(hub, origin="https://evil.example", **ann):
                pass
        assert refusal.value.response.status_code == 403
        async with connected(hub, origin=hub.url, **ann) as client:
            await client.until("init")
        async with connected(hub) as client:
            await client.send("ping")
            assert (await client.until("error"))[-1]["error"]["code"] == "bad_request"
        async with connected(hub) as client:
            await client.send("auth", token="dgm_wrong")
            assert (await client.until("error"))[-1]["error"]["code"] == "unauthorized"


@pytest.mark.parametrize("path", ["/api/sessions/s/socket", "/v1/responses", "/api/runners", "/api/spoke"])
async def test_a_page_sends_its_key_as_a_subprotocol(tmp_path: Path, path: str) -> None:
    scopes = ("chat", "gateway", "runner", "spoke")
    async with serving(tmp_path, keys=True) as hub:
        ann = await key_of(hub, "ann", *scopes)
        await create(hub, ann)
        key = ann["authorization"].removeprefix("Bearer ")
        url = hub.url.replace("http", "ws") + path

        def offering(secret: str) -> websockets.connect:
            names = [websockets.Subprotocol(name) for name in ("dragoman", f"dragoman.key.{secret}")]
            return websockets.connect(url, subprotocols=names, proxy=None)

        async with offering(key) as socket:
            assert socket.subprotocol == "dragoman"
        with pytest.raises(websockets.InvalidStatus) as refusal:
            async with offering(f"{key}x"):
                pass
        assert refusal.value.response.status_code == 401


async def test_a_question_is_asked_and_answered_over_the_socket(tmp_path: Path) -> None:
    question_input = {"text": "Which one?", "options": ["red", "blue"]}
    call: dict[str, Any] = {"name": "user_question", "input": question_input}
    steps: list[dict[str, Any]] = [{"tools": [call]}, {"text": "Blue it is."}]
    async with serving(tmp_path, steps, pinned=["user.question"]) as hub:
        await create(hub)
        async with connected(hub) as client, connected(hub) as other:
            await client.until("init")
            await client.send("prompt", text="choose")
            question = (await other.until("question"))[-1]
            assert {name: question[name] for name in question_input} == question_input
            async with connected(hub) as late:
                [init] = await late.until("init")
                assert init["approvals"][0]["question"] == question_input
            await other.send("answer", approvalId=question["questionId"], answer="blue", requestId="q")
            assert (await other.until("done"))[-1]["status"] == "approved"
            await client.until("message.updated")  # the answer up to the question
            whole = (await client.until("message.updated"))[-1]
            assert whole["message"]["parts"][-1]["text"] == "Blue it is."


async def test_a_frame_that_cannot_be_read_is_answered_and_many_end_the_socket(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await create(hub)
        async with connected(hub) as client:
            await client.until("init")
            await client.send("ping")
            await client.until("pong")
            for _ in range(MAX_BAD_FRAMES):
                await client.send("nonsense")
                assert (await client.until("error"))[-1]["error"]["code"] == "bad_request"
            with pytest.raises(websockets.ConnectionClosed):
                await client.until("pong")


async def test_messages_of_two_channels_are_answered_one_after_the_other(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "answer", "delay": 0.02}], play="turns") as hub:
        await create(hub)
        async with connected(hub) as client:
            await client.until("init")
            await client.send("prompt", text="chat", channelType="chat", channelId="1")
            await client.until("chunk")
            await hub.chat("mail", channelType="mail", channelId="1")
        messages = await hub.messages()
        assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
        assert [message["metadata"]["channelType"] for message in messages[::2]] == ["chat", "mail"]


@pytest.mark.parametrize(("page", "printed"), [("sockets", "It is 42."), ("events-of-sessions", "run.ended")])
async def test_the_shortest_client_of_the_documentation_works(
    tmp_path: Path, page: str, printed: str
) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    async with serving(tmp_path, [{"text": "It is 42."}]) as hub:
        await hub.http.post("/api/sessions", json={"id": "trip"})
        program = program.replace("127.0.0.1:8000", hub.url.removeprefix("http://"))
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-c", program, stdout=asyncio.subprocess.PIPE
        )
        if page != "sockets":
            await until(lambda: hub.hub._services.events._followers)
            await hub.chat("What is 6 * 7?")
        async with asyncio.timeout(LIMIT):
            output, _ = await running.communicate()
        assert printed in output.decode()
