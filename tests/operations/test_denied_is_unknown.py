"""What the policy denies does not exist for a caller: no door tells it from an unknown operation."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dragoman.identity import Identity
from dragoman.mcp.server.server import McpServer
from dragoman.operations.approval import MemoryApprovalStore
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule
from dragoman.operations.registry import Registry

SPELLINGS = ("mail.send", "mail_send", "Mail.Send", "MAIL_SEND")
DENY = Policy([Rule(decision="deny", operations=("mail.send",), reason="no mail")])
MODEL = Context(for_model=True, agent="helper")


async def do_nothing(_: Any, __: Context) -> str:
    return "done"


def hub(*ids: str) -> tuple[MetaTools, Calls]:
    """Meta-tools over these operations, of which `mail.send` is denied."""
    operations = [
        Operation.from_schema(
            do_nothing, {"type": "object"}, namespace=id.split(".")[0], name=id.split(".")[1], effect="once"
        )
        for id in ids
    ]
    registry = Registry(*operations)
    access = AccessControl(DENY, MemoryApprovalStore(time.time), clock=time.time)
    calls = Calls(registry, MemoryLedger(), access_control=access)
    return MetaTools(registry, calls), calls


@pytest.mark.parametrize("others", [("mail.read",), ("mail.read", "mail.list"), ("time.now",), ()])
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_denied_operation_is_answered_like_one_that_is_not_there(
    spelling: str, others: tuple[str, ...]
) -> None:
    with_it, without_it = hub("mail.send", *others), hub(*others)
    for tool, input in (
        ("hub.call", {"calls": [{"tool": spelling, "input": {"to": "x"}}]}),
        ("hub.schema", {"tool": spelling}),
        ("hub.list", {}),
        ("hub.list", {"namespace": "mail"}),
    ):
        hidden, unknown = [
            (await meta.run(tool, input, context=MODEL)).to_json() for meta, _ in (with_it, without_it)
        ]
        assert hidden == unknown, tool
        assert "no mail" not in str(hidden)
    searched = await with_it[0].run("hub.search", {"q": spelling}, context=MODEL)
    assert "send" not in str(searched.result["tools"])
    for _, calls in (with_it, without_it):
        await calls.close()


class Broken:
    """A supplier that does not come back: its reason names an address."""

    async def wait_until_ready(self) -> None: ...

    def unavailable_reason(self) -> str | None:
        return "mail: nothing answers at 10.0.0.7"


@pytest.mark.parametrize(
    ("rule", "is_told"),
    [
        (Rule(decision="deny", operations=("mail",)), False),
        (Rule(decision="deny", operations=("mail.send",)), False),
        (Rule(decision="deny", operations=("mail",), effects=("once", "idempotent")), True),
        (Rule(decision="deny", operations=("mail.read",)), True),
    ],
)
async def test_why_an_operation_is_unavailable_is_told_to_those_who_may_call_it(
    rule: Rule, is_told: bool
) -> None:
    registry = Registry()
    registry.add_supplier("mail", Broken())
    access = AccessControl(Policy([rule]), MemoryApprovalStore(time.time), clock=time.time)
    async with Calls(registry, MemoryLedger(), access_control=access) as calls:
        for spelling in SPELLINGS:
            outcome = await MetaTools(registry, calls).run("hub.schema", {"tool": spelling}, context=MODEL)
            assert ("10.0.0.7" in str(outcome.to_json())) is is_told, spelling


class Starting:
    """A supplier that is starting, for ever."""

    async def wait_until_ready(self) -> None:
        await asyncio.Event().wait()

    def unavailable_reason(self) -> str | None:
        return "mail: it is starting"


@pytest.mark.parametrize(
    ("rule", "waits"),
    [
        (Rule(decision="deny", operations=("mail",)), False),
        (Rule(decision="deny", operations=("mail.send",)), False),
        (Rule(decision="deny", operations=("mail",), effects=("once", "idempotent")), True),
        (Rule(decision="deny", operations=("mail.read",)), True),
    ],
)
async def test_only_who_may_call_an_operation_waits_while_its_server_starts(rule: Rule, waits: bool) -> None:
    registry = Registry()
    registry.add_supplier("mail", Starting())
    access = AccessControl(Policy([rule]), MemoryApprovalStore(time.time), clock=time.time)
    async with Calls(registry, MemoryLedger(), access_control=access) as calls:
        meta = MetaTools(registry, calls)
        for spelling in (*SPELLINGS, "mail.*", "mail.", "mail.a b"):
            is_possible = spelling in SPELLINGS
            for work in (
                meta.run("hub.schema", {"tool": spelling}, context=MODEL),
                meta.run("hub.call", {"calls": [{"tool": spelling}]}, context=MODEL),
                calls.call(spelling, {}, context=MODEL),
            ):
                task = asyncio.ensure_future(work)
                await idle()
                assert task.done() is not (waits and is_possible), spelling
                task.cancel()
                await asyncio.wait([task])


@pytest.mark.parametrize("pinned", ["mail.send", "mail.*", "mail.s?nd"])
@pytest.mark.parametrize(
    ("rules", "waits"),
    [
        ([Rule(decision="deny", operations=("mail",))], False),
        ([Rule(decision="deny", operations=("*",))], False),
        ([Rule(decision="deny", operations=("mail",), identities=("bob",))], True),
        ([Rule(decision="deny", operations=("*",)), Rule(decision="allow", operations=("mail.send",))], True),
        ([Rule(decision="deny", operations=("*",)), Rule(decision="ask", operations=("mail.s*d",))], True),
    ],
    ids=repr,
)
async def test_a_list_of_tools_waits_only_for_pinned_operations_that_its_caller_may_see(
    pinned: str, rules: list[Rule], waits: bool
) -> None:
    registry = Registry()
    registry.add_supplier("mail", Starting())
    access = AccessControl(Policy(rules), MemoryApprovalStore(time.time), clock=time.time)
    async with Calls(registry, MemoryLedger(), access_control=access) as calls:
        server = McpServer(MetaTools(registry, calls), calls, registry=registry, pinned=[pinned])
        task = asyncio.ensure_future(server.tools(Identity("ann")))
        await idle()
        assert task.done() is not waits
        task.cancel()
        await asyncio.wait([task])


async def idle() -> None:
    """Give other tasks a hundred turns of the event loop."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_code_that_calls_a_denied_operation_gets_the_denial() -> None:
    _, calls = hub("mail.send")
    outcome = await calls.call("mail.send", {}, context=Context())
    assert outcome.error is not None
    assert (outcome.error.code, "no mail" in str(outcome.error)) == ("call_denied", True)
    await calls.close()
