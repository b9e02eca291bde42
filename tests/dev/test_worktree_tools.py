"""The operations of an agent in a worktree, and their guards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, ScriptedModel
from dragoman.cli.dev.worktree_tools import worktree_hooks, worktree_operations
from dragoman.cli.dev.worktrees import Worktrees
from dragoman.messages import ToolPart
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import CallOutcome
from tests.dev.repositories import add_task, git, make_repository
from tests.living import is_running


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Worktree:
    """The worktree of a task, and its operations."""

    def __init__(self, worktrees: Worktrees, task: Any) -> None:
        self.path = Path(task.worktree)
        self.operations = worktree_operations(worktrees, task)

    async def call(self, operation: str, **input: Any) -> CallOutcome:
        async with Calls(Registry(*self.operations), MemoryLedger()) as calls:
            return await calls.call(operation, input, context=Context())


@pytest.fixture
async def worktree(tmp_path: Path) -> Worktree:
    worktrees = await Worktrees.find(make_repository(tmp_path / "shop"))
    return Worktree(worktrees, await add_task(worktrees))


async def test_files_are_written_and_edited_as_a_whole(worktree: Worktree) -> None:
    written = await worktree.call("files.write", path="src/new/a.py", text="x = 1\n")
    diff = "--- src/new/a.py\n+++ src/new/a.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert written.unwrap() == {"path": "src/new/a.py", "size": 6, "created": True, "diff": diff}
    (worktree.path / "src/new/a.py").chmod(0o755)
    await worktree.call("files.edit", path="src/new/a.py", edits=[{"old": "1", "new": "2"}])
    assert (worktree.path / "src/new/a.py").read_text() == "x = 2\n"
    assert (worktree.path / "src/new/a.py").stat().st_mode & 0o777 == 0o755
    twice = await worktree.call("files.edit", path="a.txt", edits=[{"old": "o", "new": "0"}])
    assert twice.error is not None
    assert "2 times" in twice.error.message
    await worktree.call("files.edit", path="a.txt", edits=[{"old": "o", "new": "0", "everywhere": True}])
    assert (worktree.path / "a.txt").read_text() == "0ne\ntw0\n"


@pytest.mark.parametrize("path", ["../a.txt", "/tmp/x", "~/x", ".git", "sub/.git/config", "out/x", ".GIT/x"])
async def test_no_path_leads_out_of_the_worktree_or_into_git(worktree: Worktree, path: str) -> None:
    (worktree.path / "out").symlink_to(worktree.path.parent)
    outcome = await worktree.call("files.write", path=path, text="no")
    assert outcome.error is not None
    assert outcome.error.code in ("bad_request", "forbidden"), outcome.error
    assert not (worktree.path.parent / "x").exists()


async def test_a_link_is_neither_followed_nor_replaced(worktree: Worktree, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (worktree.path / "link").symlink_to(tmp_path / "secret")
    for name, more in (
        ("write", {"text": "no"}),
        ("edit", {"edits": [{"old": "mine", "new": "yours"}]}),
        ("read", {}),
    ):
        outcome = await worktree.call(f"files.{name}", path="link", **more)
        assert outcome.error is not None
    assert (tmp_path / "secret").read_text() == "mine"


async def test_a_command_runs_in_the_worktree_without_secrets(
    worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_KEY", "dgm_secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    outcome = await worktree.call("shell.run", command="pwd; env; echo oops >&2; exit 3")
    result = outcome.unwrap()
    assert result["exit_code"] == 3
    assert result["output"].startswith(f"{worktree.path}\n")
    assert "oops" in result["output"]
    assert "secret" not in result["output"]


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    worktree: Worktree, tmp_path: Path
) -> None:
    command = f"setsid sh -c 'echo $$ > {tmp_path}/child; exec sleep 1000' & echo begun; wait"
    outcome = await worktree.call("shell.run", command=command, seconds=5)
    assert outcome.error is not None
    assert outcome.error.code == "call_timeout"
    assert "begun" in outcome.error.message
    assert not is_running(int((tmp_path / "child").read_text()))


async def test_a_long_output_keeps_its_beginning_and_its_end(worktree: Worktree) -> None:
    result = (await worktree.call("shell.run", command="seq 1 100000")).unwrap()
    assert result["output"].startswith("1\n2\n")
    assert result["output"].endswith("100000\n")
    assert result["left_out"] == 588_895 - 30_000


async def test_git_shows_and_commits_what_is_changed(worktree: Worktree) -> None:
    await worktree.call("files.write", path="b.txt", text="new\n")
    assert (await worktree.call("git.status")).unwrap() == "## topic\n?? b.txt"
    commit = (await worktree.call("git.commit", message="Add b")).unwrap()
    assert git(worktree.path, "rev-parse", "HEAD") == commit
    assert (await worktree.call("git.log")).unwrap().splitlines()[0].endswith("Add b")
    assert (await worktree.call("git.diff")).unwrap()["files"] == [
        {"path": "b.txt", "added": 1, "deleted": 0}
    ]


async def test_an_agent_s_destructive_commands_are_blocked_and_its_texts_are_not(worktree: Worktree) -> None:
    steps: list[Any] = [
        {"tools": [{"name": "shell_run", "input": {"command": "rm -rf /"}}]},
        {"tools": [{"name": "files_write", "input": {"path": "doc.md", "text": "never run rm -rf /"}}]},
        {"tools": [{"name": "files_write", "input": {"path": "/etc/motd", "text": "x"}}]},
        "Done.",
    ]
    agent = Agent(
        ScriptedModel(steps),
        operations=worktree.operations,
        hooks=worktree_hooks(worktree.path),
        meta_tools=False,
    )
    result = await agent.run("go")
    assert result.text == "Done."
    states = [part.state for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    assert states == ["output-error", "output-available", "output-error"]
    assert (worktree.path / "doc.md").exists()
