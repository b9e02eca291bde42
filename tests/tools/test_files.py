"""File operations stay within their folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ConfigError
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.tools.builtin import builtin_operations
from dragoman.tools.files.operations import decode_piece


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a secret beside it."""
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "shown"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "today.txt").write_text("Ž water the plants")
    (folder / "empty.txt").touch()
    return folder


async def ask(root: Path, name: str, **input: Any) -> dict[str, Any]:
    async with Calls(Registry(*builtin_operations(root)), MemoryLedger()) as calls:
        return (await calls.call(name, input, context=Context())).to_json()


async def test_a_folder_is_listed_by_name(root: Path) -> None:
    (root / "link").symlink_to("empty.txt")
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"\xff.txt")).touch()
    assert (await ask(root, "files.list"))["result"] == {
        "path": ".",
        "entries": [
            {"name": "empty.txt", "kind": "file", "size": 0},
            {"name": "link", "kind": "link", "size": None},
            {"name": "notes", "kind": "folder", "size": None},
            {"name": "pipe", "kind": "other", "size": None},
            {"name": "�.txt", "kind": "file", "size": 0},
        ],
        "more": 0,
    }
    inner = (await ask(root, "files.list", path="./notes/"))["result"]["entries"]
    assert inner == [{"name": "today.txt", "kind": "file", "size": 19}]


async def test_a_full_folder_says_how_many_more_there_are(root: Path) -> None:
    for index in range(210):
        (root / "notes" / f"{index:03}").touch()
    listed = (await ask(root, "files.list", path="notes"))["result"]
    assert (len(listed["entries"]), listed["more"]) == (200, 11)


async def test_a_file_is_read_whole_or_in_pieces(root: Path) -> None:
    (root / "long.txt").write_text("añ✓🜁" * 40)
    whole = (await ask(root, "files.read", path="long.txt"))["result"]
    assert whole == {"path": "long.txt", "text": "añ✓🜁" * 40, "size": 400, "next_offset": None}
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        piece = (await ask(root, "files.read", path="long.txt", offset=offset, limit=17))["result"]
        pieces.append(piece["text"])
        offset = piece["next_offset"]
    assert "".join(pieces) == whole["text"]
    assert len(pieces) > 20


OUTSIDE = [
    ("/etc/passwd", "bad_request"),
    ("../secret.txt", "bad_request"),
    ("notes/../../secret.txt", "bad_request"),
    ("notes/../notes/today.txt", "bad_request"),
    ("~/secret.txt", "bad_request"),
    ("notes/today.txt\0", "bad_request"),
    ("x" * 5_000, "bad_request"),
    ("x" * 300, "forbidden"),
    ("out/secret.txt", "forbidden"),
    ("out.txt", "forbidden"),
    ("inside.txt", "forbidden"),
    ("pipe", "forbidden"),
    ("socket", "forbidden"),
    ("nowhere.txt", "not_found"),
    ("notes/today.txt/more", "not_found"),
    ("..secret.txt", "not_found"),
    ("notes", "bad_request"),
    (".", "bad_request"),
    ("binary", "bad_request"),
]


@pytest.mark.parametrize(("path", "code"), OUTSIDE)
async def test_nothing_but_a_text_file_in_the_folder_is_read(
    root: Path, path: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "out").symlink_to("..")
    (root / "out.txt").symlink_to("../secret.txt")
    (root / "inside.txt").symlink_to("notes/today.txt")
    (root / "binary").write_bytes(b"\x00\xff\xfe")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(root)  # a socket's path must be short
        listener.bind("socket")
        answer = await ask(root, "files.read", path=path)
    assert answer["error"]["code"] == code
    assert "secret\n" not in str(answer)
    assert str(root) not in str(answer)


async def test_a_root_that_is_a_link_is_followed_once(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    read = (await ask(tmp_path / "alias", "files.read", path="notes/today.txt"))["result"]
    assert read["text"] == "Ž water the plants"


def test_a_root_that_is_no_folder_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="There is no folder"):
        builtin_operations(root / "empty.txt")


def test_without_a_folder_there_are_no_file_operations() -> None:
    assert [each.id for each in builtin_operations()] == [
        "math.calculate",
        "time.now",
        "time.convert",
        "user.question",
    ]


@given(st.text(), st.integers(min_value=0, max_value=40))
def test_a_piece_cut_anywhere_loses_no_whole_character(text: str, cut: int) -> None:
    raw = text.encode()[:cut]
    is_last = cut >= len(text.encode())
    read = decode_piece(raw, "x", is_last=is_last)
    assert text.startswith(read)
    assert len(raw) - len(read.encode()) <= 3
