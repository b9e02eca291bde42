"""Operations that need approval, called by clients with and without elicitation."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp_types import ElicitResult

from dragoman.identity import Identity
from tests.mcp.server.hub import Hub, batch, body, post, served

pytestmark = pytest.mark.anyio
WIPE: dict[str, Any] = {"name": "hub_call", "arguments": batch("disk.wipe", path="/")}
YES = {"approval": {"action": "accept", "content": {"approve": True}}}
NO = {"approval": {"action": "decline"}}
LATER = {"approval": {"action": "cancel"}}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("action", "approve", "wiped"),
    [("accept", True, [{"path": "/"}]), ("accept", False, []), ("decline", None, []), ("cancel", None, [])],
)
async def test_a_client_s_user_is_asked_and_decides(
    mode: str, action: Any, approve: bool | None, wiped: list[Any]
) -> None:
    requests: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        assert context is not None
        requests.append(params.message)
        content = None if approve is None else {"approve": approve}
        return ElicitResult(action=action, content=content)

    async with served() as hub:
        async with Client(hub.url, mode=mode, elicitation_callback=answer) as client:
            result = await client.call_tool("hub_call", batch("disk.wipe", path="/"))
        assert hub.wiped == wiped
    assert requests == ['May this be done?\ndisk.wipe with {"path":"/"}']
    assert result.is_error is (not wiped)


@pytest.mark.promise("mcp-approval")
async def test_a_question_is_answered_once_and_only_for_the_same_request() -> None:
    async with served() as hub:
        state = await question(hub)
        changed = {**WIPE, "arguments": batch("disk.wipe", path="/home")}
        refused = [
            await ask(hub, requestState=state, inputResponses=YES, **changed),
            await ask(hub, requestState=state[:-4] + "AAAA", inputResponses=YES, **WIPE),
            await ask(hub, requestState="x", inputResponses=YES, **WIPE),
            await ask(hub, "other", requestState=state, inputResponses=YES, **WIPE),
        ]
        assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [
            (400, -32602)
        ] * 4
        assert hub.wiped == []
        first = await ask(hub, requestState=state, inputResponses=YES, **WIPE)
        again = await ask(hub, requestState=state, inputResponses=YES, **WIPE)
        assert (first.json()["result"]["isError"], again.json()["result"]["isError"]) == (False, True)
        assert hub.wiped == [{"path": "/"}]


async def test_a_declined_call_stays_declined() -> None:
    async with served() as hub:
        state = await question(hub)
        for responses in (NO, YES):
            answer = await ask(hub, requestState=state, inputResponses=responses, **WIPE)
            assert collect(answer)["code"] == "call_denied"
        assert hub.wiped == []


async def test_a_question_that_is_dismissed_can_still_be_answered() -> None:
    async with served() as hub:
        state = await question(hub)
        dismissed = await ask(hub, requestState=state, inputResponses=LATER, **WIPE)
        assert collect(dismissed)["code"] == "approval_needed"
        answered = await ask(hub, requestState=state, inputResponses=YES, **WIPE)
        assert answered.json()["result"]["isError"] is False


@pytest.mark.parametrize("modern", [True, False])
async def test_who_cannot_be_asked_is_told_and_may_repeat_the_call_once_it_is_approved(modern: bool) -> None:
    async with served() as hub:
        message = body("tools/call", modern=modern, **WIPE)
        error = collect(await post(hub, message))
        assert error["code"] == "approval_needed"
        assert "dragoman approvals" in error["hint"]
        await hub.calls.answer_approval(error["approvalId"], approved=True, by=Identity(owner="me"))
        assert (await post(hub, message)).json()["result"]["isError"] is False
        assert hub.wiped == [{"path": "/"}]
        assert collect(await post(hub, message))["code"] == "approval_needed"


async def question(hub: Hub) -> str:
    """The state that comes with the question."""
    result = (await ask(hub, **WIPE)).json()["result"]
    assert result["resultType"] == "input_required"
    assert result["inputRequests"]["approval"]["method"] == "elicitation/create"
    state: str = result["requestState"]
    return state


async def ask(hub: Hub, owner: str = "me", **params: Any) -> httpx2.Response:
    message = body("tools/call", modern=True, asks=True, **params)
    return await post(hub, message, authorization=f"Bearer {owner}")


def collect(answer: httpx2.Response) -> dict[str, Any]:
    """The error in a tool's result."""
    result = answer.json()["result"]
    assert result["isError"]
    error: dict[str, Any] = json.loads(result["content"][0]["text"])["error"]
    return error
