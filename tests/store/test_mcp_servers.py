"""MCP servers added at run time: what they are configured with is encrypted in the database."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from dragoman.store.store import Store

SECRET = "tok-7f3a9c-secret"
BODY = f'{{"url":"https://x.example/?k={SECRET}","headers":{{"authorization":"Bearer {SECRET}"}}}}'


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


async def test_no_file_of_the_data_folder_holds_a_header_in_plain_text(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        await store.mcp_servers.put("x", BODY)
        assert SECRET.encode() not in stored_bytes(tmp_path)
    async with await Store.open(tmp_path) as store:
        [record] = await store.mcp_servers.list()
        assert (record.name, record.body) == ("x", BODY)
    assert SECRET.encode() not in stored_bytes(tmp_path)
    assert stat.S_IMODE((tmp_path / "hub.key").stat().st_mode) == 0o600


async def test_a_server_that_an_earlier_version_stored_is_encrypted_when_it_is_read(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        await store.database.write(
            lambda connection: connection.execute(
                "INSERT INTO mcp_servers (name, body, created_at) VALUES (:name, :body, 1.0)",
                {"name": "x", "body": BODY},
            )
        )
        assert [each.body for each in await store.mcp_servers.list()] == [BODY]
        rows = await store.database.read(
            lambda connection: connection.fetch_all("SELECT body, created_at FROM mcp_servers", {})
        )
        assert SECRET not in str(rows)
        assert [row[1] for row in rows] == [1.0]
        assert [each.body for each in await store.mcp_servers.list()] == [BODY]


@pytest.mark.parametrize("loss", ["swapped", "no key", "another key", "damaged"])
async def test_what_cannot_be_decrypted_is_left_out_and_logged_and_the_rest_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    async with await Store.open(tmp_path) as store:
        await store.mcp_servers.put("x", BODY)
        await store.mcp_servers.put("y", "{}")
        change = {
            "swapped": "UPDATE mcp_servers SET body = (SELECT body FROM mcp_servers WHERE name = 'y') "
            "WHERE name = 'x'",
            "damaged": "UPDATE mcp_servers SET body = 'encrypted:{}' WHERE name = 'x'",
        }.get(loss)
        if change is not None:
            await store.database.write(lambda connection: connection.execute(change, {}))
    if loss == "no key":
        (tmp_path / "hub.key").unlink()
    if loss == "another key":
        (tmp_path / "hub.key").write_text("A" * 43 + "=")
    with caplog.at_level(logging.WARNING):
        async with await Store.open(tmp_path) as store:
            names = [each.name for each in await store.mcp_servers.list()]
    assert names == (["y"] if change else [])
    assert "x is left out" in caplog.text
    assert SECRET not in caplog.text
