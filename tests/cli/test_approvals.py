"""`dragoman approvals` over a data folder and at a running hub."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dragoman.cli.access.question_prompt import spell_invisible
from dragoman.identity import LOCAL
from dragoman.operations.approval import ApprovalItem, ApprovalRequest
from dragoman.store.store import Store
from tests.cli.conftest import Run
from tests.cli.program import Hub, Terminal

T = TypeVar("T")
HIDDEN = "x\u202etxt.exe\x1b[2J"
SPELLED = {
    "жди Ω\u200bжди ❤\ufe0f": r"жди Ω\u200bжди ❤" + "\ufe0f",
    "p\u0430ypal.com": r"p\u0430ypal.com",
    "a\ufe0f\U000e0041\u3164\u2800b": r"a\ufe0f\u{e0041}\u3164\u2800b",
    "naïve café 一": "naïve café 一",
}
numbers = itertools.count()


def within(folder: Path, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        async with await Store.open(folder, exclusive=False) as store:
            return await work(store)

    return asyncio.run(run())


def asking(**fields: Any) -> ApprovalRequest:
    id = f"apr_{next(numbers)}"
    arguments: dict[str, Any] = {
        "id": id,
        "owner": "local",
        "operation": "mail.send",
        "input": {"to": HIDDEN},
        "input_hash": id,
        "items": (ApprovalItem("mail.send", {"to": HIDDEN}, id, reason="others see it"),),
        "created_at": time.time(),
        "expires_at": time.time() + 8_000,
        "agent": "helper",
        **fields,
    }
    return ApprovalRequest(**arguments)


def ask(folder: Path, **fields: Any) -> str:
    """The id of a new request."""
    return within(folder, lambda store: store.approvals.create(asking(**fields))).id


async def deny_all(store: Store) -> None:
    for waiting in await store.approvals.list(status="pending", limit=500):
        await store.approvals.answer(waiting.id, approved=False, by=LOCAL)


def status_of(folder: Path, id: str) -> str:
    return within(folder, lambda store: store.approvals.get(id)).status


@pytest.fixture(params=["folder", "hub"])
def where(request: pytest.FixtureRequest, hub: Hub) -> tuple[str, ...]:
    """Where the approvals are."""
    return ("--data", str(hub.data)) if request.param == "folder" else ("--hub", hub.url)


def test_what_waits_is_listed(run: Run, hub: Hub, where: tuple[str, ...]) -> None:
    id, late = ask(hub.data), ask(hub.data, expires_at=1.0)
    lines = run("approvals", "list", *where).out.splitlines()
    assert lines[0].split() == ["ID", "STATUS", "ASKED", "OWNER", "OPERATION", "INPUT"]
    (mine,) = [line.split() for line in lines if line.startswith(f"{id} ")]
    assert mine[:6] == [id, "pending", "just", "now", "local", "mail.send"]
    assert late not in {line.split()[0] for line in lines}
    found = run("approvals", "list", "--status", "expired", "--json", *where).json["approvals"]
    assert [each["status"] for each in found if each["id"] == late] == ["expired"]
    assert (
        len(run("approvals", "list", "--status", "all", "--limit", "1", "--json", *where).json["approvals"])
        == 1
    )


def test_one_is_shown_with_all_that_is_in_it_also_what_cannot_be_seen(
    run: Run, hub: Hub, where: tuple[str, ...]
) -> None:
    id = ask(hub.data)
    assert run("approvals", "show", id, *where).out.splitlines() == [
        f"{id}  pending, asked just now, expires in 2 h",
        "  for local, through the agent helper",
        '  mail.send {"to":"x\\u202etxt.exe\\u001b[2J"}: others see it',
    ]
    shown = run("approvals", "show", id, "--json", *where).json
    assert (shown["id"], shown["input"], shown["mayAnswer"]) == (id, {"to": HIDDEN}, True)
    assert "\u202e" not in run("approvals", "list", *where).out


@pytest.mark.parametrize(("text", "spelled"), SPELLED.items())
def test_what_is_not_seen_or_looks_like_latin_is_spelled(text: str, spelled: str) -> None:
    assert spell_invisible(text) == spelled


@pytest.mark.parametrize(("word", "status"), [("approve", "approved"), ("deny", "denied")])
def test_an_answer_is_given_once(run: Run, hub: Hub, where: tuple[str, ...], word: str, status: str) -> None:
    id = ask(hub.data)
    result = run("approvals", word, id, "--reason", "because", *where)
    assert (result.code, result.out, f"{id} is {status}: mail.send" in result.err) == (0, "", True)
    assert status_of(hub.data, id) == status
    assert "answered just now by local: because" in run("approvals", "show", id, *where).out
    again = run("approvals", "approve", id, *where)
    assert (again.code, again.out, f"already {status}" in again.err) == (1, "", True)
    assert status_of(hub.data, id) == status


def test_one_that_is_not_there_is_said_to_be_missing(run: Run, where: tuple[str, ...]) -> None:
    for word in ("show", "approve", "deny"):
        result = run("approvals", word, "nothing", *where)
        assert (result.code, result.out, "'nothing'" in result.err) == (1, "", True)


def test_where_nothing_waits_that_is_said(run: Run, tmp_path: Path) -> None:
    assert run("approvals", "list", "--data", tmp_path / "gone").code == 1
    within(tmp_path / "empty", lambda store: store.approvals.list())
    result = run("approvals", "list", "--data", tmp_path / "empty")
    assert (result.code, result.out, "no approval is pending" in result.err) == (0, "", True)


def test_the_terminal_asks_about_each_request_as_it_comes(hub: Hub, where: tuple[str, ...]) -> None:
    within(hub.data, deny_all)
    first = ask(hub.data)
    terminal = Terminal("approvals", "watch", "--every", "0.1", *where, env={})
    terminal.see(f"{first}  pending")
    assert "\\u202etxt.exe" in terminal.see("[q]uit: ")
    terminal.type("what?")
    terminal.see("[q]uit: ")
    terminal.type("y")
    terminal.see(f"{first} is approved")
    second = ask(hub.data)
    terminal.see(f"{second}  pending")
    within(hub.data, lambda store: store.approvals.answer(second, approved=False, by=LOCAL))
    terminal.see("[q]uit: ")
    terminal.type("yes")
    terminal.see("is already denied")
    third = ask(hub.data)
    terminal.see(f"{third}  pending")
    terminal.see("[q]uit: ")
    terminal.type("later")
    fourth = ask(hub.data)
    terminal.see(f"{fourth}  pending")
    terminal.see("[q]uit: ")
    terminal.type("n")
    terminal.see(f"{fourth} is denied")
    terminal.press(signal.SIGINT)
    assert terminal.wait() == 130
    statuses = [status_of(hub.data, id) for id in (first, second, third, fourth)]
    assert statuses == ["approved", "denied", "pending", "denied"]
    again = Terminal("approvals", "watch", *where, env={})
    again.see(f"{third}  pending")
    again.see("[q]uit: ")
    assert again.leave() == 0
