"""The raw body of a gateway request: the fields that routing reads; all others keep their bytes."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest
from dragoman.wire.client_request import DEFAULT_SEARCHES, RawRequestBody

ODD = (
    b'{"model":"m","temperature":1.0e0,"seed":12345678901234567890123, "x" : [ 1 , 2.50,null ],'
    b'"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00 \xc3\xa9 <>&/\\/"}],"n":1}'
)


def head(**fields: Any) -> RawRequestBody:
    return RawRequestBody(msgspec.json.encode({"model": "m", **fields}))


@pytest.mark.parametrize(
    ("raw", "problem", "field"),
    [
        (b"", "the body is not a JSON object", None),
        (b"{", "the body is not a JSON object", None),
        (b'{"model":"m"} x', "the body is not a JSON object", None),
        (b"[]", "the body is not a JSON object", None),
        (b'"m"', "the body is not a JSON object", None),
        (b"null", "the body is not a JSON object", None),
        (b'{"model":"\xff"}', "model is not valid JSON: ", "model"),
        (b'{"model":"\xff"}', "model is not valid JSON", "model"),
        (b'{"model":"m","stream":"\xff"}', "stream is not valid JSON: ", "stream"),
        (b'{"a":' + b"[" * 100_000, "the body is not a JSON object", None),
        (b"<html>", "the body is not a JSON object", None),
        (b"{}", "model is missing", "model"),
        (b'{"model":null}', "model is missing", "model"),
        (b'{"model":""}', "model must be a string, not ''", "model"),
        (b'{"model":7}', "model must be a string, not 7", "model"),
        (b'{"model":["m"]}', "model must be a string, not ['m']", "model"),
        (b'{"model":"m","stream":"true"}', "stream must be true or false, not 'true'", "stream"),
        (b'{"model":"m","stream":1}', "stream must be true or false, not 1", "stream"),
        (b'{"model":"m","stream":{}}', "stream must be true or false, not {}", "stream"),
    ],
)
def test_the_invalid_field_is_named(raw: bytes, problem: str, field: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        RawRequestBody(raw)
    assert refused.value.message.startswith(problem)
    assert refused.value.field == field


def test_errors_do_not_repeat_long_values() -> None:
    with pytest.raises(BadRequest) as refused:
        head(stream="x" * 10_000)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("fields", "stream"),
    [({}, False), ({"stream": None}, False), ({"stream": False}, False), ({"stream": True}, True)],
)
def test_stream_is_true_only_if_requested(fields: dict[str, Any], *, stream: bool) -> None:
    assert head(**fields).stream is stream


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9}, 9),
        ({"max_output_tokens": 5}, 5),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
        ({"max_tokens": 9, "max_completion_tokens": 7}, 9),
        ({"max_tokens": "7"}, 7),
        ({"max_tokens": 6.5}, 7),
        ({"max_tokens": "much"}, None),
        ({"max_tokens": "9" * 5_000}, None),
        ({"max_tokens": True}, None),
    ],
)
def test_max_output_tokens_is_the_highest_limit(fields: dict[str, Any], most: int | None) -> None:
    assert head(**fields).max_output_tokens({}, default=1_024) == most
    filled = head(**{"max_tokens": None, **fields})
    assert filled.max_output_tokens({"max_tokens": 1_000}, default=1_024) == most


@pytest.mark.parametrize(
    ("n", "choices"), [(3, 3), (1, 1), (0, 1), (-3, 1), (None, 1), (True, 1), ("4", 4), (4.0, 4), ("x", 1)]
)
def test_max_output_tokens_covers_all_choices(n: Any, choices: int) -> None:
    assert head(n=n, max_tokens=7).max_output_tokens({}, default=1_024) == 7 * choices
    unlimited = None if choices == 1 else 1_024 * choices
    assert head(n=n).max_output_tokens({}, default=1_024) == unlimited


@pytest.mark.parametrize("options", [{}, {"max_tokens": 7}])
def test_a_limit_of_the_providers_options_counts_where_the_body_has_none(options: dict[str, Any]) -> None:
    assert head().max_output_tokens(options, default=1_024) == options.get("max_tokens")


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 0),
        ({"tools": [{"type": "web_search_20250305", "max_uses": 3}]}, 3),
        ({"tools": [{"type": "web_search_20250305", "max_uses": 0}]}, 0),
        ({"tools": [{"type": "web_search_20250305"}]}, DEFAULT_SEARCHES),
        ({"tools": [{"type": "web_search_20250305", "max_uses": "3"}]}, DEFAULT_SEARCHES),
        ({"tools": [{"type": "web_search_20250305", "max_uses": -3}]}, DEFAULT_SEARCHES),
        ({"tools": [{"type": "web_search"}], "max_tool_calls": 2}, 2),
        ({"tools": [{"type": "web_search_preview"}, {"type": "web_search"}], "max_tool_calls": None}, 10),
        ({"tools": [{"type": "function", "name": "web_search"}]}, 0),
        ({"tools": [{"type": 3}, None], "max_tool_calls": 2}, 0),
        ({"tools": {"type": "web_search"}}, 0),
    ],
)
def test_searches_are_limited_by_their_tools_or_assumed(fields: dict[str, Any], most: int) -> None:
    assert head(**fields).max_searches() == most
    assert head(**fields).may_search or not most


@pytest.mark.parametrize("letter", ["w", "_", "-"])
def test_tools_of_the_provider_are_found_however_their_names_are_escaped(letter: str) -> None:
    search = {"type": "web_search_20250305-", "max_uses": 3}
    advisor = {"type": "advisor_20260301-", "model": "large-w", "max_uses": 2, "max_tokens": 10}
    raw = msgspec.json.encode({"model": "m", "tools": [search, advisor]})
    escaped = re.sub(rb"[a_]", lambda found: b"\\u%04X" % found[0][0], raw)
    for body in (raw, escaped, raw.replace(letter.encode(), b"\\u%04x" % ord(letter))):
        found = RawRequestBody(body)
        assert found.may_search
        assert found.max_searches() == 3
        assert [(each.model, each.uses) for each in found.advisors] == [("large-w", 2)]


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        (None, False),
        ({}, False),
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({"include_usage": 1}, False),
        ("yes", False),
    ],
)
def test_usage_is_requested_with_include_usage(options: Any, *, asks: bool) -> None:
    assert head(stream_options=options).include_usage is asks


def test_other_fields_keep_their_bytes_and_order() -> None:
    written = RawRequestBody(ODD).rewrite("served", options={})
    assert written == (
        b'{"model":"served","temperature":1.0e0,"seed":12345678901234567890123,"x":[ 1 , 2.50,null ],'
        b'"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00 \xc3\xa9 <>&/\\/"}],"n":1}'
    )


def test_options_fill_in_fields_that_the_body_does_not_set() -> None:
    body = RawRequestBody(b'{"model":"m","temperature":0.10,"top_p":null}')
    written = body.rewrite("x", options={"temperature": 1, "top_p": 1, "seed": 7, "extra": {"a": [1]}})
    assert written == b'{"model":"x","temperature":0.10,"top_p":null,"seed":7,"extra":{"a":[1]}}'


@pytest.mark.parametrize(
    ("stream_options", "sent"),
    [
        (b"", b',"stream_options":{"include_usage":true}'),
        (b',"stream_options":null', b',"stream_options":{"include_usage":true}'),
        (b',"stream_options":{"x":1}', b',"stream_options":{"x":1,"include_usage":true}'),
        (b',"stream_options":{"include_usage":false}', b',"stream_options":{"include_usage":true}'),
        (b',"stream_options":{ "include_usage" : true }', b',"stream_options":{ "include_usage" : true }'),
    ],
)
def test_include_usage_is_added_to_the_clients_stream_options(stream_options: bytes, sent: bytes) -> None:
    assert RawRequestBody(b'{"model":"m"' + stream_options + b"}").rewrite(
        "m", options={}, include_usage=True
    ) == (b'{"model":"m"' + sent + b"}")


def test_each_rewrite_starts_from_the_clients_body() -> None:
    body = RawRequestBody(b'{"model":"m"}')
    body.rewrite("a", options={"seed": 1}, include_usage=True)
    assert body.rewrite("b", options={"top_k": 2}) == b'{"model":"b","top_k":2}'


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=12).filter(lambda name: name not in ("model", "stream")), values))
def test_every_body_is_relayed_with_only_the_model_changed(fields: dict[str, Any]) -> None:
    raw = json.dumps({**fields, "model": "m"}).encode()
    body = RawRequestBody(raw)
    assert json.loads(body.rewrite("served", options={})) == {**fields, "model": "served"}
    assert body.size == len(raw)


def test_a_lone_surrogate_becomes_a_replacement_character_and_all_else_keeps_its_bytes() -> None:
    head = RawRequestBody(rb'{"model":"a","messages":[{"content":"\\ud83d cut \ud83d"}],"seed":1e999}')
    assert head.rewrite("b", options={}) == (
        rb'{"model":"b","messages":[{"content":"\\ud83d cut \ufffd"}],"seed":1e999}'
    )
