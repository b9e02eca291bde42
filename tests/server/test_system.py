"""What a hub tells of itself: agents, providers and the configuration in force, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.config import parse_config
from dragoman.server.app import Hub
from tests.providers.servers import Peer
from tests.providers.servers import serving as upstream
from tests.server.asgi_client import AsgiClient
from tests.server.openapi import check, refused
from tests.server.test_session_owners import key_of
from tests.serving import ask, serving

SECRET = "sk-proj-4f9a0c1d2e4b5a67"


async def test_a_hub_lists_its_agents_and_providers(tmp_path: Path) -> None:
    clerk = {"model": "sim/x", "description": "Works.", "operations": ["time.now"], "max_steps": 3}
    async with serving(tmp_path, [{"text": "Good day."}], agents={"clerk": clerk}) as hub:
        found = {each["name"]: each for each in (await check(hub, "get", "/api/agents"))["agents"]}
        assert sorted(found) == ["clerk", "default"]
        assert found["clerk"] == {
            "name": "clerk",
            "model": "sim/x",
            "description": "Works.",
            "operations": ["time.now"],
            "maxSteps": 3,
            "whenBusy": "refuse",
        }
        assert await check(hub, "get", "/api/models") == {"models": ["sim/any"], "default": "sim/any"}
        await hub.chat("hello")
        await hub.hub.meter.ledger.flush()
        [provider] = (await check(hub, "get", "/api/providers"))["providers"]
        assert (provider["name"], provider["url"], provider["keys"]) == ("sim", None, [])
        assert (provider["lastHour"]["requests"], provider["lastHour"]["failed"]) == (1, 0)
        assert (await check(hub, "get", "/api/config"))["agents"][0]["name"] == "clerk"


async def test_only_administrators_see_providers_and_the_configuration(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        headers = await key_of(hub, "ann", "chat")
        assert (await hub.http.get("/api/agents", headers=headers)).status_code == 200
        _, narrow = await hub.hub.store.keys.create("ann", models=["other/*"])
        models = await hub.http.get("/api/models", headers={"x-api-key": narrow})
        assert models.json()["models"] == []
        for path in ("/api/providers", "/api/config"):
            assert await refused(hub, "get", path, headers=headers) == 403


async def test_no_secret_of_a_provider_is_told_and_a_key_that_fails_cools_down(tmp_path: Path) -> None:
    async def refuse(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")

    async with upstream(refuse) as server:
        place: dict[str, Any] = {
            "type": "openai",
            "base_url": f"{server.url}?api-key={SECRET}",
            "api_key_env": "UP_KEY",
        }
        place |= {"headers": {"x-account": SECRET}, "retries": 0}
        config = parse_config({"providers": {"up": place}, "model": "up/m"})
        async with Hub.open(config, tmp_path, require_keys=False, environ={"UP_KEY": SECRET}) as hub:
            client = AsgiClient(hub.app)
            body = b'{"model":"up/m","messages":[{"role":"user","content":"a"}]}'
            status, answer = await client.post("/v1/chat/completions", body)
            assert status == 401, answer
            for path in ("/api/providers", "/api/config", "/api/agents"):
                status, answer = await client.request("GET", path, b"")
                assert status == 200
                assert SECRET.encode() not in answer, path
            _, answer = await client.request("GET", "/api/providers", b"")
            assert b'"state":"cooling-down"' in answer


async def test_the_prompt_of_a_run_has_its_tools_and_messages_and_instructions_for_administrators_only(
    tmp_path: Path,
) -> None:
    clerk = {"instructions": "Sell tea.", "operations": ["time.now"]}
    async with serving(tmp_path, [{"text": "Tea."}], keys=True, agents={"clerk": clerk}) as hub:
        ann, bob = await key_of(hub, "ann", "chat"), await key_of(hub, "bob", "chat")
        root = await key_of(hub, "root", "chat", "admin")
        await hub.post(ask("What is there?", agent="clerk"), headers=ann)
        [run] = (await hub.http.get("/api/runs", headers=ann)).json()["runs"]
        for headers, instructions, hidden in ((ann, None, ["instructions"]), (root, "Sell tea.", [])):
            found = await check(hub, "get", "/api/runs/{id}/prompt", id=run["id"], headers=headers)
            assert (found["instructions"], found["hidden"]) == (instructions, hidden)
            tools = {tool["name"]: tool["operation"] for tool in found["tools"]}
            assert (tools["time_now"], tools["hub_call"]) == ("time.now", "hub.call")
            assert [message["parts"][0]["text"] for message in found["messages"]] == ["What is there?"]
        assert await refused(hub, "get", "/api/runs/{id}/prompt", id=run["id"], headers=bob) == 404
