"""Files of a scope: written, edited and searched within it, and nothing beside it is reached."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import Forbidden, NotFound
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.tools.files import folder_search
from dragoman.tools.files.operations import reading_operations
from dragoman.tools.files.path_patterns import PathPattern
from dragoman.tools.files.protected_files import ProtectedFiles
from dragoman.tools.files.roots import Roots
from dragoman.tools.files.scope import FileScope, OneScope
from dragoman.tools.files.scoped_operations import finding_operations, writing_operations
from tests.effort import rounds
from tests.tools.odd_trees import odd_tree

RIPGREP = shutil.which("rg") or ""
ENGINES = ["", RIPGREP]


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """The folder of a team, with a secret beside it."""
    (tmp_path / "secret.txt").write_text("outside")
    for name in ("workspace/src", "rules", "docs"):
        (tmp_path / "team" / name).mkdir(parents=True)
    (tmp_path / "team" / "rules" / "rule.md").write_text("Be kind.")
    (tmp_path / "team" / "workspace" / "a.txt").write_text("one\ntwo\nthree\n")
    return tmp_path / "team"


def scope_of(team: Path) -> FileScope:
    async def refuse_secrets(text: str, _: Context) -> None:
        if "s3cret" in text:
            raise Forbidden("The text contains a value of the vault.")

    return FileScope(
        Roots(folders={name: team / name for name in ("workspace", "rules", "docs")}),
        writable=["workspace", "docs"],
        protected=ProtectedFiles([team / "docs" / "team.yaml", team / "docs" / "inner"]),
        write_guard=refuse_secrets,
    )


async def ask(team: Path, name: str, *, ripgrep: str = RIPGREP, **input: Any) -> dict[str, Any]:
    scopes = OneScope(scope_of(team))
    reading = reading_operations(scopes, identity_aware=False)
    registry = Registry(*reading, *writing_operations(scopes), *finding_operations(scopes, ripgrep=ripgrep))
    async with Calls(registry, MemoryLedger()) as calls:
        return (await calls.call(name, input, context=Context())).to_json()


async def test_a_file_is_written_and_the_difference_is_returned(team: Path) -> None:
    made = await ask(team, "files.write", path="workspace/new/b.txt", text="x\n")
    assert made["result"] == {
        "path": "workspace/new/b.txt",
        "size": 2,
        "created": True,
        "diff": "--- workspace/new/b.txt\n+++ workspace/new/b.txt\n@@ -0,0 +1 @@\n+x\n",
    }
    (team / "workspace" / "new" / "b.txt").chmod(0o755)
    again = await ask(team, "files.write", path="workspace/new/b.txt", text="y\n")
    assert again["result"]["diff"].endswith("-x\n+y\n")
    assert (team / "workspace" / "new" / "b.txt").read_text() == "y\n"
    assert (team / "workspace" / "new" / "b.txt").stat().st_mode & 0o777 == 0o755
    assert [each.name for each in (team / "workspace" / "new").iterdir()] == ["b.txt"]


async def test_edits_are_made_together_or_not_at_all(team: Path) -> None:
    edits = [{"old": "one", "new": "two"}, {"old": "two", "new": "2", "everywhere": True}]
    done = await ask(team, "files.edit", path="workspace/a.txt", edits=edits)
    assert (team / "workspace" / "a.txt").read_text() == "2\n2\nthree\n"
    assert done["result"]["diff"].endswith("@@ -1,3 +1,3 @@\n-one\n-two\n+2\n+2\n three\n")
    for wrong, message in (
        ([{"old": "three", "new": "3"}, {"old": "2", "new": "x"}], "contains '2' 2 times"),
        ([{"old": "three", "new": "3"}, {"old": "four", "new": "x"}], "does not contain 'four'"),
        ([{"old": "three", "new": "three"}], "the same as `new`"),
    ):
        failed = await ask(team, "files.edit", path="workspace/a.txt", edits=wrong)
        assert message in failed["error"]["message"]
    assert (team / "workspace" / "a.txt").read_text() == "2\n2\nthree\n"


@pytest.mark.parametrize(
    "path",
    [
        "rules/rule.md", "rules/new.md", "other/x", "../secret.txt", "workspace/../../secret.txt",
        "/etc/passwd", "~/x", "workspace", "workspace/link/secret.txt", "workspace/file-link",
        "workspace/proc/self/environ", "workspace/pipe", "workspace/a.txt/x", "docs/team.yaml",
        "docs/inner/x", "docs/inner/deep/x", "workspace/.git", "workspace/new/.git/hooks/pre-commit",
        "docs/.Git/config", "workspace/\0", "workspace/a/.hg/hgrc", "workspace/.g\u200cit/config",
        "docs/GIT~1/x", "workspace/.git./config", "workspace/.git::$INDEX_ALLOCATION/config",
        "workspace/sub/.husky/_/pre-commit",
        "workspace/sub/.HUSKY/_/x", "docs/\uff0egit/x", "workspace/" + "x" * 300,
    ],
)  # fmt: skip
async def test_workspace_escapes_by_path_link_device_and_protected_file_are_refused(
    team: Path, path: str
) -> None:
    workspace = team / "workspace"
    (workspace / "link").symlink_to("../..")
    (workspace / "file-link").symlink_to("../../secret.txt")
    (workspace / "proc").symlink_to("/proc")
    os.mkfifo(workspace / "pipe")
    (team / "docs" / "team.yaml").write_text("allowed_tools: []")
    (team / "docs" / "inner").mkdir()
    (workspace / "sub" / ".git").mkdir(parents=True)
    (workspace / "sub" / ".git" / "config").write_text("[core]\n  hooksPath = ./.husky/_\n")
    for name, input in (
        ("files.write", {"text": "stolen"}),
        ("files.edit", {"edits": [{"old": "outside", "new": "stolen"}]}),
    ):
        assert "error" in await ask(team, name, path=path, **input)
    assert (team.parent / "secret.txt").read_text() == "outside"
    assert (team / "rules" / "rule.md").read_text() == "Be kind."
    assert (team / "docs" / "team.yaml").read_text() == "allowed_tools: []"
    assert not list((team / "docs" / "inner").iterdir())


async def test_writing_a_hard_link_leaves_the_file_outside_as_it_was(team: Path) -> None:
    os.link(team.parent / "secret.txt", team / "workspace" / "hard")
    await ask(team, "files.write", path="workspace/hard", text="changed")
    assert (team / "workspace" / "hard").read_text() == "changed"
    assert (team.parent / "secret.txt").read_text() == "outside"


async def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(team: Path) -> None:
    outside, workspace = team.parent / "outside", team / "workspace"
    outside.mkdir()
    (outside / "f").write_text("outside")
    scope, stopped = scope_of(team), threading.Event()

    (workspace / "link").symlink_to(outside)

    def swap() -> None:
        while not stopped.is_set():
            with suppress(OSError):  # a write may create the folder meanwhile
                (workspace / "src").rename(workspace / "away")
                (workspace / "link").rename(workspace / "src")
                (workspace / "src").rename(workspace / "link")
                (workspace / "away").rename(workspace / "src")
                continue
            shutil.rmtree(workspace / "away", ignore_errors=True)

    thread = threading.Thread(target=swap)
    thread.start()
    written = 0
    try:
        for _ in range(rounds(quick=300, thorough=20_000)):
            with suppress(Forbidden, NotFound):
                scope.change("workspace/src/f", lambda _: "inside")
                written += 1
    finally:
        stopped.set()
        thread.join()
    assert written
    assert (outside / "f").read_text() == "outside"
    assert [each.name for each in outside.iterdir()] == ["f"]


async def test_a_text_that_the_write_guard_refuses_is_not_written_in_parts_either(team: Path) -> None:
    refused = await ask(team, "files.write", path="workspace/b.txt", text="key=s3cret")
    assert "vault" in refused["error"]["message"]
    edits = [{"old": "one", "new": "s3"}, {"old": "s3\n", "new": "s3cret\n"}]
    assert "vault" in (await ask(team, "files.edit", path="workspace/a.txt", edits=edits))["error"]["message"]
    assert not (team / "workspace" / "b.txt").exists()
    assert (team / "workspace" / "a.txt").read_text() == "one\ntwo\nthree\n"


def test_path_patterns_match_names_and_folders() -> None:
    paths = ["a.py", "src/b.py", "src/deep/c.py", "src/d.txt"]

    def matching(pattern: str) -> list[str]:
        return [path for path in paths if PathPattern(pattern).matches(path)]

    assert matching("*.py") == ["a.py"]
    assert matching("**/*.py") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert matching("src/**") == ["src/b.py", "src/deep/c.py", "src/d.txt"]
    assert matching("src/*.[pt]*") == ["src/b.py", "src/d.txt"]
    assert not PathPattern("**/a/" * 15 + "x").matches("a/" * 1_000 + "y")


async def test_files_are_found_by_pattern_below_a_folder(team: Path) -> None:
    (team / "workspace" / "src" / "m.py").write_text("x")
    (team / "workspace" / "src" / "out").symlink_to("../../..")
    found = await ask(team, "files.glob", pattern="**/*.py", path="workspace")
    assert found["result"] == {"paths": ["workspace/src/m.py"], "complete": True}
    assert (await ask(team, "files.glob", pattern="*", path="workspace"))["result"]["paths"] == [
        "workspace/a.txt"
    ]
    assert "error" in await ask(team, "files.glob", pattern="../*", path="workspace")


@pytest.mark.parametrize(
    "expression", ["t.o", "^t", "e$", r"\w{5}", "(one|three)", "[a-n]+e", r"T\b", "", "Ž", "two|", r"\bx?t"]
)
@pytest.mark.parametrize("ignore_case", [False, True])
async def test_both_engines_find_the_same_lines(team: Path, expression: str, ignore_case: bool) -> None:
    (team / "workspace" / "src" / "windows.txt").write_bytes(b"two\r\nThree\r\n\r\nlast t")
    (team / "workspace" / "src" / "latin.txt").write_bytes(b"t\xe9te\n\xef\xbb\xbftwo\n")
    (team / "workspace" / "src" / "binary").write_bytes(b"two\0two")
    (team / "workspace" / "src" / "long.txt").write_text("x" * 5_000 + "two " + "Ž" * 3_000)
    (team / "workspace" / ".hidden").write_text("two three\n" * 80)
    (team / "workspace" / "out").symlink_to("../../secret.txt")
    found = [
        await ask(
            team, "files.grep", ripgrep=engine, expression=expression, ignore_case=ignore_case, limit=500
        )
        for engine in ENGINES
    ]
    assert found[0] == found[1]
    if expression:
        assert found[0]["result"]["found"] or expression == r"T\b"
        assert found[0]["result"]["complete"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "expression",
    ["(?=x)", r"(a)\1", "(?P<n>a)", "(?i)a", "a{", "[", "(", r"\Z", "a++", "[[a]", r"\pL", "a\nb"],
)
async def test_expressions_that_engines_read_differently_are_refused_by_both(
    team: Path, expression: str, engine: str
) -> None:
    failed = await ask(team, "files.grep", ripgrep=engine, expression=expression)
    assert "is not a regular expression" in failed["error"]["message"]


async def test_an_expression_that_takes_for_ever_is_ended(
    team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (team / "workspace" / "evil.txt").write_text("a" * 200 + "b\n")
    with monkeypatch.context() as patch:
        patch.setattr("dragoman.tools.files.content_search.MAX_SECONDS", 0.5)
        ended = await ask(team, "files.grep", ripgrep="", expression="(a+)+c")
    assert ended["result"] == {"found": [], "complete": False}
    found = await ask(team, "files.grep", expression="(a+)+c")
    assert found["result"] == {"found": [], "complete": True}


SEARCHES = [
    ("files.glob", {"pattern": "**/*.txt"}),
    ("files.grep", {"pattern": "**/*.txt", "expression": "needle"}),
    ("files.search", {"text": "needle"}),
]


async def test_what_a_command_leaves_in_a_workspace_neither_stops_a_search_nor_leads_out(
    team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_search, "MAX_DEPTH", 20)
    with odd_tree(team / "workspace"):
        for name, input in SEARCHES:
            result = (await ask(team, name, path="workspace", **input))["result"]
            found = result.get("paths") or [each["path"] for each in result["found"]]
            assert "workspace/new\nline.txt" in found, name
            assert not [path for path in found if "outside" in path or "link" in path], name
            assert not result["complete"], "not all levels were searched"
        for offset in (2**41, 2**62, 2**63, 10**30):
            piece = (await ask(team, "files.read", path="workspace/sparse.txt", offset=offset))["result"]
            assert piece["size"] == 2**42
