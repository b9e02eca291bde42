"""Server-sent events: frames parsed however they are split, and frames encoded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import FrameTooLong
from dragoman.wire.sse import (
    DONE_FRAME,
    MAX_EMPTY_BYTES,
    NamedFrame,
    SSEParser,
    encode_comment,
    encode_frame,
)

Frames = list[tuple[bytes, str | None]]


def split(*reads: bytes, limit: int = 1 << 20) -> Frames:
    """The frames in these reads, each with its name."""
    splitter = SSEParser(limit=limit)
    frames = [frame for raw in reads for frame in splitter.feed(raw)]
    return [(bytes(frame), getattr(frame, "event", None)) for frame in (*frames, *splitter.close())]


def bytewise(raw: bytes) -> list[bytes]:
    return [raw[place : place + 1] for place in range(len(raw))]


CASES: dict[str, tuple[bytes, Frames]] = {
    "plain": (b"data: a\n\ndata: b\n\n", [(b"a", None), (b"b", None)]),
    "no space": (b"data:a\n\ndata:  b\n\n", [(b"a", None), (b" b", None)]),
    "several lines": (b"data: a\ndata:b\ndata\n\n", [(b"a\nb\n", None)]),
    "empty data": (b"data:\n\ndata: \n\n", [(b"", None), (b"", None)]),
    "comments": (b": hi\n\n:\ndata: a\n: ho\ndata: b\n\n", [(b"a\nb", None)]),
    "names": (b"event: error\ndata: {}\n\nevent:x\ndata: 1\n\n", [(b"{}", "error"), (b"1", "x")]),
    "a name without data": (b"event: ping\n\nevent: error\n\ndata: a\n\n", [(b"", "error"), (b"a", None)]),
    "other fields": (b"id: 1\nretry: 5\nfoo: bar\nbaz\ndata: a\n\n", [(b"a", None)]),
    "blank lines": (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [(b"a", None), (b"b", None)]),
    "no blank line at the end": (b"data: a\n\ndata: b\n", [(b"a", None), (b"b", None)]),
    "no line end at the end": (b"data: a\n\nevent: e\ndata: b", [(b"a", None), (b"b", "e")]),
    "a byte order mark": (
        b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbf\n\n",
        [(b"a", None), (b"\xef\xbb\xbf", None)],
    ),
    "an error as a field": (b'data: a\n\nerror: {"x":1}\n\n', [(b"a", None), (b'{"x":1}', "error")]),
    "an error as bare JSON": (b'{"error": {"x": 1}}\n', [(b'{"error": {"x": 1}}', "error")]),
    "UTF-8": ("data: é🦜\n\n".encode(), [("é🦜".encode(), None)]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_frames_are_parsed_the_same_however_they_are_split_and_with_any_line_end(
    case: str, end: bytes
) -> None:
    raw, frames = CASES[case]
    raw = raw.replace(b"\n", end)
    assert split(raw) == frames
    assert split(*bytewise(raw)) == frames
    for place in range(len(raw)):
        assert split(raw[:place], raw[place:]) == frames


PAYLOAD = st.binary(max_size=30).filter(lambda data: b"\r" not in data)


@given(
    st.lists(PAYLOAD, max_size=12),
    st.lists(st.integers(0, 400), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_encoded_frames_are_parsed_back_however_they_are_split(
    payloads: list[bytes], places: list[int], end: bytes
) -> None:
    raw = b"".join(encode_comment("hm") + encode_frame(payload) for payload in payloads).replace(b"\n", end)
    pieces = [raw[start:stop] for start, stop in pairwise([0, *sorted(places), len(raw)])]
    assert split(*pieces) == [(payload, None) for payload in payloads]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_parsed_the_same_however_they_are_split(reads: list[bytes]) -> None:
    assert split(*reads) == split(b"".join(reads))


def test_a_line_break_in_a_payload_starts_another_data_line() -> None:
    assert encode_frame(b"a\r\nb\rc") == b"data: a\ndata: b\ndata: c\n\n"
    assert encode_comment("a\nb") == b": a b\n\n"
    assert split(encode_frame(b"x"), DONE_FRAME) == [(b"x", None), (b"[DONE]", None)]


def test_comments_are_counted_as_a_sign_of_life() -> None:
    splitter = SSEParser()
    assert splitter.feed(b": one\n\n: two\n\ndata: a\n\n:") == [b"a"]
    assert splitter.comment_count == 2
    assert splitter.close() == []
    assert splitter.comment_count == 3


@pytest.mark.parametrize("line", [b":\n\n", b": x\n", b"\n", b":\n\n\n:\n"])
def test_comments_between_frames_are_skipped_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    parsed: list[bytes] = []
    parse = SSEParser._parse_frame

    def parse_counted(parser: SSEParser, text: bytes, frames: list[bytes]) -> None:
        parsed.append(text)
        parse(parser, text, frames)

    monkeypatch.setattr(SSEParser, "_parse_frame", parse_counted)
    splitter, many = SSEParser(), line * 10_000
    assert splitter.feed(many + b"data: a\n\n" + many + b"data: b\n\n" + many + b"\n") == [b"a", b"b"]
    assert splitter.comment_count == 3 * many.count(b":")
    assert len(parsed) <= 4


@pytest.mark.parametrize("line", [b":\n\n", b"\n", b"data:\n\n", b"event: a\n\n", b"id: 1\n\n"])
def test_a_stream_without_data_ends(line: bytes) -> None:
    """Such bytes compress to a thousandth."""
    splitter, read = SSEParser(), line * 20_000
    for _ in range(MAX_EMPTY_BYTES // len(read) - 1):
        splitter.feed(read)
    assert [frame for frame in splitter.feed(read + b"data: a\n\n") if frame] == [b"a"]
    reads = [read] * (MAX_EMPTY_BYTES // len(read) + 2)
    with pytest.raises(FrameTooLong, match="have no data"):
        [*map(splitter.feed, reads)]


@pytest.mark.parametrize(
    "reads",
    [
        [b"data: " + b"x" * 95 + b"\n\n"],
        [b"data: a\n\ndata: " + b"x" * 95 + b"\n\n"],
        [b"data: " + b"x" * 50, b"x" * 50, b"x"],
        bytewise(b"data: " + b"x" * 96),
        [b"data: x\n"] * 14,
    ],
)
def test_a_frame_over_the_limit_is_rejected_before_its_end_and_dropped(reads: list[bytes]) -> None:
    splitter = SSEParser(limit=100)
    with pytest.raises(FrameTooLong, match="longer than 100 bytes"):
        [*map(splitter.feed, reads)]
    assert splitter.close() == []


def test_many_frames_in_a_read_may_exceed_the_limit_together() -> None:
    raw = encode_frame(b"x" * 50) * 1000
    assert len(split(raw, limit=100)) == 1000
    assert len(split(raw[:-7], raw[-7:], limit=100)) == 1000


def test_a_named_frame_shows_its_name() -> None:
    assert repr(NamedFrame(b"{}", "error")) == "NamedFrame(b'{}', 'error')"
