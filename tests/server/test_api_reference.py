"""The API reference matches the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import yaml

from dragoman import events as e
from dragoman.mcp.server.endpoint import METHODS
from dragoman.server.a2a.handlers import A2aHandlers
from dragoman.server.accounts.budgets import BudgetHandlers
from dragoman.server.accounts.keys import KeyHandlers
from dragoman.server.accounts.tokens import TokenHandlers
from dragoman.server.accounts.usage import UsageHandlers
from dragoman.server.ag_ui import AgUiHandlers
from dragoman.server.app.routing.a2a_routes import a2a_routes, card_routes
from dragoman.server.app.routing.call_routes import CallApi
from dragoman.server.app.routing.console_routes import ConsoleApi
from dragoman.server.app.routing.routes import (
    MCP_PATH,
    RUNNER_PATH,
    SPOKE_PATH,
    ApiHandlers,
    api_routes,
    gateway_routes,
    public_routes,
)
from dragoman.server.app.routing.system_routes import SystemApi
from dragoman.server.app.routing.team_routes import TeamApi
from dragoman.server.approvals import ApprovalHandlers
from dragoman.server.artifacts import ArtifactHandlers
from dragoman.server.call_trees.json_lines import CallStreamHandlers
from dragoman.server.calls import CallHandlers
from dragoman.server.chat import ChatHandlers
from dragoman.server.console.pages import ConsolePages
from dragoman.server.console.sign_in import SignInHandlers
from dragoman.server.event_publishing import DomainEventHandlers
from dragoman.server.events import EventHandlers
from dragoman.server.gateway.handlers import Gateway
from dragoman.server.gateway.responses.conversations import ConversationHandlers
from dragoman.server.gateway.responses.handlers import ResponseHandlers
from dragoman.server.health import HealthHandlers
from dragoman.server.hosts import HostHandlers
from dragoman.server.log_buffer import LogHandlers
from dragoman.server.mcp_and_spokes import McpServerHandlers
from dragoman.server.metrics.metrics import Metrics
from dragoman.server.operation_statistics import OperationStatisticsHandlers
from dragoman.server.operations import OperationHandlers
from dragoman.server.policy import PolicyHandlers
from dragoman.server.reference.handlers import ReferenceHandlers
from dragoman.server.reference.openapi import vocabulary_schemas
from dragoman.server.reference.page import VERBS, list_operations, render_reference
from dragoman.server.runs import RunHandlers
from dragoman.server.sessions.branches import BranchHandlers
from dragoman.server.sessions.grants import GrantHandlers
from dragoman.server.sessions.import_export import SessionFileHandlers
from dragoman.server.sessions.sessions import SessionHandlers
from dragoman.server.sessions.shares import ShareHandlers
from dragoman.server.standing_rules import PolicyRuleHandlers
from dragoman.server.system import SystemHandlers
from dragoman.server.system_state import HubStateHandlers
from dragoman.server.teams.memory import MemoryHandlers, VaultHandlers
from dragoman.server.teams.skills_and_plugins import SkillHandlers
from dragoman.server.teams.tasks import TaskHandlers
from dragoman.server.teams.teams import TeamHandlers
from dragoman.server.teams.triggers import TriggerHandlers, TriggerHookHandlers
from dragoman.wire.ui.encoder import UIStreamEncoder
from tests.server.openapi import DOCUMENT, check, resolve, validator
from tests.serving import ask, serving

MANY: dict[str, Any] = {"text": "Good day.", "reasoning": "greet", "tools": [{"name": "hub_list"}]}
TEAM_ROOMS: Any = {
    "teams": TeamHandlers,
    "tasks": TaskHandlers,
    "memory": MemoryHandlers,
    "vault": VaultHandlers,
    "triggers": TriggerHandlers,
    "hooks": TriggerHookHandlers,
    "skills": SkillHandlers,
}

SYSTEM_ROOMS: Any = {
    "system": SystemHandlers,
    "state": HubStateHandlers,
    "hosts": HostHandlers,
    "logs": LogHandlers,
    "budgets": BudgetHandlers,
    "policy": PolicyHandlers,
    "statistics": OperationStatisticsHandlers,
}
CONSOLE_ROOMS: Any = {"browsers": None, "sign_in": SignInHandlers, "pages": ConsolePages}


CALL_ROOMS: Any = {
    "calls": CallHandlers,
    "streams": CallStreamHandlers,
    "approvals": ApprovalHandlers,
    "rules": PolicyRuleHandlers,
}


class Responses(ResponseHandlers):
    """The handlers of responses, with those of conversations as a hub gives them."""

    conversations: Any = ConversationHandlers


ROOMS: Any = {
    "chat": ChatHandlers,
    "ag_ui": AgUiHandlers,
    "a2a": A2aHandlers,
    "sessions": SessionHandlers,
    "runs": RunHandlers,
    "branches": BranchHandlers,
    "files": SessionFileHandlers,
    "shares": ShareHandlers,
    "operations": OperationHandlers,
    "gateway": Gateway,
    "responses": Responses,
    "calls": CallApi(**CALL_ROOMS),
    "artifacts": ArtifactHandlers,
    "servers": McpServerHandlers,
    "teams": TeamApi(**TEAM_ROOMS),
    "console": ConsoleApi(**CONSOLE_ROOMS),
    "keys": KeyHandlers,
    "system": SystemApi(**SYSTEM_ROOMS),
    "events": EventHandlers,
    "domain_events": DomainEventHandlers,
    "grants": GrantHandlers,
    "session_sockets": None,
    "mcp": None,
    "spokes": None,
    "runners": None,
    "tokens": TokenHandlers,
    "usage": UsageHandlers,
    "metrics": Metrics,
    "health": HealthHandlers,
    "reference": ReferenceHandlers,
}
OPEN_STATUSES = {
    "/share/{token}": 404,
    "/hooks/triggers/{id}": 404,
    "/console": 308,
    "/console/assets/{name}": 404,
}
EVENTS: tuple[e.Event, ...] = (
    e.Start("m1", {"model": "a/b"}),
    e.StartStep(),
    e.TextStart("t"),
    e.TextDelta("t", "Hi"),
    e.TextEnd("t", {"openai": {"itemId": "x"}}),
    e.ReasoningStart("r"),
    e.ReasoningDelta("r", "hm"),
    e.ReasoningEnd("r"),
    e.ToolInputStart("c", "look", dynamic=True, title="Look"),
    e.ToolInputDelta("c", "{}"),
    e.ToolInputAvailable("c", "look", {"a": None}),
    e.ToolInputError("c", "look", "{", "no JSON"),
    e.ToolApprovalRequest("a", "c"),
    e.ToolApprovalResponse("a", approved=True),
    e.ToolOutputAvailable("c", None, preliminary=True),
    e.ToolOutputError("c", "broken"),
    e.ToolOutputDenied("c"),
    e.SourceUrl("s", "http://a.example/"),
    e.SourceDocument("s", "text/plain", "A"),
    e.File("data:,", "text/plain"),
    e.Data("data-weather", {"sun": True}, id="w"),
    e.MessageMetadata({"a": 1}),
    e.ResetStep(),
    e.FinishStep("stop", usage=e.Usage(1, 2), model="m", provider="p", duration=1.0),
    e.ErrorEvent("broken", code="api_error", transient=True),
    e.Abort("stopped"),
    e.Finish("max-steps", message_metadata={}, usage=e.Usage(1), steps=3),
)


def within(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from within(each)


def written(path: str) -> str:
    """A route's path as the document writes it."""
    return path.replace(":path}", "}")


