"""Questions to the users of MCP clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.client import Client
from mcp_types import ElicitResult

from dragoman import Agent, ScriptedModel, operation
from dragoman.identity import Identity
from dragoman.messages import ToolPart
from dragoman.providers.scripted import ScriptedStep
from dragoman.tools.question import question
from tests.mcp.server.hub import Hub, batch, body, post, served

pytestmark = pytest.mark.anyio
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
COLOUR = {"text": "Which colour?", "options": ["red", "blue"]}
PLAN: Sequence[ScriptedStep] = [
    ("shop_look", {"item": "paint"}),
    ("user_question", COLOUR),
    ("shop_order", {"item": "paint"}),
    ("user_question", {"text": "When?"}),
    "Done: {outputs}",
]
CLERK = {"prompt": "buy paint"}


class Shop:
    """Operations with effects that are counted, and a clerk who uses them."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.ordered: list[str] = []

        @operation("shop", effect="once")
        def look(item: str) -> str:
            """Look an item up."""
            self.looked.append(item)
            return f"{item} is there"

        @operation("shop", effect="once", approval=True)
        def order(item: str) -> str:
            """Order an item."""
            self.ordered.append(item)
            return f"ordered {item}"

        tools: list[Any] = [look, order, question]
        self.model = ScriptedModel(PLAN)
        self.clerk = Agent(self.model, operations=tools, name="clerk")

    @property
    def reports(self) -> list[Any]:
        """What the clerk's model was told last of what it had called."""
        calls = [part for part in self.model.requests[-1].messages[-1].parts if isinstance(part, ToolPart)]
        return [call.error_text or call.output or call.state for call in calls]


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[Hub, Shop]]:
    """A hub with a shop, whose clerk is an operation."""
    here = Shop()
    async with here.clerk:
        work = here.clerk.as_operation("Buys things.")
        async with served(operations=[question, work], pinned=["user.question", "agents.clerk"]) as hub:
            yield hub, here


class Person:
    """Somebody at a client, who says one thing after another."""

    def __init__(self, *says: ElicitResult) -> None:
        self.says = list(says)
        self.requests: list[Any] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        assert context is not None
        self.requests.append(params)
        return self.says.pop(0)


def accept(**content: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=content)


NO = ElicitResult(action="decline")
TOOLS = [("user_question", COLOUR), ("hub_call", batch("user.question", **COLOUR))]


@MODES
@pytest.mark.parametrize(("tool", "input"), TOOLS)
@pytest.mark.parametrize(
    ("reply", "answer"),
    [({"answer": "blue"}, "blue"), ({"other": "mauve"}, "mauve"), ({"answer": "red", "other": " "}, "red")],
)
async def test_a_question_is_asked_and_answered(
    mode: str, tool: str, input: Any, reply: dict[str, Any], answer: str
) -> None:
    person = Person(accept(**reply))
    async with shop() as (hub, _), Client(hub.url, mode=mode, elicitation_callback=person) as client:
        result = await client.call_tool(tool, input)
    assert not result.is_error
    assert answer in text_of(result)
    [request] = person.requests
    assert request.message == "Which colour?"
    fields = request.requested_schema["properties"]
    assert (fields["answer"]["enum"], fields["other"]["type"]) == (["red", "blue"], "string")
    assert "required" not in request.requested_schema


@MODES
async def test_a_question_without_options_is_a_line_of_text(mode: str) -> None:
    person = Person(accept(answer="tomorrow"))
    async with shop() as (hub, _), Client(hub.url, mode=mode, elicitation_callback=person) as client:
        result = await client.call_tool("user_question", {"text": "When?"})
    assert text_of(result) == "tomorrow"
    [request] = person.requests
    assert request.requested_schema["required"] == ["answer"]
    assert "enum" not in request.requested_schema["properties"]["answer"]


@MODES
@pytest.mark.parametrize(
    ("reply", "code"),
    [(NO, "call_denied"), (accept(), "approval_needed"), (accept(other=""), "approval_needed")],
)
async def test_who_declines_or_says_nothing_answers_nothing(mode: str, reply: Any, code: str) -> None:
    async with shop() as (hub, _), Client(hub.url, mode=mode, elicitation_callback=Person(reply)) as client:
        result = await client.call_tool("user_question", {"text": "When?"})
    assert result.is_error
    assert json.loads(text_of(result))["error"]["code"] == code


@MODES
@pytest.mark.parametrize("tool", ["agents_clerk", "hub_call"])
async def test_an_agent_asks_three_times_in_one_call_and_does_nothing_twice(mode: str, tool: str) -> None:
    person = Person(accept(answer="blue"), accept(approve=True), accept(answer="tomorrow"))
    input = CLERK if tool == "agents_clerk" else batch("agents.clerk", **CLERK)
    async with shop() as (hub, here), Client(hub.url, mode=mode, elicitation_callback=person) as client:
        result = await client.call_tool(tool, input)
        assert (here.looked, here.ordered) == (["paint"], ["paint"])
        assert set(statuses_of(hub)) == {"done"}
    assert not result.is_error
    assert "tomorrow" in text_of(result)
    assert here.reports == ["paint is there", "blue", "ordered paint", "tomorrow"]
    assert [request.message for request in person.requests] == [
        "Which colour?\n(asked by the agent clerk)",
        'May this be done?\nshop.order with {"item":"paint"}\n(asked by the agent clerk)',
        "When?\n(asked by the agent clerk)",
    ]


