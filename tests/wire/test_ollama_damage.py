"""Streams that no Ollama sends: what is not one object a line is a failure, broken characters are mended."""

from __future__ import annotations

import pytest

from .ollama_streams import STREAMS, decode, line, ndjson
from .openai_streams import cut


@pytest.mark.parametrize(
    "raw",
    [
        b'{"message":{"content":"a"}}{"message":{"content":"b"}}\n',
        b'{"message":\n{"content":"a"}}\n{"message":{}}{"message":{}}\n',
        b'{"message":{"content":"a"}\n}\n',
        b"data: {}\n",
        b"null\n",
        b'"x"\n',
    ],
)
def test_what_is_not_one_object_a_line_is_garbage_however_it_is_cut(raw: bytes) -> None:
    for pieces in ([raw], cut(raw, range(len(raw)))):
        failure = decode(pieces).failure
        assert failure is not None
        assert (failure.category, failure.message[:30]) == ("api_error", "the provider sent invalid JSON")


def test_a_character_that_was_cut_in_half_comes_out_whole() -> None:
    raw = rb'{"message":{"content":"\ud83e"}}' + b"\n" + rb'{"message":{"content":"\udd9c"}}' + b"\n"
    done = ndjson({"done": True, "done_reason": "stop"})
    for pieces in ([raw + done], cut(raw + done, range(len(raw)))):
        assert decode(pieces).story == [("text", "🦜"), ("finish", "stop", None)]


def test_broken_utf8_is_replaced() -> None:
    raw = ndjson(line("wXrd")).replace(b"X", b"\xff") + STREAMS["cut"]
    assert decode([raw]).story == [("text", "w\ufffdrdOne two"), ("finish", "length", "qwen3:8b")]
