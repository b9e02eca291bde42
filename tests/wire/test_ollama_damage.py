"""Invalid /api/chat streams: a line that is not one object is a failure, invalid characters are replaced."""

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
def test_lines_that_are_not_objects_are_invalid_however_they_are_split(raw: bytes) -> None:
    for reads in ([raw], cut(raw, range(len(raw)))):
        failure = decode(reads).failure
        assert failure is not None
        assert (failure.category, failure.message[:30]) == ("api_error", "the provider sent invalid JSON")


def test_a_split_surrogate_pair_is_joined() -> None:
    raw = rb'{"message":{"content":"\ud83e"}}' + b"\n" + rb'{"message":{"content":"\udd9c"}}' + b"\n"
    done = ndjson({"done": True, "done_reason": "stop"})
    for reads in ([raw + done], cut(raw + done, range(len(raw)))):
        assert decode(reads).story == [("text", "🦜"), ("finish", "stop", None)]


def test_invalid_utf8_is_replaced() -> None:
    raw = ndjson(line("wXrd")).replace(b"X", b"\xff") + STREAMS["cut"]
    assert decode([raw]).story == [("text", "w\ufffdrdOne two"), ("finish", "length", "qwen3:8b")]
