"""An operation that a model calls under hooks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dragoman.agent.hooks.hooks import Hooks
from dragoman.errors import CallError
from dragoman.identity import Identity
from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.approval import MemoryApprovalStore
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import CallOutcome
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule
from tests.waiting import LIMIT

ANN = Identity(owner="ann", key_id="key_1")
SEND = {"to": "bob"}


class Post:
    """An operation that a model calls, and what it did."""

    def __init__(self, *rules: Rule) -> None:
        self.sent: list[str] = []
        self.rules = rules
        self.ledger = MemoryLedger()
        self.registry = Registry()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Calls]:
        @operation("mail")
        async def send(to: str, count: int = 1) -> dict[str, Any]:
            if to == "nobody":
                raise CallError("no such address: nobody@x.org", hint="ask nobody@x.org")
            self.sent.append(to)
            return {"sent": to, "count": count}

        @operation("mail")
        async def forward(context: Context) -> Any:
            return await context.call("mail.send", {"to": "eve"})

        self.registry = Registry(send, forward)
        guard = AccessControl(Policy(self.rules), MemoryApprovalStore(time.time), clock=time.time)
        async with (
            asyncio.timeout(LIMIT),
            Calls(self.registry, self.ledger, access_control=guard) as calls,
        ):
            yield calls

    async def call(self, hooks: Hooks, input: Any = SEND, **changes: Any) -> CallOutcome:
        async with self.open() as calls:
            return await calls.call("mail.send", input, context=context_of(hooks, **changes))


def context_of(hooks: Hooks, **changes: Any) -> Context:
    defaults = {
        "identity": ANN,
        "for_model": True,
        "run_id": "run_1",
        "tool_call_id": "tc_1",
        "agent": "clerk",
    }
    return Context(**{**defaults, "hooks": hooks.calls, "session_id": "ses_1", "step": 2, **changes})
