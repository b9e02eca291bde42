"""Prompt caching with Anthropic: cache marks, a stable prefix, and the warning without one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from dragoman.messages import Message, StepStartPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.providers.anthropic import DEFAULT_SETTINGS, AnthropicAdapter
from dragoman.providers.prompt_cache_monitor import CacheBust
from dragoman.wire.anthropic.client_request import parse_options
from dragoman.wire.anthropic.field_reader import RequestFields

MARK = {"type": "ephemeral"}
MODEL = "claude-sonnet-4-5"
TOOLS = (Tool("a", "A.", {}), Tool("b", "B.", {}))


def user(text: str, id: str = "u1") -> Message:
    return Message(id, "user", (TextPart(text),))


def assistant(*outputs: str, text: str = "", id: str = "a1") -> Message:
    """An answer that calls a tool once a step, and then says something."""
    parts: list[Any] = []
    for number, output in enumerate(outputs):
        call = ToolPart("tool-a", f"c{number}", "output-available", input={}, output=output)
        parts += [StepStartPart(), call]
    parts += [StepStartPart(), TextPart(text)] if text else []
    return Message(id, "assistant", tuple(parts))


def ask(*messages: Message, cache: Any = True, **fields: Any) -> ModelRequest:
    fields_of_request = {"instructions": "Be brief.", "tools": TOOLS, **fields}
    options = {"cache_control": cache, **fields_of_request.pop("options", {})}
    return ModelRequest(model=MODEL, messages=messages, options=options, **fields_of_request)


def body(request: ModelRequest) -> Any:
    return msgspec.json.decode(AnthropicAdapter("anthropic", DEFAULT_SETTINGS).encode(request, drop=()))


def marked(value: Any) -> list[tuple[str, int, dict[str, Any]]]:
    """Where the marks are: the list, the place in it, the mark."""
    lists = [("tools", value.get("tools", [])), ("system", value.get("system", []))]
    lists += [(f"messages.{at}", message["content"]) for at, message in enumerate(value["messages"])]
    return [
        (name, at, block["cache_control"])
        for name, blocks in lists
        for at, block in enumerate(blocks)
        if "cache_control" in block
    ]


def bare(value: Any) -> Any:
    """A body without its marks."""
    if isinstance(value, dict):
        return {name: bare(item) for name, item in value.items() if name != "cache_control"}
    return [bare(item) for item in value] if isinstance(value, list) else value


TURNS: Sequence[Sequence[Message]] = (
    [user("1")],
    [user("1"), assistant("x")],
    [user("1"), assistant("x", "y")],
    [user("1"), assistant("x", "y", text="Done."), user("2", "u2")],
    [user("1"), assistant("x", "y", text="Done."), user("2", "u2"), assistant("z", id="a2")],
)


def test_a_first_request_is_kept_behind_tools_system_and_question() -> None:
    assert marked(body(ask(user("1")))) == [("tools", 1, MARK), ("system", 0, MARK), ("messages.0", 0, MARK)]


def test_the_end_of_the_request_before_stays_marked() -> None:
    value = body(ask(*TURNS[2]))

    assert [name for name, _, _ in marked(value)] == ["tools", "system", "messages.2", "messages.4"]


@pytest.mark.promise("cache-prefix-stable")
def test_the_beginning_is_the_same_bytes_over_all_turns_of_a_session() -> None:
    bodies = [body(ask(*messages)) for messages in TURNS]

    for before, after in pairwise(bodies):
        length = len(before["messages"])
        for name in ("tools", "system"):
            assert msgspec.json.encode(bare(after[name])) == msgspec.json.encode(bare(before[name]))
        assert msgspec.json.encode(bare(after["messages"][:length])) == msgspec.json.encode(
            bare(before["messages"])
        )


def test_each_request_marks_where_the_one_before_it_ended() -> None:
    bodies = [body(ask(*messages)) for messages in TURNS]

    for before, after in pairwise(bodies):
        assert f"messages.{len(before['messages']) - 1}" in [name for name, _, _ in marked(after)]
        assert len(marked(after)) <= 4


def test_a_lifetime_is_put_into_every_mark() -> None:
    marks = [mark for _, _, mark in marked(body(ask(user("1"), cache={"ttl": "1h"})))]

    assert marks == [{"type": "ephemeral", "ttl": "1h"}] * 3


def test_marks_of_ones_own_count_and_stay() -> None:
    own = {"anthropic": {"cacheControl": {"type": "ephemeral", "ttl": "1h"}}}
    parts = tuple(TextPart(str(number), provider_metadata=own) for number in range(3))

    value = body(ask(Message("u1", "user", parts), user("now", "u2")))

    assert [(name, at) for name, at, _ in marked(value)] == [
        ("messages.0", 0),
        ("messages.0", 1),
        ("messages.0", 2),
        ("messages.0", 3),
    ]


@pytest.mark.parametrize("cache", [None, False])
def test_nothing_is_marked_unless_it_is_asked_for(cache: Any) -> None:
    value = body(ask(user("1"), cache=cache))

    assert marked(value) == []
    assert "cache_control" not in value


def test_anthropics_own_words_pass_as_they_are() -> None:
    value = body(ask(user("1"), cache={"type": "ephemeral"}))

    assert value["cache_control"] == MARK
    assert marked(value) == []


class Watched:
    """A language whose busts are written down."""

    def __init__(self) -> None:
        self.language = AnthropicAdapter("anthropic", DEFAULT_SETTINGS)
        self.busts: list[CacheBust] = []
        self.language.caching.on_bust = self.busts.append

    def ask(self, request: ModelRequest) -> None:
        self.language.encode(request, drop=())

    @property
    def causes(self) -> list[str]:
        return [bust.cause for bust in self.busts]


def test_a_session_that_only_grows_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()

    for messages in TURNS:
        watched.ask(ask(*messages))

    assert watched.busts == []
    assert caplog.records == []


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (ask(*TURNS[1], tools=TOOLS[::-1]), "tools"),
        (ask(*TURNS[1], instructions="It is 12:31."), "system"),
        (ask(*TURNS[1], tool_choice="none"), "settings"),
        (ask(user("changed"), *TURNS[1][1:]), "messages"),
    ],
    ids=["tools", "system", "settings", "messages"],
)
def test_what_breaks_the_beginning_is_reported(
    after: ModelRequest, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    watched.ask(ask(*TURNS[0]))

    with caplog.at_level(logging.WARNING):
        watched.ask(after)

    assert watched.busts == [CacheBust(MODEL, "u1", cause)]
    assert len(caplog.records) == 1


def test_the_same_cause_is_logged_once_a_session_and_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()

    with caplog.at_level(logging.WARNING):
        for minute in range(4):
            watched.ask(ask(*TURNS[0], instructions=f"It is 12:3{minute}."))

    assert watched.causes == ["system"] * 3
    assert len(caplog.records) == 1


def test_sessions_do_not_break_each_other() -> None:
    watched = Watched()

    for _ in range(2):
        watched.ask(ask(user("1", "one")))
        watched.ask(ask(user("2", "two"), instructions="Other."))

    assert watched.busts == []


def test_a_client_cannot_send_the_hubs_own_fields_through_an_endpoint() -> None:
    options, _ = parse_options(
        RequestFields({"max_tokens": 5, "extra_body": {"service_tier": "priority"}}, "")
    )

    assert options == {"max_tokens": 5}
