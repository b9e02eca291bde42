"""Effects that a spoke or an MCP server claims: retries go by them, the policy and hooks do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dragoman.identity import LOCAL
from dragoman.mcp.client.definitions import ToolDefinition
from dragoman.mcp.client.imported_operations import make_operation
from dragoman.mcp.server.tool_list import pinned_tool_entry
from dragoman.mcp.server_spec import ServerSpec
from dragoman.operations.call_limiter import CallLimiter
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Policy, Rule
from dragoman.spokes.hub.permissions import NamespacePermissions
from tests.spokes.hubs import house
from tests.spokes.test_endpoint import raw

ASK_ONCE = Policy([Rule(decision="ask", operations=("*",), effects=("once",))])
ALLOW_READS = Policy([Rule(decision="allow", operations=("*",), effects=("read",))], default="deny")


async def unused(*_: Any) -> Any:
    raise NotImplementedError


def tool(hints: Mapping[str, Any], *, method: Any = "tools/call", **spec: Any) -> Operation:
    """A tool `pay` of an MCP server that declares these annotations."""
    definition = ToolDefinition(
        name="pay", input_schema={"type": "object"}, annotations=dict(hints), method=method
    )
    server = ServerSpec(name="shop", command=("shop",), **spec)
    return make_operation(definition, server, gate=CallLimiter(), call=unused)


def decisions(operation: Operation) -> tuple[str, ...]:
    return tuple(policy.decide(operation, identity=LOCAL).decision for policy in (ASK_ONCE, ALLOW_READS))


@pytest.mark.parametrize(
    ("hints", "method", "claimed"),
    [
        ({"readOnlyHint": True}, "tools/call", "read"),
        ({"readOnlyHint": True, "destructiveHint": True}, "tools/call", "read"),
        ({"idempotentHint": True}, "tools/call", "idempotent"),
        ({}, "resources/read", "read"),
        ({}, "prompts/get", "read"),
        ({}, "tools/call", "once"),
    ],
)
def test_the_policy_takes_what_a_server_claims_for_once(
    hints: dict[str, Any], method: str, claimed: str
) -> None:
    operation = tool(hints, method=method)
    assert (operation.effect, operation.policy_effect) == (claimed, "once")
    assert decisions(operation) == ("ask", "deny")
    shown = pinned_tool_entry("shop_pay", operation)["annotations"]
    assert (shown["readOnlyHint"], shown.get("idempotentHint", False)) == (False, False)


@pytest.mark.parametrize(
    "spec", [{"effects": {"pay": "read"}}, {"effects": {"p*": "read"}}, {"trust_effects": True}]
)
def test_the_policy_goes_by_what_the_operator_says_of_a_server(spec: dict[str, Any]) -> None:
    assert decisions(tool({"readOnlyHint": True}, **spec)) == ("allow", "allow")


def test_an_operator_who_trusts_claims_may_still_set_single_effects() -> None:
    operation = tool({"readOnlyHint": True}, trust_effects=True, effects={"pay": "once"})
    assert (operation.effect, *decisions(operation)) == ("once", "ask", "deny")


@pytest.mark.parametrize(
    ("configured", "effect", "policy_effect"),
    [
        ({}, "read", "once"),
        ({"trust_effects": ["b*"]}, "read", "read"),
        ({"trust_effects": ["eve"]}, "read", "once"),
        ({"effects": {"Raw.work": "idempotent"}}, "idempotent", "idempotent"),
        ({"effects": {"raw.*": "once", "raw.work": "read"}}, "read", "read"),
        ({"effects": {"other.*": "read"}}, "read", "once"),
    ],
)
async def test_the_policy_takes_what_a_spoke_claims_for_once_unless_the_operator_says_otherwise(
    configured: dict[str, Any], effect: str, policy_effect: str
) -> None:
    async with house(permits=NamespacePermissions(**configured)) as hub, raw(hub) as spoke:
        await spoke.join(token="key-b")
        operation = hub.registry.get("raw.work")
        assert (operation.effect, operation.policy_effect) == (effect, policy_effect)
        hub.board.set_permissions(NamespacePermissions(trust_effects="*"))
        assert hub.registry.get("raw.work").policy_effect == "read"