@pytest.mark.promise("every-address-is-described")
def test_the_document_has_every_endpoint_of_the_hub_and_says_which_want_a_key() -> None:
    rooms = ApiHandlers(**ROOMS)
    replies = {
        (verb, path, replies.get("security") != [])
        for verb, path, replies in list_operations(DOCUMENT["paths"])
    }
    wanted = {(verb.lower(), path, True) for path, handlers, _ in api_routes(rooms) for verb in handlers}
    wanted |= {
        (verb.lower(), written(path), True)
        for path, handlers, _ in gateway_routes(rooms)
        for verb in handlers
    }
    wanted |= {(verb.lower(), path, True) for path, handlers, _ in a2a_routes(rooms.a2a) for verb in handlers}
    wanted |= {(verb.lower(), MCP_PATH, True) for verb in METHODS.split(", ") if verb != "OPTIONS"}
    open_ones = {
        (verb.lower(), written(path), False) for path, handlers in public_routes(rooms) for verb in handlers
    }
    open_ones |= {
        (verb.lower(), path, False) for path, handlers in card_routes(rooms.a2a) for verb in handlers
    }
    assert replies == wanted | open_ones | {("get", "/metrics", False)}


def test_the_document_tells_in_words_of_the_socket_that_openapi_has_no_form_for() -> None:
    message = " ".join(tag["description"] for tag in DOCUMENT["tags"])
    for path in (SPOKE_PATH, RUNNER_PATH):
        assert path not in DOCUMENT["paths"]
        assert f"`{path}`" in message


