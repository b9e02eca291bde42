"""Worktrees: made, looked at, merged, removed, without losing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli.dev.worktrees import FileChange, Worktrees
from dragoman.errors import BadRequest, ConfigError, Conflict
from tests.dev.repositories import add_task, git, make_repository


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "shop")


async def test_a_task_has_a_worktree_beside_the_repository_and_a_branch_of_its_own(repository: Path) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees, branch="feature/login")
    place = Path(task.worktree)
    assert place.parent == repository.with_name("shop.worktrees")
    assert (place / "a.txt").read_text() == "one\ntwo\n"
    assert git(place, "branch", "--show-current") == "feature/login"
    with pytest.raises(Conflict, match="exists already"):
        await worktrees.path_for("feature/login", "s2")


async def test_a_folder_without_a_repository_and_a_branch_that_git_refuses_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not in a git repository"):
        await Worktrees.find(tmp_path)
    worktrees = await Worktrees.find(make_repository(tmp_path / "shop"))
    for name in ("a..b", "--upload-pack=x", "x" * 300):
        with pytest.raises(BadRequest, match="not a valid name"):
            await worktrees.path_for(name, "s1")
    with pytest.raises(BadRequest, match="there is no branch 'nope'"):
        await worktrees.base("nope")


async def test_the_diff_has_what_is_committed_what_is_not_and_new_files_and_leaves_the_index(
    repository: Path,
) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    place = Path(task.worktree)
    (place / "a.txt").write_text("one\n2\n")
    await worktrees.commit(task, "Write a number")
    (place / "b.txt").write_text("new\n")
    diff = await worktrees.diff(task)
    assert list(diff.files) == [FileChange("a.txt", 1, 1), FileChange("b.txt", 1, 0)]
    assert "-two\n+2\n" in diff.text
    assert "+new\n" in diff.text
    state = await worktrees.state(task)
    assert (state.branch, state.ahead, state.uncommitted) == ("topic", 1, 1)
    assert git(place, "status", "--porcelain") == "?? b.txt"


async def test_a_long_diff_is_cut(repository: Path) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    (Path(task.worktree) / "b.txt").write_text("line\n" * 20_000)
    diff = await worktrees.diff(task)
    assert diff.truncated
    assert len(diff.text.encode()) == 32_000
    assert list(diff.files) == [FileChange("b.txt", 20_000, 0)]


async def test_a_merge_takes_what_is_not_committed_too_and_moves_the_files_of_the_base(
    repository: Path,
) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    (Path(task.worktree) / "b.txt").write_text("new\n")
    (repository / "c.txt").write_text("other\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Another")
    commit = await worktrees.merge(task, "Merge the topic")
    assert git(repository, "rev-parse", "HEAD") == commit
    assert (repository / "b.txt").read_text() == "new\n"
    assert git(repository, "log", "-1", "--format=%s %p").startswith("Merge the topic ")
    assert git(repository, "status", "--porcelain") == ""
    assert await worktrees.merge(task, "again") == commit


async def test_a_merge_moves_a_base_that_is_not_checked_out(repository: Path) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    git(repository, "checkout", "--quiet", "-b", "elsewhere")
    (Path(task.worktree) / "b.txt").write_text("new\n")
    commit = await worktrees.merge(task, "Merge the topic")
    assert git(repository, "rev-parse", "main") == commit
    assert not (repository / "b.txt").exists()


async def test_a_conflict_changes_nothing_and_names_the_files(repository: Path) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    (Path(task.worktree) / "a.txt").write_text("mine\n")
    (repository / "a.txt").write_text("yours\n")
    git(repository, "commit", "--quiet", "--all", "--message", "Yours")
    before = git(repository, "rev-parse", "HEAD")
    with pytest.raises(Conflict, match=r"change the same lines of: a\.txt"):
        await worktrees.merge(task, "Merge")
    assert git(repository, "rev-parse", "HEAD") == before
    assert git(repository, "status", "--porcelain") == ""
    assert (repository / "a.txt").read_text() == "yours\n"


async def test_a_base_with_changed_files_that_a_merge_would_overwrite_is_left_alone(repository: Path) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    (Path(task.worktree) / "a.txt").write_text("mine\n")
    (repository / "a.txt").write_text("not committed\n")
    with pytest.raises(Conflict, match="files there are changed"):
        await worktrees.merge(task, "Merge")
    assert (repository / "a.txt").read_text() == "not committed\n"


async def test_a_worktree_with_work_is_removed_only_if_that_is_discarded_and_comes_back(
    repository: Path,
) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    (Path(task.worktree) / "b.txt").write_text("new\n")
    with pytest.raises(Conflict, match="changes that are not committed"):
        await worktrees.remove(task, discard=False)
    await worktrees.commit(task, "Add b")
    (Path(task.worktree) / "c.txt").write_text("newer\n")
    saved = await worktrees.remove(task, discard=True)
    assert saved is not None
    assert not worktrees.exists(task)
    assert git(repository, "show", f"{saved}:b.txt", f"{saved}:c.txt") == "new\nnewer"
    assert "topic" not in git(repository, "branch", "--list", "topic")


async def test_a_merged_worktree_is_removed_with_its_branch(repository: Path) -> None:
    worktrees = await Worktrees.find(repository)
    task = await add_task(worktrees)
    (Path(task.worktree) / "b.txt").write_text("new\n")
    await worktrees.merge(task, "Merge")
    assert await worktrees.remove(task, discard=False) is None
    assert git(repository, "branch", "--list") == "* main"
    assert not worktrees.exists(task)
