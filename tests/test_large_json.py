"""JSON in pieces is decoded and encoded as in one call, however it is cut."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dragoman import large_json
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.large_json import decode_large, encode_large, split_fields
from tests.effort import rounds

ATOMS = [
    *("a", "~1", " ", ",", ":", "{", "}", "[", "]", "é", "中", "😀"),
    *("\\n", "\\\\", '\\"', "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\ude00"),
]
BREAKS = [b"", b'"', b"\\", b"{", b"]", b",", b":", b"a", b"~"]


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "_WINDOW", 23)
    monkeypatch.setattr(large_json, "_WHOLE", 30)
    monkeypatch.setattr(large_json, "_SHORT", 5)
    monkeypatch.setattr(large_json, "_MANY", 3)


def make_text(chance: random.Random) -> str:
    return '"' + "".join(chance.choices(ATOMS, k=chance.randrange(60))) + '"'


def make_value(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if kind < 0.5 or depth > 4:
        return make_text(chance)
    if kind < 0.6:
        return chance.choice(["1", "null", "-2.5e3", "true"])
    space = chance.choice(["", " ", "\n"])
    items = [make_value(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind < 0.8:
        return "[" + f"{space},".join(items) + "]"
    members = [f"{make_text(chance)}{space}:{space}{item}" for item in items]
    return space + "{" + space + f"{space},".join(members) + space + "}" + space


def decode_plainly(raw: bytes) -> Any:
    try:
        return decode_json(raw)
    except DECODE_ERRORS:
        return "invalid"


def test_json_in_pieces_is_decoded_and_encoded_as_in_one_call() -> None:
    chance = random.Random(7)
    for _ in range(rounds(quick=500, thorough=20_000)):
        raw = make_value(chance).encode()
        value = decode_json(raw)
        assert decode_large(raw, decode_json) == value
        assert encode_large(value) == msgspec.json.encode(value)
        assert encode_large(value, order="sorted") == msgspec.json.encode(value, order="sorted")
        if isinstance(value, dict):
            fields = split_fields(raw, decode_json)
            assert {name: decode_json(bytes(field)) for name, field in fields.items()} == value


def test_broken_json_is_refused_or_decoded_as_in_one_call() -> None:
    chance = random.Random(8)
    for _ in range(rounds(quick=500, thorough=20_000)):
        broken = bytearray(make_value(chance).encode("ascii", "ignore"))
        at = chance.randrange(len(broken))
        broken[at : at + chance.randrange(2)] = chance.choice(BREAKS)
        raw, value = bytes(broken), decode_plainly(bytes(broken))
        try:
            assert decode_large(raw, decode_json) == value
        except DECODE_ERRORS:
            assert value == "invalid"
        if isinstance(value, dict):
            fields = split_fields(raw, decode_json)
            assert {name: decode_json(bytes(field)) for name, field in fields.items()} == value


@pytest.mark.parametrize(
    "raw",
    [b"", b"1", b"[1]", b'"{"', b"{", b'{"a":1', b'{"a":1}}', b'{"a":1} x', b'{"a"}', b'{"a":}', b"{1:2}"],
)
def test_what_is_not_an_object_has_no_fields(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        split_fields(raw, decode_json)


def test_a_text_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "MAX_WIDE_TEXT", 400)
    for text, most in (("a" * 1_000, None), ("é" * 1_000, None), ("中" * 201, 200), ("a" * 100 + "😀", 100)):
        raw = msgspec.json.encode([text])
        if most is None:
            assert decode_large(raw, decode_json) == [text]
        else:
            with pytest.raises(msgspec.DecodeError, match=f"{most} of other scripts are allowed"):
                decode_large(raw, decode_json)


def test_too_many_objects_and_lists_are_refused_before_the_text_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_json, "MAX_CONTAINERS", 50)
    most = b"[" + b",".join([b'{"a":[1]}'] * 21 + [b'"{[{["']) + b"]"
    assert len(decode_large(most, msgspec.json.decode)) == 22
    for more in (b"[" + b"{}," * 50 + b"1]", b"[" * 51 + b"]" * 51):
        with pytest.raises(msgspec.DecodeError, match="more than 50 objects and lists"):
            decode_large(more, msgspec.json.decode)


def test_lists_and_objects_of_a_large_text_are_filled_in_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of replaced ones are freed in one call, which holds the event loop."""
    monkeypatch.setattr(large_json, "_WHOLE", 1_000)
    trees: list[Any] = []

    def decode(raw: bytes) -> Any:
        trees.append(msgspec.json.decode(raw))
        return trees[-1]

    tree = {"items": [{"text": "long " * 20, "id": 1}, ["~1", "short"]]}
    value = decode_large(msgspec.json.encode(tree), decode)
    assert value == tree
    assert value is trees[0]
    assert value["items"] is trees[0]["items"]
