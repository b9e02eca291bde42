"""Agents of a served hub: prepared steps, structured output, operations."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import ConfigError
from dragoman.operations.context import Context
from dragoman.server.app import services
from tests.serving import Served, serving, text_of, types, usage, write_script

HERE = Path(__file__).parent
OWN = HERE / "configured_functions.py"
NOW = {"tools": [{"name": "time_now", "input": {}}], "usage": usage(100, 10)}
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer", "minimum": 1}},
    "required": ["name", "people"],
}
BONN = '{"name": "Bonn", "people": 335000}'


def two(folder: Path, use: str) -> dict[str, Any]:
    """A hub with two providers, of which the second is dear; its agent changes steps."""
    big = {"text": "From the big one.", "usage": usage(100, 10)}
    dear = write_script(folder / "dear", [big, big], play="turns")
    cheap = write_script(folder / "cheap", [NOW, {"text": "From the small one."}], play="turns")
    providers = {
        name: {"type": "scripted", "script": str(path)} for name, path in (("sim", cheap), ("dear", dear))
    }
    prices = {"sim/*": {"input": 1, "output": 10}, "dear/*": {"input": 100, "output": 1000}}
    agents = {"default": {"operations": ["time.now"], "on_prepare_step": f"{OWN}:{use}"}}
    return {"providers": providers, "prices": prices, "agents": agents}


async def rows(hub: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await hub.http.get("/api/usage")).json()["rows"]
    return found


def error_of(frames: list[dict[str, Any]]) -> str:
    return "".join(frame["errorText"] for frame in frames if frame["type"] == "error")


async def test_a_step_of_another_model_is_written_down_and_paid_as_that_models(tmp_path: Path) -> None:
    async with serving(tmp_path, **two(tmp_path, "other")) as hub:
        frames = await hub.chat()
        assert "From the big one." in text_of(frames)
        first, second = await rows(hub)
        assert (first["modelAsked"], first["cost"], first["step"]) == ("sim/any", 0.0002, 1)
        assert (second["modelAsked"], second["provider"], second["cost"]) == ("dear/big", "dear", 0.02)
        assert second["step"] == 2
        assert frames[-1]["messageMetadata"]["cost"] == pytest.approx(0.0202)
        sent = hub.hub.runs.agents.routing.providers["dear"].requests[0]  # type: ignore[attr-defined]
        assert ([tool.name for tool in sent.tools], sent.options, sent.model) == (
            ["time_now"],
            {"top_p": 1},
            "big",
        )


async def test_a_step_goes_to_no_model_that_its_key_may_not_ask(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True, **two(tmp_path, "other")) as hub:
        _, secret = await hub.hub.store.keys.create("ada", models=["sim/*"])
        response = await hub.http.post(
            "/api/chat",
            json={
                "id": "s",
                "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
            },
            headers={"authorization": f"Bearer {secret}"},
        )
        assert "on_prepare_step: this key may not use the model 'dear/big'; it may use sim/*" in response.text
        await hub.hub.meter.ledger.flush()
        [row] = await hub.hub.store.usage.list()
        assert row.provider == "sim"


async def test_a_step_that_names_a_model_that_there_is_not_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, **two(tmp_path, "lost")) as hub:
        error = error_of(await hub.chat())
        assert error == "on_prepare_step: no provider answers for 'nobody/any'; the providers are dear, sim"


@pytest.mark.parametrize("kind", ["inline", "file"])
async def test_an_answer_in_a_form_is_asked_for_until_it_fits(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "city.json"
    path.write_bytes(msgspec.json.encode(CITY))
    agents = {"default": {"output": CITY if kind == "inline" else str(path)}}
    steps = [{"text": "It is Bonn."}, {"text": '{"name": "Bonn", "people": 0}'}, {"text": BONN}]
    async with serving(tmp_path, steps, agents=agents) as hub:
        frames = await hub.chat("Which city?")
        [_, answer] = await hub.messages()
        sent = hub.hub.runs.agents.routing.providers["sim"].requests  # type: ignore[attr-defined]
    texts = [part["text"] for part in answer["parts"] if part["type"] == "text"]
    assert (texts[-1], len(texts), frames[-1]["finishReason"]) == (BONN, 3, "stop")
    assert sent[0].options["response_format"]["json_schema"]["schema"] == CITY
    assert "people" in sent[2].messages[-1].parts[0].text


async def test_an_answer_that_never_fits_fails_after_some_attempts(tmp_path: Path) -> None:
    agents = {"default": {"output": CITY}}
    async with serving(tmp_path, [{"text": "It is Bonn."}] * 3, agents=agents) as hub:
        frames = await hub.chat("Which city?")
    assert "the answer does not fit" in error_of(frames)
    assert frames[-1]["messageMetadata"]["steps"] == 3


async def test_the_last_text_is_the_json_alone_whatever_the_model_said_around_it(tmp_path: Path) -> None:
    agents = {
        "default": {"output": CITY, "operations": ["time.now"]},
        "list": {"output": {"type": "array", "items": {"type": "integer"}}},
    }
    steps: list[dict[str, Any]] = [NOW, {"text": f"Here it is:\n```json\n{BONN}\n```"}]
    async with serving(tmp_path, steps, play="turns", agents=agents) as hub:
        await hub.chat("Which city?")
        [_, answer] = await hub.messages()
        assert answer["parts"][-1]["text"] == '{"name":"Bonn","people":335000}'
    async with serving(tmp_path / "list", [{"text": '{"value": [1, 2]}'}], agents=agents) as hub:
        frames = await hub.chat("Which numbers?", agent="list")
        assert [frame["delta"] for frame in frames if frame["type"] == "text-delta"][-1] == "[1,2]"


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ({"type": "objekt"}, "agents.default.output: The schema is not a valid JSON Schema"),
        ("nowhere.json", "agents.default.output: cannot read 'nowhere.json'"),
        (str(OWN), "does not contain a JSON Schema"),
    ],
)
async def test_an_invalid_schema_is_reported_at_the_start(output: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        async with serving(tmp_path, agents={"default": {"output": output}}):
            pass


def starting(folder: Path, go: Path) -> dict[str, Any]:
    """A hub with a server that starts when a file is there, and an agent that pins its operation."""
    server = HERE.parent / "mcp" / "client" / "raw_server.py"
    words = [sys.executable, "-S", "-E", str(server), str(folder / "raw.txt")]
    wait = f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.02; done; exec {shlex.join(words)}"
    return {
        "agents": {"default": {"operations": ["raw.echo"]}},
        "mcp_servers": {"raw": {"command": ["sh", "-c", wait]}},
    }


async def test_a_chat_waits_for_pinned_operations_of_a_server_that_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    monkeypatch.setattr(services, "ARRIVAL_TIMEOUT", 60.0)
    steps: list[dict[str, Any]] = [{"tools": [{"name": "raw_echo", "input": {"a": 1}}]}, {"text": "Done."}]
    async with serving(tmp_path, steps, play="turns", **starting(tmp_path, go)) as hub:
        calls = hub.hub._services.calls
        waiting = calls.wait_for_operations

        async def arrived(ids: Sequence[str], context: Context) -> None:
            go.touch()  # the chat waits now, so the server may start
            await waiting(ids, context)

        monkeypatch.setattr(calls, "wait_for_operations", arrived)
        frames = await hub.chat()
    outputs = [frame["output"] for frame in frames if frame["type"] == "tool-output-available"]
    assert (outputs, types(frames)[-1]) == (['{"a": 1}'], "finish")


async def test_a_chat_does_not_wait_for_ever_for_a_server_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "ARRIVAL_TIMEOUT", 0.01)
    async with serving(tmp_path, [{"text": "Hi."}], **starting(tmp_path, tmp_path / "never")) as hub:
        assert text_of(await hub.chat()) == "Hi."
        [sent] = hub.hub.runs.agents.routing.providers["sim"].requests  # type: ignore[attr-defined]
        assert "raw_echo" not in [tool.name for tool in sent.tools]


async def test_a_step_of_another_provider_reads_as_much_as_that_is_said_to(tmp_path: Path) -> None:
    config = two(tmp_path, "other")
    config["agents"]["default"]["context"] = {"policy": "truncate"}
    config["providers"]["dear"]["contexts"] = {"big": 400}
    config["providers"]["sim"]["contexts"] = {"big": 100}
    async with serving(tmp_path, **config) as hub:
        await hub.chat("word " * 300, id="u1")
        frames = await hub.chat("And now?", id="u2")
        cut = [frame["data"] for frame in frames if frame["type"] == "data-context"]
        assert len(cut) == 1
        assert types(frames).index("data-context") > types(frames).index("tool-output-available")