def test_every_reference_within_the_document_leads_somewhere() -> None:
    for value in within(DOCUMENT):
        if "$ref" in value:
            assert resolve(value["$ref"]) is not None, value


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_every_schema_is_one(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    jsonschema_rs.meta.validate(schema)
    validator(schema)


def test_no_shape_written_by_hand_has_the_name_of_one_from_the_vocabulary() -> None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files("dragoman.server.reference").joinpath("openapi.yaml").read_text(encoding="utf-8")
    document = yaml.load(text, Loader=loader)
    assert set(document["components"]["schemas"]) & set(vocabulary_schemas()) == set()


def test_operations_have_names_of_their_own_and_say_what_they_are() -> None:
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    replies = [operation for _, _, operation in list_operations(DOCUMENT["paths"])]
    names = [each["operationId"] for each in replies]
    assert sorted(set(names)) == sorted(names)
    assert all(each["summary"] and set(each["tags"]) <= tags for each in replies)
    assert all("default" not in each["responses"] and each["responses"] for each in replies)


def test_every_parameter_of_a_path_is_described() -> None:
    for _, path, reply in list_operations(DOCUMENT["paths"]):
        parameters = [
            resolve(each["$ref"]) if "$ref" in each else each for each in reply.get("parameters", ())
        ]
        described = {each["name"] for each in parameters if each["in"] == "path"}
        assert described == set(re.findall(r"{(\w+)}", path)), path
        assert all(each["description"] for each in parameters)


def test_every_example_fits_its_schema() -> None:
    checked = 0
    for media in within(DOCUMENT):
        shown = [each["value"] for each in media.get("examples", {}).values()] if "schema" in media else []
        if "schema" in media and "example" in media:
            shown.append(media["example"])
        for each in shown:
            validator(media["schema"]).validate(each)
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("event", EVENTS, ids=e.event_type)
def test_what_a_stream_says_fits_the_document(event: e.Event) -> None:
    frames = UIStreamEncoder(sdk=7).encode([event]).removeprefix(b"data: ").strip()
    reply = msgspec.json.decode(frames)
    validator(DOCUMENT["components"]["schemas"]["StreamEvent"]).validate(reply)
    shape = DOCUMENT["components"]["schemas"][type(event).__name__]
    assert set(reply) <= set(shape["properties"])


def test_what_no_stream_says_does_not_fit() -> None:
    shape = validator(DOCUMENT["components"]["schemas"]["StreamEvent"])
    for wrong in ({"type": "step-start"}, {"type": "text-delta", "id": "t"}, {"type": "weather", "data": 1}):
        assert not shape.is_valid(wrong)


async def test_the_hub_answers_as_the_document_says(tmp_path: Path) -> None:
    async with serving(tmp_path, [MANY, {"text": "There."}, {"error": {"message": "no"}}]) as served:
        await check(served, "post", "/api/sessions", json={"id": "s", "title": "Trip"})
        assert "[DONE]" in await check(served, "post", "/api/chat", json=ask("hello"))
        pending = await check(served, "get", "/api/sessions/{id}/messages")
        assert [message["role"] for message in pending["messages"]] == ["user", "assistant"]
        assert "[DONE]" in await check(served, "post", "/api/sessions/{id}/chat", json=ask("again"))
        for path in ("/api/chat/{id}/stream", "/api/sessions/{id}/chat/{same}/stream"):
            await check(served, "get", path)
        await check(served, "post", "/api/chat/{id}/stop")
        accepted = await check(served, "post", "/api/chat", json=ask("later", background=True))
        await check(served, "get", "/api/sessions/{id}/queue")
        await check(served, "delete", "/api/sessions/{id}/queue/{queued}", queued="none")
        await check(served, "get", "/api/runs/{id}", id=accepted["runId"])
        prompt = await check(served, "get", "/api/runs/{id}/prompt", id=accepted["runId"])
        assert "hub_call" in [tool["name"] for tool in prompt["tools"]]
        await check(served, "post", "/api/runs/{id}/stop", id=accepted["runId"])
        assert len((await check(served, "get", "/api/runs"))["runs"]) == 3
        for verb, path, body in (
            ("get", "/api/sessions", None),
            ("get", "/api/sessions/{id}", None),
            ("patch", "/api/sessions/{id}", {"maxSteps": 3}),
            ("delete", "/api/sessions/{id}", None),
        ):
            await check(served, verb, path, **({"json": body} if body else {}))


async def test_operations_answer_as_the_document_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await check(served, "get", "/api/operations")
        await check(served, "get", "/api/operations", params={"q": "time"})
        await check(served, "get", "/api/operations/{id}", id="time.now")
        await check(served, "post", "/api/operations/{id}/call", id="time.now")
        wrong = await check(served, "post", "/api/operations/{id}/call", id="time.now", json={"zone": 1})
        assert wrong["success"] is False


async def test_the_gateway_answers_as_the_document_says(tmp_path: Path) -> None:
    hi = {"model": "sim/any", "messages": [{"role": "user", "content": "Good day."}]}
    request = {**hi, "max_tokens": 9}
    async with serving(tmp_path, [MANY] * 4, aliases={"fast": "sim/any"}) as served:
        whole = await check(served, "post", "/v1/chat/completions", json=hi)
        assert whole["choices"][0]["message"]["content"] == "Good day."
        streamed = await check(served, "post", "/v1/chat/completions", json={**hi, "stream": True})
        assert streamed.endswith("data: [DONE]\n\n")
        body = await check(served, "post", "/v1/messages", json=request)
        assert body["content"][-2] == {"type": "text", "text": "Good day."}
        assert "event: message_stop" in await check(
            served, "post", "/v1/messages", json={**request, "stream": True}
        )
        counted = await check(served, "post", "/v1/messages/count_tokens", json=hi)
        assert counted["input_tokens"] > 0
        assert [each["id"] for each in (await check(served, "get", "/v1/models"))["data"]] == [
            "fast",
            "sim/any",
        ]
        await check(served, "get", "/v1/models/{id}", id="sim/whatever")
        used = await check(served, "get", "/api/usage")
        assert [row["door"] for row in used["rows"]] == ["openai", "openai", "anthropic", "anthropic"]
        sums = await check(served, "get", "/api/usage", params={"group_by": "owner,door"})
        assert [row["calls"] for row in sums["rows"]] == [2, 2]
        assert "use_" in await check(served, "get", "/api/usage", params={"format": "csv"})
        assert "dragoman_requests_total" in await check(served, "get", "/metrics")
        assert await check(served, "get", "/readyz") == {"status": "ready", "store": "ok"}


async def test_the_gateway_fails_as_the_document_says(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"error": {"message": "no"}}], limits={"gateway_body": 1000}) as served:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
            await check(served, "post", path, json={"model": "sim/any"})
            await check(served, "post", path, json={"model": "nobody"})
            await check(served, "post", path, content=b"x" * 2000)
        hi = {"model": "sim/any", "messages": [{"role": "user", "content": "Good day."}]}
        await check(served, "post", "/v1/chat/completions", json=hi)
        await check(served, "get", "/v1/models/{id}", id="nobody")
        await check(served, "get", "/api/usage", params={"colour": "red"})


