"""Frames: round trip, split, invalid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import FrameTooLong, TooLarge, WireError
from dragoman.spokes import protocol as p
from dragoman.spokes.send_queue import FrameSizes, PartJoiner

DOCS = Path(__file__).parents[2] / "docs" / "spokes.md"
ids = st.text(min_size=1, max_size=20)
spoke_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,20}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(st.text(max_size=10), values, max_size=4)
seconds = st.none() | st.floats(0.001, 1e6)
failures = st.builds(
    p.SpokeFailure,
    code=st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True),
    message=st.text(),
    transient=st.booleans(),
    hint=st.none() | st.text(),
    problems=st.lists(objects, max_size=2),
    retry_after=seconds,
)
offers = st.builds(
    p.OperationOffer,
    namespace=st.text(),
    name=st.text(),
    input_schema=objects,
    description=st.text(),
    output_schema=st.none() | objects,
    effect=st.sampled_from(["read", "idempotent", "once"]),
    timeout=seconds,
    approval=st.booleans(),
)
both = [
    st.builds(p.ProgressFrame, id=ids, value=values),
    st.builds(p.ResultFrame, id=ids, result=values, cost=st.floats(0, 10)),
    st.builds(p.ErrorFrame, id=ids, error=failures),
    st.builds(p.AbortFrame, id=ids),
    st.builds(p.AbortedFrame, id=ids),
    st.builds(p.PingFrame, n=st.integers(0, 9)),
    st.builds(p.PongFrame, n=st.integers(0, 9)),
    st.builds(p.PartFrame, text=st.text(), last=st.booleans()),
    st.builds(p.ByeFrame, code=st.text(), message=st.text(), again=st.booleans()),
]
spokes = st.one_of(
    *both,
    st.builds(
        p.HelloFrame,
        protocol=st.integers(),
        id=spoke_ids,
        name=st.none() | spoke_ids,
        token=st.none() | st.text(),
        window=st.none() | st.integers(1, 10),
        message=st.none() | st.integers(1024, 9999),
        calls=st.lists(ids, max_size=3).map(tuple),
    ),
    st.builds(p.RegisterFrame, id=ids, operations=st.lists(offers, max_size=2).map(tuple), all=st.booleans()),
    st.builds(p.UnregisterFrame, operations=st.lists(st.text(), max_size=2).map(tuple)),
    st.builds(p.SubcallFrame, id=ids, parent=ids, operation=st.text(), input=values),
)
hubs = st.one_of(
    *both,
    st.builds(p.RefusedFrame, error=failures),
    st.builds(
        p.RegisteredFrame,
        id=ids,
        operations=st.lists(st.text(), max_size=2).map(tuple),
        refused=st.lists(st.builds(p.RefusedOperation, operation=st.text(), error=failures), max_size=2).map(
            tuple
        ),
    ),
    st.builds(
        p.CallFrame,
        id=ids,
        operation=st.text(),
        input=values,
        owner=st.text(),
        effect=st.sampled_from(["read", "idempotent", "once"]),
        idempotency_key=st.text(),
        call_id=st.text(),
        remaining=seconds,
        run_id=st.none() | st.text(),
        session_id=st.none() | st.text(),
        agent=st.none() | st.text(),
    ),
)


@given(spokes)
def test_what_a_spoke_says_is_read_as_it_was_meant(frame: Any) -> None:
    assert p.decode_from_spoke(p.encode_frame(frame)) == plain(frame)


@given(hubs)
def test_what_a_hub_says_is_read_as_it_was_meant(frame: Any) -> None:
    assert p.decode_from_hub(p.encode_frame(frame).decode()) == plain(frame)


@given(values, st.integers(100, 400))
def test_a_message_in_parts_is_the_same_message(value: Any, size: int) -> None:
    frame = p.ResultFrame(id="c", result=value)
    texts = FrameSizes(frame=size, message=1_000_000).split(frame)
    assert all(len(text.encode()) <= size for text in texts)
    if len(texts) == 1:
        assert p.decode_from_spoke(texts[0]) == frame
        return
    joiner = PartJoiner(1_000_000)
    joined = [
        joiner.add(part) for text in texts if isinstance(part := p.decode_from_spoke(text), p.PartFrame)
    ]
    assert joined[:-1] == [None] * (len(texts) - 1)
    assert p.decode_from_spoke(joined[-1] or "") == frame


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize(
    ("text", "expected"), [("a\U0001f600b", "a\U0001f600b"), ("\ud83d cut \ude00", "\ufffd cut \ufffd")]
)
def test_a_message_cut_anywhere_also_inside_an_emoji_is_the_same_message(
    text: str, expected: str, escaped: bool
) -> None:
    """A JavaScript spoke cuts between UTF-16 units."""
    message = json.dumps({"type": "result", "id": "c", "result": text}, ensure_ascii=escaped)
    units = message.encode("utf-16-le", "surrogatepass")
    for cut in range(2, len(units), 2):
        joiner = PartJoiner(1_000)
        whole = None
        for piece, is_last in ((units[:cut], False), (units[cut:], True)):
            frame = {"type": "part", "text": piece.decode("utf-16-le", "surrogatepass"), "last": is_last}
            part = p.decode_from_spoke(json.dumps(frame))
            assert isinstance(part, p.PartFrame)
            whole = joiner.add(part)
        assert p.decode_from_spoke(whole or "") == p.ResultFrame(id="c", result=expected), cut


def test_a_message_over_the_limit_is_neither_sent_nor_joined() -> None:
    with pytest.raises(TooLarge):
        FrameSizes(frame=100, message=200).split(p.ResultFrame(id="c", result="x" * 300))
    joiner = PartJoiner(10)
    with pytest.raises(FrameTooLong):
        joiner.add(p.PartFrame(text="x" * 11))


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_garbage_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        p.decode_from_spoke(data)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"type":"call","id":"x"}',
        '{"type":"result"}',
        '{"type":"result","id":""}',
        '{"type":"hello","protocol":1,"id":"with spaces"}',
        '{"type":"hello","protocol":1,"id":"ok","window":0}',
        '{"type":"error","id":"x","error":{"code":"No Code","message":"m"}}',
    ],
)
def test_frames_that_break_the_rules_are_wire_errors(text: str) -> None:
    with pytest.raises(WireError):
        p.decode_from_spoke(text)


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(p.HelloFrame(protocol=1, id="a", token="secret"))


def test_every_example_of_the_documents_is_a_frame_that_the_code_reads() -> None:
    blocks = re.findall(
        r"^```json (spoke|hub)\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    replies = [(who, line) for who, block in blocks for line in block.splitlines() if line.strip()]
    assert len(replies) >= 20
    seen = {
        (
            who,
            (p.decode_from_spoke(line) if who == "spoke" else p.decode_from_hub(line)).__struct_config__.tag,
        )
        for who, line in replies
    }
    for who, union in (("spoke", p.FrameFromSpoke), ("hub", p.FrameFromHub)):
        tags = {each.__struct_config__.tag for each in union.__args__}
        assert {tag for speaker, tag in seen if speaker == who} == tags
    for who, line in replies:  # nothing in an example is a field that nobody reads
        frame = p.decode_from_spoke(line) if who == "spoke" else p.decode_from_hub(line)
        existing = {field.encode_name for field in msgspec.structs.fields(frame)} | {"type"}
        assert set(msgspec.json.decode(line)) <= existing


def plain(frame: Any) -> Any:
    """The frame with its sequences as JSON has them."""
    return msgspec.json.decode(msgspec.json.encode(frame), type=type(frame))
