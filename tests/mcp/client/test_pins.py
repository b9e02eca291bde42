"""Definition hashes, and the helpers of the MCP client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.json_decoding import prune_depth
from dragoman.mcp.client.definition_pins import check_pins, definition_change
from dragoman.mcp.client.definitions import ToolDefinition
from dragoman.mcp.client.jsonrpc import MAX_DEPTH, parse_messages
from dragoman.operations.definitions.diff import definition_diff
from dragoman.redaction import Redactor
from dragoman.store import Store
from dragoman.store.encryption import FolderKey
from dragoman.store.mcp_servers import (
    DefinitionPin,
    DefinitionPinRepository,
    McpServerRepository,
    MemoryPinStore,
    PinStore,
)


@asynccontextmanager
async def pins_of(kind: str, folder: Path) -> AsyncIterator[PinStore]:
    if kind == "memory":
        yield MemoryPinStore()
        return
    async with await Store.open(folder) as store:
        yield DefinitionPinRepository(store.database)


def pin(name: str, body: str = "{}", **more: Any) -> DefinitionPin:
    return DefinitionPin(server="s", name=name, hash=f"of {body}", body=body, approved_at=1.0, **more)


@pytest.mark.parametrize("kind", ["memory", "store"])
async def test_pins_are_kept_by_server_replaced_by_name_and_forgotten(tmp_path: Path, kind: str) -> None:
    async with pins_of(kind, tmp_path) as pins:
        await pins.put([pin("b"), pin("a")])
        await pins.put([pin("a", '{"x": 1}', approved_by="ann")])
        assert await pins.list("s") == [pin("a", '{"x": 1}', approved_by="ann"), pin("b")]
        assert await pins.list("other") == []
        assert await pins.delete("s") == 2
        assert await pins.list("s") == []


async def test_servers_that_were_added_are_kept(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        servers = McpServerRepository(
            store.database, clock=lambda: 7.0, folder_key=FolderKey(tmp_path / "key")
        )
        await servers.put("b", '{"url": "http://x"}')
        await servers.put("b", '{"url": "http://y"}')
        assert [(each.name, each.body, each.created_at) for each in await servers.list()] == [
            ("b", '{"url": "http://y"}', 7.0)
        ]
        assert await servers.delete("b")
        assert not await servers.delete("b")


def define(name: str = "t", **more: Any) -> ToolDefinition:
    return ToolDefinition(name=name, input_schema={"type": "object"}, **more)


def test_the_order_of_keys_is_no_change_and_anything_else_is() -> None:
    one = ToolDefinition(name="t", input_schema={"type": "object", "properties": {"a": {}, "b": {}}})
    same = ToolDefinition(name="t", input_schema={"properties": {"b": {}, "a": {}}, "type": "object"})
    assert one.hash == same.hash
    others = [
        define(),
        define(description="x"),
        define(annotations={"readOnlyHint": True}),
        define(output_schema={}),
    ]
    assert len({each.hash for each in [one, *others]}) == 5


def test_the_first_look_approves_once_and_never_again() -> None:
    old, new = define("old"), define("new")
    stored = {"old": DefinitionPin(server="s", name="old", hash=old.hash, body=old.body, approved_at=0.0)}
    assert check_pins([old, new], {}, trust="first").newly_pinned == (old, new)
    verdict = check_pins([old, new], stored, trust="first")
    assert (verdict.approved, verdict.pending, verdict.newly_pinned) == ((old,), (new,), ())
    assert check_pins([old, new], {}, trust="ask").approved == ()
    assert check_pins([old, new], stored, trust="always").approved == (old, new)


def test_a_diff_shows_characters_that_cannot_be_seen() -> None:
    change = definition_change(define(description="Adds.\u202e"), None, server="s")
    assert "\\u202e" in change.diff
    assert definition_diff({"a": "x\ny"}, {"a": "x\nz"}).endswith('-    y"\n+    z"\n }')


@pytest.mark.parametrize("levels", [100, 128, 129, 5_000, 100_000])
def test_what_is_nested_too_deep_becomes_null_and_the_rest_stays(levels: int) -> None:
    deep = b'{"a":' * levels + b'"]}"' + b"}" * levels
    stored = json.loads(prune_depth(b'{"before": 1, "deep": ' + deep + b', "after": "[{"}', MAX_DEPTH))
    assert (stored["before"], stored["after"]) == (1, "[{")
    (message,) = parse_messages(b'{"jsonrpc": "2.0", "id": 1, "result": {"deep": ' + deep + b"}}")
    assert message.message.id == 1  # type: ignore[union-attr]  # it was read


def test_secrets_are_redacted_in_every_spelling() -> None:
    blot = Redactor('pa"ss\\word', "tok", "secret-1", "secret-12")
    assert blot('a pa"ss\\word and pa\\"ss\\\\word') == "a *** and ***"
    assert blot("secret-12 tok") == "*** tok"  # a text this short is not a secret
    assert blot.redact_json({"secret-1": ["x secret-1", 3, None]}) == {"***": ["x ***", 3, None]}
    plain = {"tools": [{"name": "a"}, 3, None]}
    assert blot.redact_json(plain) is plain  # a copy of a large one would be freed in one long call
    both = {"plain": plain, "named": ["secret-1"]}
    assert blot.redact_json(both) == {"plain": plain, "named": ["***"]}
    assert blot.redact_json(both)["plain"] is plain
