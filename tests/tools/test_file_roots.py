"""File operations over several folders, and search within them."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import ConfigError
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.tools.builtin import builtin_operations
from dragoman.tools.files import rooted_folder as folders
from tests.effort import rounds


@pytest.fixture
def named(tmp_path: Path) -> dict[str, Path]:
    """Two folders, and a secret beside them."""
    (tmp_path / "secret.txt").write_text("needle in secret")
    for name in ("notes", "code"):
        (tmp_path / name / "deep" / "er").mkdir(parents=True)
        (tmp_path / name / "deep" / "er" / f"{name}.txt").write_text(f"first\nA Needle in {name}\nlast")
        (tmp_path / name / "top.md").write_text("nothing here")
    (tmp_path / "notes" / "out").symlink_to("..")
    (tmp_path / "notes" / "secret.txt").symlink_to("../secret.txt")
    (tmp_path / "notes" / "binary").write_bytes(b"\0needle")
    os.mkfifo(tmp_path / "notes" / "pipe")
    return {"notes": tmp_path / "notes", "code": tmp_path / "code"}


async def ask(
    operation: str, *roots: Path, files: dict[str, Path] | None = None, **input: Any
) -> dict[str, Any]:
    async with Calls(Registry(*builtin_operations(*roots, files=files)), MemoryLedger()) as calls:
        return (await calls.call(operation, input, context=Context())).to_json()


async def test_several_folders_are_the_top_of_one_tree(named: dict[str, Path]) -> None:
    top = (await ask("files.list", files=named))["result"]["entries"]
    assert [(each["name"], each["kind"]) for each in top] == [("code", "folder"), ("notes", "folder")]
    inner = (await ask("files.list", files=named, path="code"))["result"]["entries"]
    assert [each["name"] for each in inner] == ["deep", "top.md"]
    read = (await ask("files.read", files=named, path="notes/top.md"))["result"]
    assert (read["path"], read["text"]) == ("notes/top.md", "nothing here")


async def test_a_single_folder_beside_named_ones_has_its_own_name(named: dict[str, Path]) -> None:
    other = named["code"] / "deep"
    top = (await ask("files.list", other, files={"notes": named["notes"]}))["result"]["entries"]
    assert [each["name"] for each in top] == ["deep", "notes"]


@pytest.mark.promise("files-stay-inside")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        (".", "bad_request"),
        ("", "bad_request"),
        ("nowhere/top.md", "not_found"),
        ("notes/../code/top.md", "bad_request"),
        ("../secret.txt", "bad_request"),
        ("/etc/passwd", "bad_request"),
        ("notes/secret.txt", "forbidden"),
        ("notes/out/secret.txt", "forbidden"),
        ("notes/pipe", "forbidden"),
    ],
)
@pytest.mark.parametrize("name", ["files.read", "files.info"])
async def test_nothing_outside_is_reached(named: dict[str, Path], name: str, path: str, code: str) -> None:
    answer = await ask(name, files=named, path=path)
    assert answer["error"]["code"] == code
    assert str(named["notes"].parent) not in str(answer)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 65, "\n"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        builtin_operations(files={name: tmp_path})


def test_two_folders_of_one_name_are_refused(named: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="called 'code'"):
        builtin_operations(named["code"], files={"code": named["notes"]})


async def test_lines_are_found_in_all_folders_and_nowhere_else(named: dict[str, Path]) -> None:
    found = (await ask("files.search", files=named, text="needle"))["result"]
    assert found["complete"]
    assert [(each["path"], each["line"], each["text"]) for each in found["found"]] == [
        ("code/deep/er/code.txt", 2, "A Needle in code"),
        ("notes/deep/er/notes.txt", 2, "A Needle in notes"),
    ]
    exact = (await ask("files.search", files=named, text="needle", exact=True))["result"]
    assert exact["found"] == []


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [
        ("*.md", ".", ["code/top.md", "notes/top.md"]),
        ("*.txt", "notes", ["notes/deep/er/notes.txt"]),
        ("notes/*.txt", ".", ["notes/deep/er/notes.txt"]),
        ("pipe", ".", []),
        ("[", ".", []),
    ],
)
async def test_files_are_found_by_name(
    named: dict[str, Path], name: str, path: str, found: list[str]
) -> None:
    answer = (await ask("files.search", files=named, name=name, path=path))["result"]
    assert [each["path"] for each in answer["found"]] == found


async def test_a_search_that_finds_more_says_so(named: dict[str, Path]) -> None:
    answer = (await ask("files.search", files=named, limit=1))["result"]
    assert (len(answer["found"]), answer["complete"]) == (1, False)


async def test_a_search_in_what_is_no_folder_is_an_error(named: dict[str, Path]) -> None:
    for path, code in {"notes/top.md": "bad_request", "notes/out": "forbidden", "no": "not_found"}.items():
        assert (await ask("files.search", files=named, path=path))["error"]["code"] == code


async def test_what_a_file_is_can_be_asked(named: dict[str, Path]) -> None:
    os.utime(named["notes"] / "top.md", (0, 86_400))
    info = (await ask("files.info", named["notes"], path="top.md"))["result"]
    assert info == {"path": "top.md", "kind": "file", "size": 12, "modified": "1970-01-02T00:00:00+00:00"}
    assert (await ask("files.info", named["notes"], path="deep"))["result"]["kind"] == "folder"


async def test_the_state_of_the_system_is_not_shown() -> None:
    assert folders.system_devices(), "this system tells of itself in no file system"
    for path in ("proc/self/environ", "proc", "sys/kernel", "dev/null"):
        assert (await ask("files.read", Path("/"), path=path))["error"]["code"] == "forbidden", path
    with pytest.raises(ConfigError, match="state"):
        builtin_operations(Path("/proc/self"))


async def test_a_folder_that_is_replaced_by_a_link_is_not_followed(named: dict[str, Path]) -> None:
    made = builtin_operations(named["code"])
    named["code"].rename(named["code"].with_name("moved"))
    named["code"].symlink_to("notes")
    async with Calls(Registry(*made), MemoryLedger()) as calls:
        answer = (await calls.call("files.read", {"path": "top.md"}, context=Context())).to_json()
    assert answer["error"]["code"] == "forbidden"
    assert str(named["code"]) not in str(answer)


TIMES = rounds(quick=60, thorough=300)


async def test_a_file_that_turns_into_a_link_while_it_is_read_never_shows_what_is_outside(
    named: dict[str, Path],
) -> None:
    file, outside = named["code"] / "swap.txt", named["code"].parent / "secret.txt"
    spare = named["code"] / "spare"
    file.write_text("inside")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            spare.symlink_to(outside)
            spare.replace(file)
            spare.write_text("inside")
            spare.replace(file)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        answers = [await ask("files.read", named["code"], path="swap.txt") for _ in range(TIMES)]
    finally:
        done.set()
        await asyncio.to_thread(swapping.join)
    texts = {each["result"]["text"] for each in answers if each["success"]}
    codes = {each["error"]["code"] for each in answers if not each["success"]}
    assert texts <= {"inside"}
    assert codes <= {"forbidden"}
    assert len(answers) == TIMES
