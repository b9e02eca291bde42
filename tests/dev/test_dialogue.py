"""Seed 000's dialogue: an agent of the hub spawns others in worktrees, by the meta-tools."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import Conflict
from tests.dev.repositories import git
from tests.dev.workshop import SPAWN, hub_with_repository, served_repository, workshop
from tests.runners.programs import program
from tests.server.test_events import following
from tests.serving import text_of

SLOW = [{"text": [f"word{number} " for number in range(2_000)], "delay": 0.02}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def call(name: str, **input: Any) -> dict[str, Any]:
    """A step of the parent's model: one call of a meta-tool."""
    return {"tools": [{"name": name, "input": input}]}


DIALOGUE = [
    call("hub_search", q="spawn"),
    call("hub_schema", tool="coord.spawn"),
    call("hub_call", calls=[{"tool": "coord.spawn", "input": SPAWN}]),
    call(
        "hub_call",
        calls=[
            {"tool": "coord.status", "input": {"parentSessionId": "main"}},
            {"tool": "coord.message", "input": {"sessionId": "auth", "body": "Say when it is done."}},
        ],
    ),
    {"text": "It is under way."},
]


def outputs(messages: list[dict[str, Any]]) -> list[Any]:
    """The results of the meta-tools, in order."""
    return [part["output"] for part in messages[-1]["parts"] if part["type"].startswith("tool-hub")]


@pytest.mark.promise("dev-spoke")
@pytest.mark.parity
async def test_the_dialogue_of_the_seed_spawns_an_agent_asks_how_it_is_and_writes_to_it(
    tmp_path: Path,
) -> None:
    async with workshop(tmp_path, DIALOGUE) as shop:
        frames = await shop.served.chat("Have a login added", session="main")
        assert text_of(frames) == "It is under way."
        found, described, spawned, both = outputs(await shop.served.messages("main"))
        assert "coord.spawn" in str(found)
        assert {"sessionId", "task", "branch"} <= set(described["inputSchema"]["properties"])
        assert spawned[0]["success"], spawned
        assert spawned[0]["result"]["sessionId"] == "auth"
        assert spawned[0]["result"]["parentSessionId"] == "main"
        status, message = both
        [task] = status["result"]["tasks"]
        assert (task["sessionId"], task["branch"]) == ("auth", "auth")
        assert message["result"]["delivered"] in ("begun", "queued")
        done = await shop.settled(messages=4)
        assert (done["state"], done["git"]["ahead"]) == ("ready", 1)
        place = shop.repository.with_name("shop.worktrees") / done["worktree"]
        assert (place / "login.py").read_text() == "print('login')\n"
        assert git(place, "log", "-1", "--format=%s") == "Add a login"
        roles = [each["role"] for each in await shop.served.messages("auth")]
        assert roles == ["user", "assistant", "user", "assistant"]
        usage = await shop.served.http.get("/api/usage", params={"group_by": "door,provider"})
        doors = [each["group"] for each in usage.json()["rows"]]
        assert {"door": "openai", "provider": "worker"} in doors, doors


@pytest.mark.parity
async def test_a_task_is_merged_and_its_worktree_removed_on_request(tmp_path: Path) -> None:
    async with workshop(tmp_path, DIALOGUE) as shop:
        await shop.call("coord.spawn", **SPAWN)
        await shop.settled()
        diff = await shop.call("coord.diff", sessionId="auth")
        assert diff["files"] == [{"path": "login.py", "added": 1, "deleted": 0}]
        assert "not merged" in await shop.failure("coord.remove", sessionId="auth")
        merged = await shop.call("coord.merge", sessionId="auth")
        assert merged["state"] == "merged"
        assert (shop.repository / "login.py").exists()
        removed = await shop.call("coord.remove", sessionId="auth")
        assert (removed["state"], removed["savedAs"]) == ("removed", None)
        assert "is removed" in await shop.failure("coord.message", sessionId="auth", body="more")


@pytest.mark.parity
async def test_the_same_spawn_twice_is_one_task_and_another_one_needs_another_id(tmp_path: Path) -> None:
    async with workshop(tmp_path, DIALOGUE) as shop:
        first = await shop.call("coord.spawn", **SPAWN)
        again = await shop.call("coord.spawn", **SPAWN)
        assert again["branch"] == first["branch"]
        assert "has a task already" in await shop.failure("coord.spawn", **{**SPAWN, "task": "Else"})
        assert len((await shop.call("coord.status"))["tasks"]) == 1
        assert "exists already" in await shop.failure("coord.spawn", **{**SPAWN, "sessionId": "auth2"})
        assert (await shop.call("coord.status", parentSessionId="nobody")) == {"tasks": []}


