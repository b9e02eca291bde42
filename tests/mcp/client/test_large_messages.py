"""Large messages of MCP servers: decoded beside the event loop, or refused by their number of values."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mcp.types import JSONRPCError, JSONRPCResponse

from dragoman.json_decoding import decode_json
from dragoman.mcp.client import jsonrpc
from dragoman.mcp.client.jsonrpc import MAX_VALUES, UnreadableMessage, decode_messages

RESPONSE = b'{"jsonrpc":"2.0","id":7,"result":{"x":%b}}'


async def test_a_large_message_of_a_server_is_decoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def record(raw: bytes) -> Any:
        threads.append(threading.get_ident())
        return decode_json(raw)

    monkeypatch.setattr(jsonrpc, "decode_json", record)
    await decode_messages(RESPONSE % (b'"%b"' % (b"word " * 100_000)))
    await decode_messages(RESPONSE % (b"[%b]" % b",".join([b'{"a":1}'] * 10_000)))
    await decode_messages(RESPONSE % b"1")
    loop_thread = threading.get_ident()
    assert [thread == loop_thread for thread in threads] == [False, False, True]


async def test_a_response_with_too_many_values_is_the_error_of_its_request() -> None:
    (found,) = await decode_messages(RESPONSE % (b"[%b]" % b",".join([b"1"] * MAX_VALUES)))
    assert not isinstance(found, UnreadableMessage)
    assert isinstance(found.message, JSONRPCError)
    assert found.message.id == 7
    assert "JSON values and names" in found.message.error.message


async def test_a_large_response_arrives_whole() -> None:
    (found,) = await decode_messages(RESPONSE % (b'"%b"' % (b"a\\n" * 200_000)))
    assert not isinstance(found, UnreadableMessage)
    assert isinstance(found.message, JSONRPCResponse)
    assert found.message.result["x"] == "a\n" * 200_000