async def test_a_hub_that_stops_says_when_to_ask_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.hub.gateway.draining = True
        await check(served, "post", "/v1/chat/completions", json={"model": "sim/any"})
        await check(served, "post", "/v1/messages", json={"model": "sim/any"})
        refused = await served.http.post("/v1/messages", json={"model": "sim/any"})
        assert (refused.headers["x-should-retry"], refused.headers["retry-after"]) == ("true", "1")
        assert await check(served, "get", "/readyz") == {"status": "draining", "store": "ok"}


async def test_a_provider_without_embeddings_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        refused = await check(
            served, "post", "/v1/embeddings", json={"model": "sim/any", "input": "Good day."}
        )
        assert refused["error"] == {
            "message": "the provider of this model does not support embeddings"
            " (use a provider of the type openai)",
            "type": "invalid_request_error",
            "param": "model",
            "code": "bad_request",
        }


async def test_failures_answer_as_the_document_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await check(served, "post", "/api/chat", json={"id": "s"})
        await check(served, "post", "/api/chat", json=ask("hi", agent="ghost"))
        await check(served, "get", "/api/sessions/{id}", id="none")
        await check(served, "get", "/api/sessions", params={"limit": "0"})
        await check(served, "get", "/api/operations/{id}", id="no.such")
        await check(served, "post", "/api/sessions", content=b"x" * 70_000)


