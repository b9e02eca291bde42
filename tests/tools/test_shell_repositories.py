"""Commands and the git repository of their workspace: they read it, and change nothing that git runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dragoman.tools.shell import repository as module
from dragoman.tools.shell.repository import placeholder
from tests.tools.test_shell import WORKS, OneWorkplace, Shell, shell
from tests.waiting import until

__all__ = ["shell"]  # a fixture

ATTACKS = """
echo evil >.git/config; echo evil >.git/hooks/pre-commit; echo evil >.git/commondir; rm -rf .git; mv .git git
ln -sfn /tmp .git; mkdir .git; mkdir -p .git/hooks; echo 'gitdir: evil' >.git; rmdir .git; umount .git
mount --bind /tmp .git; mv ../workspace ../elsewhere; cp -a /bin/sh .git/
"""


def tree(folder: Path) -> dict[str, str | None]:
    """The files below a folder with their texts; None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def make_repository(folder: Path) -> None:
    for name in ("hooks", "objects", "refs"):
        (folder / name).mkdir(parents=True)
    (folder / "config").write_text("[core]\n\tbare = false\n")
    (folder / "HEAD").write_text("ref: refs/heads/main\n")


@pytest.mark.parametrize("kind", ["folder", "file", "none", "empty"])
async def test_a_command_changes_no_repository_of_the_workspace_and_creates_none(
    shell: Shell, kind: str
) -> None:
    repository = shell.workspace / ".git"
    if kind == "folder":
        make_repository(repository)
    elif kind == "file":
        repository.write_text("gitdir: ../elsewhere\n")
    elif kind == "empty":
        repository.mkdir()
    before = tree(shell.workspace)
    result = (
        await shell.run(f"{ATTACKS}\necho x >made; cat .git/HEAD .git 2>/dev/null; exit 1") if WORKS else None
    )
    if result is None:
        return
    before.pop(".git" if kind == "empty" else "", None)  # an empty one is none
    assert tree(shell.workspace) == {**before, "made": "x\n"}
    assert {"folder": "ref: refs/heads/main", "file": "gitdir: ../elsewhere"}.get(kind, "") in result[
        "output"
    ]
    assert "`shell: {git: true}`" in result["hint"]


NESTED_ATTACKS = """
for each in sub tree/deep worktree hg; do
  for name in .git .hg .GIT; do
    [ -e $each/$name ] || continue
    echo evil >$each/$name; echo evil >$each/$name/config; echo evil >$each/$name/hooks/pre-commit
    echo evil >$each/$name/hgrc; rm -rf $each/$name; mv $each/$name $each/away
  done
  mv $each ${each}2; rmdir $each
done
mv tree tree2; echo evil >.husky/pre-commit; mv .husky other; rm -rf .husky
"""


async def test_a_command_changes_no_repository_below_the_workspace_and_not_where_their_hooks_are(
    shell: Shell,
) -> None:
    for place in ("sub/.git", "tree/deep/.GIT", ".git", "hg/.hg"):
        make_repository(shell.workspace / place)
    (shell.workspace / "hg/.hg/hgrc").write_text("[hooks]\n")
    (shell.workspace / "worktree").mkdir()
    (shell.workspace / "worktree/.git").write_text("gitdir: ../.git/worktrees/x\n")
    (shell.workspace / ".git/config").write_text("[core]\n\thooksPath = .husky\n")
    (shell.workspace / ".husky").mkdir()
    (shell.workspace / ".husky/pre-commit").write_text("true\n")
    before = tree(shell.workspace)
    result = await shell.run(f"{NESTED_ATTACKS}\necho x >sub/made; cat tree/deep/.GIT/HEAD; exit 1")
    if result is None:
        return
    assert tree(shell.workspace) == {**before, "sub/made": "x\n"}
    assert "ref: refs/heads/main" in result["output"]
    assert "`shell: {git: true}`" in result["hint"]


async def test_commands_are_refused_where_there_are_too_many_repositories_to_protect(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not WORKS:
        return
    (shell.workspace / "a/.git").mkdir(parents=True)
    (shell.workspace / "link").symlink_to(shell.workspace)
    assert (await shell.call("run", command="true")).ok
    for limit in ("MAX_REPOSITORIES", "MAX_ENTRIES"):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 0)
            outcome = await shell.call("run", command="true")
        assert outcome.error is not None
        assert "so its repositories cannot be protected" in outcome.error.message


async def test_a_command_writes_the_repository_where_that_is_allowed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = OneWorkplace.workplace

    async def allowed(self: OneWorkplace, *args: object) -> object:
        found = await make(self, *args)  # type: ignore[arg-type]
        mounts = [msgspec.structs.replace(each, git=True) for each in found.mounts]
        return msgspec.structs.replace(found, mounts=mounts)

    monkeypatch.setattr(OneWorkplace, "workplace", allowed)
    if await shell.run("mkdir -p .git/hooks; echo x >.git/hooks/pre-commit") is not None:
        assert tree(shell.workspace)[".git/hooks/pre-commit"] == "x\n"


async def test_a_repository_that_is_a_link_cannot_be_protected(shell: Shell) -> None:
    if not WORKS:
        return
    (shell.workspace / ".git").symlink_to(shell.folder / "rules")
    outcome = await shell.call("run", command="true")
    assert outcome.error is not None
    assert "is neither a folder nor a file" in outcome.error.message


async def test_a_repository_cannot_be_created_while_another_command_ends(shell: Shell) -> None:
    if not WORKS:
        return
    waiting = "until [ -e go ]; do sleep 0.01; done; mkdir .git .git/hooks; echo evil >.git/config"
    first = asyncio.ensure_future(shell.run(f"touch begun; {waiting}"))
    await until((shell.workspace / "begun").exists)
    await shell.run("true")
    (shell.workspace / "go").touch()
    await first
    assert sorted(tree(shell.workspace)) == ["begun", "go"]


HOLD = """
import sys
from pathlib import Path
from dragoman.tools.shell.repository import placeholder
with placeholder(Path(sys.argv[1])):
    print("here", flush=True)
    sys.stdin.read()
"""


def test_the_place_of_a_missing_repository_stays_until_the_last_process_runs_no_command(
    tmp_path: Path,
) -> None:
    repository = tmp_path / ".git"
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with placeholder(tmp_path), placeholder(tmp_path):
            pass
        assert repository.is_dir()
        other.kill()
    with placeholder(tmp_path):
        assert repository.is_dir()
    assert not repository.exists()
