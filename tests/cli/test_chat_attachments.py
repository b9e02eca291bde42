"""Files that go with a message of `dragoman chat`: together at most 5 MB, as their sizes on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli.chat.renderer_choice import make_renderer
from dragoman.cli.chat.session import ChatSession
from dragoman.cli.chat.slash_commands import MAX_ATTACHMENT, add_attachments
from dragoman.cli.hub_client.client import HubClient
from dragoman.errors import BadRequest


def test_the_limit_counts_the_bytes_of_files_and_not_of_their_base64(tmp_path: Path) -> None:
    chat = ChatSession(HubClient.over_http("http://127.0.0.1:1"), make_renderer)
    first, second, third = (tmp_path / name for name in ("a.bin", "b.bin", "c.bin"))
    first.write_bytes(b"a" * (MAX_ATTACHMENT - 1_000_001))
    second.write_bytes(b"b" * 1_000_001)
    third.write_bytes(b"c")
    assert len(add_attachments(chat, [str(first), str(second)])) == 2
    with pytest.raises(BadRequest):
        add_attachments(chat, [str(third)])