@MODES
async def test_an_agent_that_is_denied_goes_on_and_is_told(mode: str) -> None:
    person = Person(NO, ElicitResult(action="accept", content={"approve": False}), accept(answer="never"))
    async with shop() as (hub, here), Client(hub.url, mode=mode, elicitation_callback=person) as client:
        result = await client.call_tool("agents_clerk", CLERK)
        assert (here.looked, here.ordered) == (["paint"], [])
    assert not result.is_error
    assert "never" in text_of(result)
    _, unanswered, denied, never = here.reports
    assert (unanswered, never) == ("the question was not answered", "never")
    assert "paint" not in denied


async def test_a_state_goes_on_once_and_for_its_owner_only() -> None:
    async with shop() as (hub, here):
        first = (await ask(hub, name="agents_clerk", arguments=CLERK))["result"]
        assert first["inputRequests"]["approval"]["params"]["message"].startswith("Which colour?")
        assert "paint" not in first["requestState"], "how far it was stays here"
        again = {"requestState": first["requestState"], "name": "agents_clerk", "arguments": CLERK}
        blue = {"approval": {"action": "accept", "content": {"answer": "blue"}}}
        stranger = await ask(hub, "other", inputResponses=blue, **again)
        assert stranger["error"]["code"] == -32602
        second = (await ask(hub, inputResponses=blue, **again))["result"]
        assert second["resultType"] == "input_required"
        assert second["requestState"] != first["requestState"]
        replayed = (await ask(hub, inputResponses=blue, **again))["result"]
        assert replayed["isError"], replayed
        swapped = {**again, "requestState": second["requestState"]}
        dismissed = (await ask(hub, inputResponses=blue, **swapped))["result"]
        assert code_of(dismissed) == "approval_needed", "an answer is not an approval"
        assert (here.looked, here.ordered) == (["paint"], [])


async def test_an_answer_that_is_given_elsewhere_counts() -> None:
    async with shop() as (hub, here):
        first = (await ask(hub, name="agents_clerk", arguments=CLERK))["result"]
        [waiting] = await hub.calls.access_control.approvals.list(status="pending")
        await hub.calls.answer_approval(waiting.id, approved=False, by=Identity(owner="me"), reason="ask Ann")
        again = {"requestState": first["requestState"], "name": "agents_clerk", "arguments": CLERK}
        blue = {"approval": {"action": "accept", "content": {"answer": "blue"}}}
        second = (await ask(hub, inputResponses=blue, **again))["result"]
        assert second["resultType"] == "input_required", "it went on to its next request"
        assert here.looked == ["paint"]


@pytest.mark.parametrize("owner", ["me", "ops"])
async def test_who_cannot_be_asked_is_told_whom_to_turn_to(owner: str) -> None:
    async with shop() as (hub, here):
        message = body("tools/call", modern=True, asks=owner == "ops", name="agents_clerk", arguments=CLERK)
        key = {"authorization": f"Bearer {owner}"}
        report = (await post(hub, message, **key)).json()["result"]
        error = json.loads(report["content"][0]["text"])["error"]
        assert error["code"] == "approval_needed"
        again = (await post(hub, message, **key)).json()["result"]
        assert json.loads(again["content"][0]["text"])["error"]["approvalId"] == error["approvalId"]
        assert here.looked == ["paint"], "it does not begin anew"
        boss = Identity(owner="boss", scopes=frozenset({"admin"}))
        await hub.calls.answer_approval(error["approvalId"], approved=True, by=boss, reason="blue")
        after = (await post(hub, message, **key)).json()["result"]
        assert json.loads(after["content"][0]["text"])["error"]["approvalId"] != error["approvalId"]
        assert here.looked == ["paint"]


async def test_an_answer_that_is_too_long_is_refused() -> None:
    async with shop() as (hub, _):
        first = (await ask(hub, name="user_question", arguments={"text": "When?"}))["result"]
        again = {
            "requestState": first["requestState"],
            "name": "user_question",
            "arguments": {"text": "When?"},
        }
        long = {"approval": {"action": "accept", "content": {"answer": "x" * 10_001}}}
        assert (await ask(hub, inputResponses=long, **again))["error"]["code"] == -32602
        well = {"approval": {"action": "accept", "content": {"answer": "now"}}}
        assert (await ask(hub, inputResponses=well, **again))["result"]["content"][0]["text"] == "now"


async def ask(hub: Hub, owner: str = "me", **params: Any) -> Any:
    message = body("tools/call", modern=True, asks=True, **params)
    return (await post(hub, message, authorization=f"Bearer {owner}")).json()


def statuses_of(hub: Hub, above: str | None = None) -> list[str]:
    """How all calls of the ledger ended."""
    found = hub.ledger.children(above)
    below = [status for entry in found for status in statuses_of(hub, entry.record.id)]
    return [*(entry.status for entry in found), *below]


def text_of(result: Any) -> str:
    """The text of a tool's result."""
    text: str = result.content[0].text
    return text


def code_of(result: dict[str, Any]) -> Any:
    texts: Sequence[dict[str, Any]] = result["content"]
    return json.loads(texts[0]["text"])["error"]["code"]
