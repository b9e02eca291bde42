"""Approvals hold for who was to run the call: another provider, owner or definition needs a new one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.identity import Identity
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.approval import ApprovalItem, Grant, MemoryApprovalStore
from dragoman.operations.call_hooks import CallEnd, HookDecision, HookedCall, Revision
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallOutcome
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule

ANN = Identity(owner="ann")
ASKED = Policy([Rule(decision="ask", operations=("shop.pay",))])
SPOKE: dict[str, Any] = {"provider": "spoke", "owner": "bob"}
DOORS = ("repeated", "by id", "batch", "batch by id", "hook")
CHANGES: dict[str, dict[str, Any]] = {
    "another owner's spoke": {"owner": "eve"},
    "a spoke becomes the hub's": {"provider": "hub", "owner": None},
    "a server of the same name": {"provider": "mcp:shop:1", "owner": None},
    "description": {"description": "Pays twice."},
    "schema": {"input_schema": {"type": "object", "properties": {"to": {"type": "string"}}}},
    "effect": {"effect": "idempotent"},
    "output": {"output_schema": {"type": "string"}},
}


class AskHook:
    """A hook that has each call approved."""

    async def before(self, call: HookedCall) -> HookDecision:
        return HookDecision(ask="hooks ask")

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        return None


class Shop:
    """A hub in which `shop.pay` needs an approval, and its provider can change."""

    def __init__(self, door: str) -> None:
        self.paid: list[str] = []
        self.registry = Registry()
        self.approvals = MemoryApprovalStore(time.time)
        policy = Policy() if door == "hook" else ASKED
        access = AccessControl(policy, self.approvals, clock=time.time)
        self.calls = Calls(self.registry, MemoryLedger(), access_control=access)
        self.meta = MetaTools(self.registry, self.calls)
        self._door = door

    def offer(self, **details: Any) -> None:
        """Offer `shop.pay`, instead of what was there."""

        async def run(_: Mapping[str, Any], _context: Context) -> str:
            self.paid.append(details.get("owner") or "hub")
            return "paid"

        for each in self.registry.list():
            self.registry.remove(each.id)
        fields = {"namespace": "shop", "name": "pay", "description": "Pays.", **details}
        schema = fields.pop("input_schema", {"type": "object"})
        self.registry.add(Operation.from_schema(run, schema, **fields))

    async def pay(self, approval: str | None = None) -> CallOutcome:
        """Call it, with an approval where the door passes one on."""
        context = Context(identity=ANN, approval=approval if "by id" in self._door else None)
        if self._door.startswith("batch"):
            calls = {"calls": [{"tool": "shop.pay", "input": {"n": 1}}]}
            return await self.meta.run("hub.call", calls, context=context)
        if self._door == "hook":
            context = replace(context, hooks=AskHook(), for_model=True)
        return await self.calls.call("shop.pay", {"n": 1}, context=context)

    async def approve(self, outcome: CallOutcome) -> str:
        """Approve what a call waits for."""
        id = outcome.approval_id or ""
        await self.calls.answer_approval(id, approved=True, by=ANN)
        return id


@pytest.mark.promise("approval-bound")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("change", CHANGES)
async def test_an_approval_does_not_hold_for_another_provider(door: str, change: str) -> None:
    shop = Shop(door)
    async with shop.calls:
        shop.offer(**SPOKE)
        approval = await shop.approve(await shop.pay())
        shop.offer(**{**SPOKE, **CHANGES[change]})
        again = await shop.pay(approval)
        assert (shop.paid, again.status) == ([], "pending")
        assert again.approval_id not in (None, approval)
        request = await shop.approvals.get(again.approval_id or "")
        assert "approved before, but not as it is now" in (request.items[0].reason or "")
        done = await shop.pay(await shop.approve(again))
        assert (done.status, len(shop.paid)) == ("done", 1)
        assert (await shop.pay()).status == "pending"


@pytest.mark.parametrize("door", DOORS)
async def test_an_approval_holds_when_the_same_operation_is_offered_again(door: str) -> None:
    shop = Shop(door)
    async with shop.calls:
        shop.offer(**SPOKE)
        approval = await shop.approve(await shop.pay())
        shop.offer(**SPOKE, source="spoke:restarted", timeout=9.0)
        assert (await shop.pay(approval)).status == "done"
        assert shop.paid == ["bob"]


def test_an_approval_of_an_earlier_version_holds_for_the_hub_s_own_operations_only() -> None:
    shop = Shop("by id")
    for details, holds in (({}, True), (SPOKE, False), ({"provider": "mcp:shop:1"}, False)):
        shop.offer(**details)
        provider = shop.registry.get("shop.pay").call_provider
        grant = Grant([ApprovalItem("shop.pay", {}, "h")])
        assert grant.covers("shop.pay", "h", provider=provider) is holds
        assert grant.consume("shop.pay", "h", provider=provider) is holds
        assert not grant.covers("shop.pay", "h", provider=provider)
