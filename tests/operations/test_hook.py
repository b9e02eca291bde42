"""Hooks at a call: what they receive and when they are called."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.budget import Budget
from dragoman.operations.call_hooks import CallEnd, CallHooks, HookDecision, HookedCall, Revision
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.outcome import CallOutcome
from tests.waiting import LIMIT


class Noting:
    """Hooks that note what they are asked, and say what they were given."""

    def __init__(self, hook_decision: HookDecision | None = None, revision: Revision | None = None) -> None:
        self.calls_seen: list[tuple[str, str]] = []
        self.hook_decision = hook_decision or HookDecision()
        self.revision = revision

    async def before(self, call: HookedCall) -> HookDecision:
        self.calls_seen.append(("before", call.operation))
        return self.hook_decision

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        self.calls_seen.append((end.status, call.operation))
        return self.revision


class Breaking:
    """Hooks that are broken themselves."""

    async def before(self, call: HookedCall) -> HookDecision:
        return HookDecision()

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        raise ValueError("broken")


async def called(hooks: CallHooks, input: dict[str, Any], **changes: Any) -> CallOutcome:
    @operation("t")
    async def half(number: int) -> int:
        return number // 2

    context = Context(for_model=True, hooks=hooks, **changes)
    async with asyncio.timeout(LIMIT), Calls(Registry(half), MemoryLedger()) as calls:
        return await calls.call("t.half", input, context=context)


async def test_hooks_are_asked_before_and_after() -> None:
    hooks = Noting()
    assert (await called(hooks, {"number": 8})).result == 4
    assert hooks.calls_seen == [("before", "t.half"), ("done", "t.half")]


async def test_an_input_that_does_not_fit_is_refused_before_hooks_are_asked() -> None:
    hooks = Noting()
    outcome = await called(hooks, {"number": "many"})
    assert outcome.error is not None
    assert (outcome.error.code, hooks.calls_seen) == ("invalid_input", [("failed", "t.half")])


async def test_a_blocked_call_takes_nothing_of_a_budget() -> None:
    budget = Budget(calls=5)
    outcome = await called(Noting(HookDecision(block="no")), {"number": 8}, budget=budget)
    assert (outcome.status, budget.calls_made) == ("denied", 0)


async def test_what_was_ruled_already_is_not_asked_again() -> None:
    hooks = Noting(HookDecision(block="no"))
    outcome = await called(hooks, {"number": 8}, hook_decision=HookDecision(input={"number": 20}))
    assert (outcome.result, hooks.calls_seen) == (10, [("done", "t.half")])


@pytest.mark.parametrize("revision", [Revision(result="other", notes=("changed",))])
async def test_a_revision_takes_the_place_of_the_result(revision: Revision) -> None:
    outcome = await called(Noting(revision=revision), {"number": 8})
    assert (outcome.ok, outcome.result, outcome.notes) == (True, "other", ("changed",))


async def test_hooks_that_break_afterwards_do_not_lose_the_result(caplog: pytest.LogCaptureFixture) -> None:
    assert (await called(Breaking(), {"number": 8})).result == 4
    assert "The hooks after call" in caplog.text


async def test_meta_tools_are_not_asked_about_but_what_they_call_is() -> None:
    @operation("t")
    async def half(number: int) -> int:
        return number // 2

    hooks, registry = Noting(), Registry(half)
    async with asyncio.timeout(LIMIT), Calls(registry, MemoryLedger()) as calls:
        meta, context = MetaTools(registry, calls), Context(for_model=True, hooks=hooks)
        await meta.run("hub_search", {"q": "half"}, context=context)
        batch = {"calls": [{"tool": "t.half", "input": {"number": 2}}]}
        assert (await meta.run("hub_call", batch, context=context)).result == [{"success": True, "result": 1}]
    assert hooks.calls_seen == [("before", "t.half"), ("done", "t.half")]
