"""Who may answer the request of a batch, and until when: what the rules of all its calls say together."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.identity import Identity
from dragoman.operations.approval import MemoryApprovalStore
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule
from dragoman.operations.registry import Registry

DEFAULT = 86_400.0


async def do_nothing(_: Any, __: Context) -> None: ...


@pytest.mark.parametrize(
    ("answerers", "expires", "who", "seconds"),
    [
        ([None, None], [None, None], ("owner",), DEFAULT),
        ([None, ("boss",)], [None, 60.0], ("boss",), 60.0),
        ([("owner", "boss"), ("boss", "eve")], [90.0, 60.0], ("boss",), 60.0),
        ([("owner",), ("ann",)], [None, None], ("ann",), DEFAULT),  # both name the caller
        ([("owner", "boss"), ("owner",)], [None, None], ("owner",), DEFAULT),
        ([("boss",), ("eve",)], [None, None], (), DEFAULT),  # nobody but an administrator
        ([None, None], [10 * DEFAULT, None], ("owner",), DEFAULT),  # the other call has the hub's default
        ([None, None], [10 * DEFAULT, 9 * DEFAULT], ("owner",), 9 * DEFAULT),
    ],
)
async def test_a_request_for_several_calls_is_for_those_who_may_answer_for_each(
    answerers: list[tuple[str, ...] | None],
    expires: list[float | None],
    who: tuple[str, ...],
    seconds: float,
) -> None:
    ids = ["mail.send", "shop.refund"]
    registry = Registry()
    for id in ids:
        namespace, _, name = id.partition(".")
        registry.add(Operation.from_schema(do_nothing, {}, namespace=namespace, name=name))
    rules = [
        Rule(decision="ask", operations=(id,), answerers=each, expires=limit)
        for id, each, limit in zip(ids, answerers, expires, strict=True)
    ]
    approvals = MemoryApprovalStore(lambda: 1_000.0)
    access = AccessControl(Policy(rules), approvals, clock=lambda: 1_000.0)
    async with Calls(registry, MemoryLedger(), access_control=access) as calls:
        batch = {"calls": [{"tool": id} for id in ids]}
        context = Context(identity=Identity("ann"), for_model=True)
        outcome = await MetaTools(registry, calls).run("hub.call", batch, context=context)
    request = await approvals.get(outcome.approval_id or "")
    assert (request.answerers, request.expires_at - request.created_at) == (who, seconds)
