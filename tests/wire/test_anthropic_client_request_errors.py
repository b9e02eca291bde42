"""Anthropic requests of clients: an invalid body is a 400 that names the field, never a crash."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest, UnknownThread
from dragoman.wire.anthropic.client_request import estimate_input_tokens, parse_messages_request
from dragoman.wire.anthropic.encoder import error_body, error_status
from tests.wire.anthropic_bodies import asking, claude_code, image, result, saying, tool, use

HI = {"role": "user", "content": "Hi"}
FILE = {"type": "file", "file_id": "f1"}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}


def turns(*blocks: Any) -> bytes:
    """A call, and the user's next message."""
    calls = [use("c1", "f"), SEARCH]
    return asking(messages=[HI, {"role": "assistant", "content": calls}, {"role": "user", "content": blocks}])


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b'"\\ud800"', None),
        (b"[" * 100_000, None),
        (asking(extra=msgspec.json.decode(b"[" * 300 + b"]" * 300)), None),
        (asking(model=None), "model"),
        (asking(model=7), "model"),
        (asking(model=""), "model"),
        (asking(max_tokens=None), "max_tokens"),
        (asking(max_tokens=-1), "max_tokens"),
        (asking(max_tokens=True), "max_tokens"),
        (asking(max_tokens="9"), "max_tokens"),
        (asking(temperature="hot"), "temperature"),
        (asking(top_k=0.5), "top_k"),
        (asking(stream="yes"), "stream"),
        (asking(thinking=[]), "thinking"),
        (asking(thinking={"budget_tokens": 3}), "thinking.type"),
        (asking(thread="t"), "thread"),
        (asking(output_config="low"), "output_config"),
        (asking(output_format="json"), "output_format"),
        (asking(output_format={}, output_config={"format": {"type": "json_schema"}}), "output_format"),
        (asking(metadata={"user_id": 7}), "metadata.user_id"),
        (asking(stop_sequences="END"), "stop_sequences"),
        (asking(stop_sequences=["a", ""]), "stop_sequences[1]"),
        (asking(system=7), "system"),
        (asking(system=[{"type": "image"}]), "system[0].type"),
        (asking(system=[{"type": "text", "text": "a", "cache_control": 1}]), "system[0].cache_control"),
        (asking(messages=None), "messages"),
        (asking(messages=[]), "messages"),
        (asking(messages=[HI, "Hi"]), "messages[1]"),
        (asking(messages=[{"role": "tool", "content": "Hi"}]), "messages[0].role"),
        (asking(messages=[{"role": "user", "content": ""}]), "messages[0].content"),
        (asking(messages=[{"role": "user", "content": []}]), "messages[0].content"),
        (asking(messages=[{"role": "user"}]), "messages[0].content"),
        (saying("Hi"), "messages[0].content[0]"),
        (saying({"text": "Hi"}), "messages[0].content[0].type"),
        (saying({"type": "text"}), "messages[0].content[0].text"),
        (saying({"type": "container_upload"}), "messages[0].content[0].type"),
        (saying({"type": "image"}), "messages[0].content[0].source"),
        (saying({"type": "image", "source": FILE}), "messages[0].content[0].source.file_id"),
        (saying({"type": "document", "source": FILE}), "messages[0].content[0].source.file_id"),
        (saying({"type": "image", "source": {"type": "disk"}}), "messages[0].content[0].source.type"),
        (
            saying({"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}),
            "messages[0].content[0].source.url",
        ),
        (
            saying({"type": "image", "source": {"type": "base64", "media_type": "png", "data": "AA=="}}),
            "messages[0].content[0].source.media_type",
        ),
        (
            saying({"type": "document", "source": {"type": "content", "content": [{"type": "tool_use"}]}}),
            "messages[0].content[0].source.content[0].type",
        ),
        (saying(result("c9", "x")), "messages[0].content[0].tool_use_id"),
        (turns(result("c1", "x"), result("c1", "y")), "messages[2].content[1].tool_use_id"),
        (turns(result("s1", "x")), "messages[2].content[0].tool_use_id"),
        (turns(result("c1", 7)), "messages[2].content[0].content"),
        (turns(result("c1", [{"type": "tool_reference"}])), "messages[2].content[0].content[0].type"),
        (turns(result("c1", [image()], is_error=True)), "messages[2].content[0].content"),
        (turns(result("c1", "x", is_error="no")), "messages[2].content[0].is_error"),
        (saying(result("c1", "x"), role="assistant"), "messages[0].content[0].type"),
        (saying(use("c", "f"), use("c", "f"), role="assistant"), "messages[0].content[1].id"),
        (saying({**use("c", "f"), "input": "{}"}, role="assistant"), "messages[0].content[0].input"),
        (saying({"type": "tool_use", "id": "c"}, role="assistant"), "messages[0].content[0].name"),
        (saying({"type": "thinking", "signature": "s"}, role="assistant"), "messages[0].content[0].thinking"),
        (saying({"type": "redacted_thinking"}, role="assistant"), "messages[0].content[0].data"),
        (
            saying({"type": "web_search_tool_result", "tool_use_id": "s9"}, role="assistant"),
            "messages[0].content[0].tool_use_id",
        ),
        (asking(tools={}), "tools"),
        (asking(tools=[tool("f"), {"name": "g"}]), "tools[1].input_schema"),
        (asking(tools=[tool("f"), tool("f")]), "tools[1].name"),
        (asking(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
        (asking(tools=[tool("f"), {"type": "bash_20250124", "name": "bash"}]), "tools[1].type"),
        (asking(tool_choice="auto"), "tool_choice"),
        (asking(tool_choice={"type": "any"}), "tool_choice"),
        (asking(tool_choice={"type": "some"}), "tool_choice.type"),
        (asking(tools=[tool("f")], tool_choice={"type": "tool", "name": "g"}), "tool_choice.name"),
        (
            asking(tools=[tool("f")], tool_choice={"type": "auto", "disable_parallel_tool_use": 1}),
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
)
def test_the_invalid_field_is_named(raw: bytes, field: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_messages_request(raw)
    assert caught.value.field == field
    assert field is None or caught.value.message.startswith(f"{field}: ")


def test_errors_do_not_repeat_long_values() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_messages_request(asking(temperature="secret" * 1000))
    assert len(caught.value.message) < 120


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values of a body."""
    error = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        error += paths(item, (*path, key))
    return error


PLACES = paths(claude_code())
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(
        ["text", "image", "tool_result", "tool_use", "server_tool_use", "x_tool_result", "user"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.tuples(st.sampled_from(PLACES), JUNK, st.booleans()), min_size=1, max_size=3))
def test_a_body_with_any_change_is_parsed_or_rejected_with_a_field(
    changes: list[tuple[tuple[Any, ...], Any, bool]],
) -> None:
    body: Any = claude_code()
    for path, junk, removed in changes:
        change(body, path, junk=junk, removed=removed)
    assert outcome(msgspec.json.encode(body))


def outcome(raw: bytes) -> str | int | None:
    """The token count of a valid body, else the invalid field."""
    try:
        return estimate_input_tokens(parse_messages_request(raw).request)
    except BadRequest as error:
        return error.field


def change(body: Any, path: tuple[Any, ...], *, junk: Any, removed: bool) -> None:
    """Replace a value by junk, or remove it; what an earlier change removed stays removed."""
    *way, last = path
    try:
        for key in way:
            body = body[key]
        if removed:
            del body[last]
        else:
            body[last] = junk
    except (KeyError, IndexError, TypeError):
        return


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_rejected(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_messages_request(raw)


def test_the_rest_of_a_thread_is_refused_so_that_the_sdk_sends_the_whole_conversation() -> None:
    """The SDK's tool runner sends only new messages, unless the error has the code that it reads."""
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    for raw in (asking(thread=thread), asking(thread=thread, messages=[]), asking(thread={"type": "new"})):
        with pytest.raises(UnknownThread) as caught:
            parse_messages_request(raw)
        error: Any = error_body(caught.value, request_id="req_1")["error"]
        assert (error_status(caught.value), error["type"]) == (400, "invalid_request_error")
        assert error["details"] == {"error_code": "thread_not_found"}
    started = parse_messages_request(asking(thread={"type": "create"}))
    assert started.request.options["thread"] == {"type": "create"}  # which other families drop, and name