async def test_the_reference_is_open_to_those_without_a_key(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as served:
        for _, path, reply in list_operations(DOCUMENT["paths"]):
            public = reply.get("security") == []
            verb = next(verb for verb in VERBS if verb in DOCUMENT["paths"][path])
            response = await served.http.request(verb.upper(), path.replace("{agent}", "default"))
            found = OPEN_STATUSES.get(path, 200)
            assert (response.status_code == found) is public, path
            assert (response.status_code == 401) is not public, path
        assert (await served.http.get("/openapi.json")).json() == DOCUMENT


async def test_the_landing_page_serves_browsers_and_programs(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        page = await served.http.get("/", headers={"accept": "text/html,*/*"})
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert 'href="/docs"' in page.text
        body = (await served.http.get("/")).json()
        assert (body["name"], body["links"]["docs"]) == ("dragoman", "/docs")


TAG = re.compile(r"<(/?)([a-z0-9]+)[^>]*>")
ALONE = {"meta", "br"}


def test_the_page_is_whole_and_asks_nothing_of_other_hosts() -> None:
    page = render_reference(DOCUMENT)
    stack: list[str] = []
    for closing, tag in TAG.findall(page):
        if closing:
            assert stack.pop() == tag
        elif tag not in ALONE:
            stack.append(tag)
        assert tag not in ("script", "link", "img", "iframe")
    assert stack == []
    links, ids = re.findall(r'(?:href|src)="([^"]*)"', page), re.findall(r'\bid="([^"]*)"', page)
    assert "url(" not in page
    assert "@import" not in page
    assert all(link.startswith(("/", "#")) for link in links)
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert sorted(set(ids)) == sorted(ids)
    for _, path, _ in list_operations(DOCUMENT["paths"]):
        assert f"<code>{path}</code>" in page
