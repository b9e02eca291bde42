"""Turns that the engine executes for approvals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.operations.approval import ApprovalItem, ApprovalRequest
from dragoman.runs.engine import MemoryEngine, QueuedTurn
from dragoman.runs.registry import RunRegistry
from dragoman.runs.takeover import QueuedTurns
from dragoman.store.store import Store

pytestmark = pytest.mark.anyio
NOW = 1_790_000_000.0


class Runs:
    """Runs of which none can resume: the agent or the key is gone, say."""

    async def resume(self, approval: ApprovalRequest) -> bool:
        return False

    def get_active(self, session_id: str) -> Any:
        return None


@pytest.mark.parametrize(("seconds", "is_abandoned"), [(-1.0, True), (60.0, False)])
async def test_the_suspended_call_of_an_expired_approval_ends_if_its_run_cannot_resume(
    tmp_path: Path, *, seconds: float, is_abandoned: bool
) -> None:
    abandoned: list[str] = []

    async def abandon(approval: ApprovalRequest) -> None:
        abandoned.append(approval.id)

    request = ApprovalRequest(
        id="a",
        owner="local",
        operation="mail.send",
        input={},
        input_hash="h",
        items=(ApprovalItem("mail.send", {}, "a"),),
        created_at=NOW - 60.0,
        expires_at=NOW + seconds,
    )
    async with await Store.open(tmp_path, clock=lambda: NOW) as store:
        await store.approvals.create(request)
        turns = QueuedTurns(store, cast(RunRegistry, Runs()), engine=MemoryEngine(at_once=1), abandon=abandon)
        await turns.execute(QueuedTurn(id="t", session_id="s", kind="approval", subject="a"))
    assert abandoned == (["a"] if is_abandoned else [])
