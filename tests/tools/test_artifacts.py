"""`artifacts.read` and `artifacts.search`: whole characters, lines, ownership."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.identity import LOCAL
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.results.artifact import Artifact, MemoryArtifactStore
from dragoman.tools.builtin import builtin_operations


async def store_with(body: bytes, *, owner: str = LOCAL.owner) -> MemoryArtifactStore:
    artifacts = MemoryArtifactStore()
    stored_artifact = Artifact(
        id="art_1", owner=owner, media_type="text/plain", size=len(body), created_at=0.0
    )
    await artifacts.save(stored_artifact, body)
    return artifacts


async def ask(artifacts: MemoryArtifactStore, name: str, **input: Any) -> dict[str, Any]:
    async with Calls(Registry(*builtin_operations(artifacts=artifacts)), MemoryLedger()) as calls:
        return (await calls.call(name, {"id": "art_1", **input}, context=Context())).to_json()


async def test_a_result_is_read_in_pieces_of_whole_characters() -> None:
    text = "a\u00f1\u2713\U0001f701" * 100
    artifacts = await store_with(text.encode())
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        piece = (await ask(artifacts, "artifacts.read", offset=offset, limit=17))["result"]
        assert piece["offset"] == offset
        pieces.append(piece["text"])
        offset = piece["next_offset"]
    assert "".join(pieces) == text
    inside = (await ask(artifacts, "artifacts.read", offset=2, limit=16))["result"]
    assert (inside["offset"], inside["text"][:2]) == (3, "\u2713\U0001f701")


@pytest.mark.parametrize(
    ("input", "code"),
    [
        ({"offset": 5}, "bad_request"),
        ({"id": "art_2"}, "not_found"),
        ({"offset": -1}, "invalid_input"),
        ({"limit": 1}, "invalid_input"),
    ],
)
async def test_what_is_not_there_is_an_error(input: dict[str, Any], code: str) -> None:
    assert (await ask(await store_with(b"short"), "artifacts.read", **input))["error"]["code"] == code


@pytest.mark.promise("artifact-owner")
@pytest.mark.parametrize("name", ["artifacts.read", "artifacts.search"])
async def test_a_result_of_somebody_else_is_not_there(name: str) -> None:
    input = {"pattern": "x"} if name == "artifacts.search" else {}
    assert (await ask(await store_with(b"x", owner="else"), name, **input))["error"]["code"] == "not_found"


async def test_bytes_that_are_no_text_are_an_error() -> None:
    error = (await ask(await store_with(b"\x80\x80\xff" * 9), "artifacts.read"))["error"]
    assert error["message"] == "'art_1' (text/plain) is not text at this offset."


async def test_an_empty_result_is_read() -> None:
    piece = (await ask(await store_with(b""), "artifacts.read"))["result"]
    assert (piece["text"], piece["next_offset"]) == ("", None)


async def test_lines_are_found_with_their_places() -> None:
    body = "one\nTwo \u017d\nthree two two\n\ntwo".encode()
    found = (await ask(await store_with(body), "artifacts.search", pattern="two"))["result"]
    lines = [(each["line"], each["text"]) for each in found["found"]]
    assert lines == [(2, "Two \u017d"), (3, "three two two"), (5, "two")]
    assert found["complete"]
    assert all(body[each["offset"] :].lower().startswith(b"two") for each in found["found"])
    exact = (await ask(await store_with(body), "artifacts.search", pattern="Two", exact=True, limit=1))[
        "result"
    ]
    assert ([each["line"] for each in exact["found"]], exact["complete"]) == ([2], True)


async def test_a_long_line_is_shown_in_stretches() -> None:
    body = msgspec.json.encode([{"id": index, "name": f"n\u00fcmber {index}"} for index in range(5_000)])
    found = (await ask(await store_with(body), "artifacts.search", pattern="n\u00fcmber 4321"))["result"][
        "found"
    ]
    assert [each["line"] for each in found] == [1]
    assert len(found[0]["text"]) < 400
    many = (await ask(await store_with(body), "artifacts.search", pattern="name", limit=7))["result"]
    assert (len(many["found"]), many["complete"]) == (7, False)


async def test_a_pattern_is_text_and_no_expression() -> None:
    found = (await ask(await store_with(b"a+b\naab\n(.*"), "artifacts.search", pattern="a+b"))["result"][
        "found"
    ]
    assert [each["text"] for each in found] == ["a+b"]
