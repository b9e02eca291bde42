"""JSON of other programs: every text is well-formed, every number is kept or refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import CallError
from dragoman.json_decoding import DECODE_ERRORS, decode_json, mend_json, parse_digits, well_formed
from dragoman.operations.outcome import encode_result, to_jsonable

UNITS = st.text(st.sampled_from('a\\"\n\u00e9\ud83d\ude00\udbff\udc00\U0001f600\ufffd/u'), max_size=12)
VALUES = st.recursive(
    UNITS | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(UNITS, inner, max_size=3),
    max_leaves=6,
)


def by_units(value: Any) -> Any:
    """The value with its texts read as UTF-16, in which a lone unit is U+FFFD."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [by_units(item) for item in value]
        case dict():
            return {by_units(name): by_units(item) for name, item in value.items()}
        case _:
            return value


@given(VALUES, st.booleans())
def test_every_value_is_read_with_its_halves_joined_or_replaced(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    expected = by_units(value)
    for raw in (text, text.encode("utf-8", "surrogatepass")):
        decoded = decode_json(raw)
        assert decoded == expected
        msgspec.json.encode(decoded)
    assert json.loads(mend_json(text) or text) == expected


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\uD83D\uDE00"', "\U0001f600"),
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
        (rb'"\ud83d\ud83d\ude00\ude00"', "\ufffd\U0001f600\ufffd"),
        (rb'"\\ud83d"', "\\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'"\\\\ud83d\ude00"', "\\\\ud83d\ufffd"),
        (rb'"\ud83d\n"', "\ufffd\n"),
        (b'"\xed\xa0\xbd"', "\ufffd"),
        (b'"\xed\xa0\xbd\xed\xb8\x80"', "\U0001f600"),
        (b'"\xed\xa0\xbd\\ude00"', "\ufffd\ufffd"),
    ],
)
def test_each_spelling_of_a_surrogate_is_read(raw: bytes, text: str) -> None:
    assert decode_json(raw) == text


@pytest.mark.parametrize(
    "raw", [b"NaN", b"[-Infinity]", b'{"a":1e999}', b'"\xff"', b'"\\ud83d', b"[" * 100_000]
)
def test_what_is_not_json_stays_an_error(raw: bytes) -> None:
    with pytest.raises(DECODE_ERRORS):
        decode_json(raw)


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "9" * 4000])
def test_large_integers_keep_their_value(number: str) -> None:
    assert decode_json(number) == int(number)
    assert encode_result(decode_json(number)).decode() == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)),
        *((text, None) for text in ("", "²", "٣", "-1", "1.0", " 1", "1_000", "9" * 19, "9" * 5_000)),
    ],
)
def test_only_ascii_digits_that_int_accepts_are_a_number(text: str, number: int | None) -> None:
    assert parse_digits(text) == number


@pytest.mark.parametrize(
    "result", [math.nan, math.inf, [None, -math.inf], {"a": {"b": (1, math.nan)}}, [2**70, math.nan]]
)
def test_a_result_that_is_not_a_number_is_an_error_that_says_so(result: Any) -> None:
    with pytest.raises(CallError, match=r"(nan|inf), which is not a JSON number"):
        to_jsonable(result)


def test_results_that_only_look_like_it_are_kept() -> None:
    for result in ([None, 1.7e308], {"a": None, "b": -1.7976931348623157e308}, [None, 2**70], None, 0.0):
        assert to_jsonable(result) == result


def test_a_result_with_half_an_emoji_is_kept() -> None:
    assert to_jsonable({"cut": "a\ud83d", "\ude00": ["\ud83d\ude00"]}) == {
        "cut": "a\ufffd",
        "\ufffd": ["\U0001f600"],
    }
    assert well_formed("a\ud83d") == "a\ufffd"
