"""What an ended process has left for the database in its part of the folder is written by those that run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dragoman.accounts.spool import ENCODER, Settlement
from dragoman.config import Config
from dragoman.events import Usage
from dragoman.messages import TextPart, encode_part
from dragoman.server.app import Hub
from dragoman.server.app.background_jobs import LeftoverReplay
from dragoman.store.accounts.budgets import ChargedBudget
from dragoman.store.answer_spool import SpooledAnswer
from dragoman.store.sqlite import lock_folder
from dragoman.usage_record import UsageRecord
from tests.databases import BACKENDS
from tests.store.samples import FINISHED, assistant, run, session
from tests.waiting import poll, until


def leave_usage(folder: Path, *ids: str, name: str = "usage.spool") -> Path:
    """Write what a process leaves that is killed during an outage of the database."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = Usage(input_tokens=3, output_tokens=1)
    records = [
        UsageRecord(id=id, owner="ann", status="finished", started_at=1.5, tokens=tokens) for id in ids
    ]
    charged = (ChargedBudget("key:k", "total", 5_000),)
    lines = [ENCODER.encode(Settlement(record, charged, reserved=9, spent=7, boot="b")) for record in records]
    (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))
    return folder / name


def leave_answer(folder: Path, answer: SpooledAnswer) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{answer.run_id}.json"
    path.write_bytes(msgspec.json.encode(answer))
    return path


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_hub_writes_what_ended_processes_of_its_folder_left_and_what_live_ones_have_stays(
    tmp_path: Path,
) -> None:
    data, hosts = tmp_path / "hub", tmp_path / "hub" / "hosts"
    leave_usage(hosts / "7", "at the start")
    async with Hub.open(Config(), data, require_keys=False) as hub:
        await poll(hub.store.usage.list)
        await hub.store.runs.create(run("r1", session_id="s"), session=session("s"), assistant=assistant("a"))
        left = [
            leave_usage(hosts / "2", "u1", "u2"),
            leave_usage(hosts / "2", "u1", "u0", name="usage.spool.replayed"),
            leave_answer(hosts / "3" / "answers.spool", answer_of("r1", "a", "hello")),
        ]
        alive = leave_usage(hosts / "4", "u4")
        spoiled = leave_answer(hosts / "5" / "answers.spool", answer_of("r5", "a", "x"))
        spoiled.write_bytes(b"{")
        job = LeftoverReplay(hub.store, hub.meter.ledger)
        with lock_folder(alive.parent):
            await job.replay()
            await job.replay()
        assert not any(path.exists() for path in left)
        assert (alive.exists(), spoiled.exists()) == (True, True)
        assert await usage_ids(hub) == ["at the start", "u0", "u1", "u2"]
        (message,) = await hub.store.messages.list("s")
        assert [part.text for part in message.parts if isinstance(part, TextPart)] == ["hello"]
        assert await hub.store.runs.get_active("s") is None
        await job.replay()
        assert await usage_ids(hub) == ["at the start", "u0", "u1", "u2", "u4"]
        await until(lambda: not list(hosts.glob("*/usage.spool*")))


def answer_of(run_id: str, message_id: str, text: str) -> SpooledAnswer:
    return SpooledAnswer(
        run_id=run_id,
        session_id="s",
        message_id=message_id,
        parts=[msgspec.Raw(encode_part(TextPart(text=text)))],
        ending=FINISHED,
    )


async def usage_ids(hub: Hub) -> Sequence[str]:
    return sorted(record.id for record in await hub.store.usage.list())