@pytest.mark.parity
async def test_the_parent_session_gets_progress_git_state_and_diff(tmp_path: Path) -> None:
    async with workshop(tmp_path, DIALOGUE) as shop:
        await shop.served.http.post("/api/sessions", json={"id": "main"})
        async with following(shop.served, "?session=main&name=data-") as events:
            await shop.call("coord.spawn", **SPAWN, parentSessionId="main")
            seen = await events.until("data-diff")
        states = [each["data"]["state"] for each in seen if each["name"] == "data-child-session"]
        assert states[0] == "starting"
        assert "working" in states
        assert states[-1] == "ready"
        details = [each["data"].get("detail") for each in seen if each["name"] == "data-child-session"]
        assert "files_write" in details
        state, diff = seen[-2:]
        assert (state["name"], state["data"]["branch"], state["data"]["ahead"]) == (
            "data-git-state",
            "auth",
            1,
        )
        assert diff["data"]["sessionId"] == "auth"
        assert diff["data"]["files"] == [{"path": "login.py", "added": 1, "deleted": 0}]
        assert "+print('login')" in diff["data"]["text"]


@pytest.mark.parity
async def test_a_task_that_is_stopped_goes_on_with_a_message(tmp_path: Path) -> None:
    async with workshop(tmp_path, work=SLOW) as shop:
        await shop.call("coord.spawn", **SPAWN)
        await shop.written("word3")
        stopped = await shop.served.http.post("/api/chat/auth/stop")
        assert stopped.json()["stopped"]
        assert (await shop.settled())["state"] == "interrupted"
        await shop.call("coord.message", sessionId="auth", body="Go on")
        assert (await shop.task())["state"] == "working"


@pytest.mark.parity
async def test_tasks_are_found_again_after_a_kill_and_go_on(tmp_path: Path) -> None:
    async with hub_with_repository(tmp_path, work=SLOW) as shop:
        arguments = ("--repository", str(shop.repository), "--hub", shop.served.url, "--model", "worker/any")
        command = (sys.executable, "-m", "dragoman", "dev", *arguments, "--id", "dev")
        async with program(*command) as dev:
            await dev.see("serves coord.*")
            await shop.call("coord.spawn", **SPAWN)
            await shop.written("word3")
            with pytest.raises(Conflict, match="another `dragoman dev`"):
                async with served_repository(shop):
                    pass
            dev.process.send_signal(signal.SIGKILL)
            await dev.process.wait()
        async with served_repository(shop) as again:
            assert again.restored == ["auth"]
            task = await shop.task()
            assert (task["state"], task["git"]["branch"]) == ("interrupted", "auth")
            [_, answer] = await shop.settled_messages()
            assert "word3" in str(answer["parts"])
            assert (await shop.call("coord.message", sessionId="auth", body="Go on"))["delivered"] == "begun"
            assert (await shop.task())["state"] == "working"


@pytest.mark.parity
async def test_a_command_works_in_the_worktree_with_the_hub_as_its_provider(tmp_path: Path) -> None:
    script = "cat > task.txt; echo $OPENAI_BASE_URL $ANTHROPIC_BASE_URL"
    async with hub_with_repository(tmp_path) as shop, served_repository(shop, "sh", "-c", script):
        await shop.call("coord.spawn", **SPAWN)
        task = await shop.settled()
        assert task["state"] == "ready"
        assert task["lastText"] == f"{shop.served.url}/v1 {shop.served.url}\n"
        assert (shop.repository.with_name("shop.worktrees") / task["worktree"] / "task.txt").read_text() == (
            "Add a login page"
        )


async def test_a_task_without_a_parent_and_with_a_branch_that_git_refuses_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    async with workshop(tmp_path) as shop:
        assert "not a valid name" in await shop.failure("coord.spawn", task="x", branch="a..b")
        assert "there is no branch" in await shop.failure("coord.spawn", task="x", base="nope")
        assert (await shop.call("coord.status")) == {"tasks": []}
        assert git(shop.repository, "branch", "--list") == "* main"
        spawned = await shop.call("coord.spawn", task="Do it")
        assert spawned["branch"] == f"dragoman/{spawned['sessionId']}"


async def test_a_hub_that_is_away_for_a_while_loses_nothing_of_the_tasks(tmp_path: Path) -> None:
    async with hub_with_repository(tmp_path) as shop, served_repository(shop):
        await shop.call("coord.spawn", **SPAWN)
        await shop.settled()
    async with workshop(tmp_path) as shop:
        assert (await shop.task())["state"] == "ready"
        await shop.call("coord.message", sessionId="auth", body="Once more")
        assert (await shop.settled(messages=4))["state"] == "ready"


async def test_a_key_with_four_scopes_is_enough_and_another_owner_sees_nothing(tmp_path: Path) -> None:
    async with hub_with_repository(tmp_path, keys=True) as shop:
        keys = shop.served.hub.store.keys
        scopes = frozenset({"chat", "gateway", "spoke", "runner"})
        _, key = await keys.create("ann", name="dev", scopes=scopes)
        _, hers = await keys.create("ann", name="ann")
        _, his = await keys.create("bob", name="bob")
        async with served_repository(shop, key=key):
            shop.served.http.headers["authorization"] = f"Bearer {hers}"
            await shop.call("coord.spawn", **SPAWN)
            assert (await shop.settled())["state"] == "ready"
            listed = await shop.served.http.get("/api/operations", params={"namespace": "coord"})
            assert len(listed.json()["operations"]) == 6
            shop.served.http.headers["authorization"] = f"Bearer {his}"
            listed = await shop.served.http.get("/api/operations", params={"namespace": "coord"})
            assert listed.json()["operations"] == []
            answer = await shop.served.http.get("/api/sessions/auth")
            assert answer.status_code == 404
