"""A call of an operation that spokes at two hosts serve: it is made again at the other one if it may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import CallError, CallUncertain, DragomanError, Unavailable
from dragoman.operations.budget import CostTotal
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect, Operation
from dragoman.spokes.hub.balancer import not_bound
from dragoman.spokes.hub.host_operations import SharedCallRunner
from tests.hosts.test_garbage import HOST, TICKET, answering_host, budgets_of
from tests.providers.servers import ok

LOST = b""


def end(**fields: Any) -> bytes:
    return ok(json.dumps({"end": fields}).encode() + b"\n")


def failure(code: str, *, transient: bool) -> bytes:
    return end(failure={"code": code, "message": "no", "transient": transient}, cost=0.25)


DONE = end(result=7, cost=0.5)
GONE = failure("unavailable", transient=True)


async def outcome(folder: Path, effect: Effect, *answers: bytes) -> tuple[Any, float | None]:
    """The result of a call or its error, and what it has cost; `answers` are those of both hosts."""
    async with answering_host(folder, answers) as (client, store):
        url = (await store.hosts.list())[0].url
        await store.hosts.add(replace(HOST, id="c", url=url))
        operation = Operation.from_schema(not_bound, {}, namespace="s", name="look", effect=effect)
        runner = SharedCallRunner(client, lambda: ["b", "c"], operation=operation, budgets=budgets_of(store))
        total = CostTotal()
        try:
            result: Any = await runner.run({}, Context(cost_total=total))
        except DragomanError as error:
            result = type(error)
    return result, total.usd


@pytest.mark.parametrize("effect", ["read", "idempotent"])
@pytest.mark.parametrize(("first", "cost"), [(LOST, 0.5), (GONE, 0.75)], ids=["host lost", "spoke gone"])
async def test_a_call_that_may_be_repeated_is_made_again_at_another_host(
    tmp_path: Path, effect: Effect, first: bytes, cost: float
) -> None:
    answers = (TICKET, first, TICKET, DONE)
    assert await outcome(tmp_path, effect, *answers) == (7, cost)


@pytest.mark.parametrize(
    ("effect", "first", "error"),
    [
        ("once", LOST, CallUncertain),
        ("once", GONE, CallError),
        ("read", failure("call_failed", transient=False), CallError),
    ],
    ids=["acts, host lost", "acts, spoke gone", "failed"],
)
async def test_another_call_is_not(
    tmp_path: Path, effect: Effect, first: bytes, error: type[DragomanError]
) -> None:
    assert (await outcome(tmp_path, effect, TICKET, first))[0] is error


async def test_a_call_fails_once_no_host_is_left(tmp_path: Path) -> None:
    assert (await outcome(tmp_path, "read", TICKET, GONE, TICKET, LOST))[0] is Unavailable
