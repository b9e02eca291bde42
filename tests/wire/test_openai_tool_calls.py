"""Tool calls from fragments, one case for each rule of the provider notes."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import events as e
from dragoman.wire.openai.decoder import OpenAIDecoder

from .openai_streams import chunk, decode, sse, summarise

Fragment = dict[str, Any]
FULL = '{"x":1}'
X = {"x": 1}


def fragment(
    arguments: Any = None, name: str | None = None, *, id: str | None = None, index: Any = 0
) -> Fragment:
    made: Fragment = {"function": {"name": name, "arguments": arguments}}
    if id is not None:
        made["id"] = id
    return made if index == "none" else {**made, "index": index}


def calls(*fragments: Fragment, finish: str = "tool_calls") -> list[tuple[Any, ...]]:
    """The calls of the fragments: the same one per chunk, all in one chunk, and one by one."""
    chunks = [chunk({"tool_calls": [fragment]}) for fragment in fragments]
    story = decode([sse(*chunks, chunk(finish=finish))]).story
    assert decode([*(sse(one, done=False) for one in chunks), sse(chunk(finish=finish))]).story == story
    assert story[-1][0] == "finish"
    return story[:-1]


@pytest.mark.parametrize(
    ("fragments", "story"),
    [
        pytest.param(
            [fragment("", "f", id="a"), fragment('{"x"'), fragment(":1}")],
            [("call", "a", "f", FULL, X)],
            id="the specified case",
        ),
        pytest.param(
            [fragment(FULL, "f", id="a", index="none"), fragment(FULL, "f", id="b", index="none")],
            [("call", "a", "f", FULL, X), ("call", "b", "f", FULL, X)],
            id="rule 1: no index, a new id",
        ),
        pytest.param(
            [
                fragment('{"x"', "f", id="a", index=None),
                fragment(":1}", index=None),
                fragment("{}", "g", index=None),
            ],
            [("call", "a", "f", FULL, X), ("call", "call_1", "g", "{}", {})],
            id="rule 1: no index, a new name",
        ),
        pytest.param(
            [
                fragment('{"x"', "f", id="a", index="none"),
                fragment("{", "g", id="b", index="none"),
                fragment(":1}", id="a", index="none"),
                fragment("}", id="b", index="none"),
            ],
            [("call", "a", "f", FULL, X), ("call", "b", "g", "{}", {})],
            id="rule 1: no index, told apart by the ids",
        ),
        pytest.param(
            [fragment('{"x"', "f", index="none"), fragment(":1}", "f", index="none")],
            [("call", "call_1", "f", FULL, X)],
            id="no index and no id, the name in every fragment",
        ),
        pytest.param(
            [fragment(FULL, "f", index="none"), fragment(FULL, index="none")],
            [("call", "call_1", "f", FULL, X), ("call", "call_2", "f", FULL, X)],
            id="no index, no id, no name: a second object is a second call",
        ),
        pytest.param(
            [fragment(FULL, "f", id="a"), fragment("{}", "f", id="b"), fragment("", "g", id="c")],
            [("call", "a", "f", FULL, X), ("call", "b", "f", "{}", {}), ("call", "c", "g", "", {})],
            id="rule 2: one index for all",
        ),
        pytest.param(
            [
                fragment("", "f", id="a"),
                fragment('{"x"', id="b"),
                fragment(":1}", id="c"),
                fragment("", id="d"),
            ],
            [("call", "a", "f", FULL, X)],
            id="rule 2: an id for every fragment",
        ),
        pytest.param(
            [fragment("", "f", id="a"), fragment("", "f", id="b")],
            [("call", "a", "f", "", {}), ("call", "b", "f", "", {})],
            id="rule 2: without arguments",
        ),
        pytest.param(
            [fragment(FULL, "f", id="a"), fragment('{"x"'), fragment(":1}")],
            [("call", "a", "f", FULL, X), ("call", "call_1", "f", FULL, X)],
            id="rule 3: a second call without a header",
        ),
        pytest.param(
            [fragment("", "f", id="a"), fragment('{"x"'), fragment(":1}"), fragment(FULL)],
            [("call", "a", "f", FULL, X)],
            id="rule 6: all arguments once more, as vLLM flushes them",
        ),
        pytest.param(
            [fragment(FULL, "f", id="a"), fragment(FULL), fragment('{"x":2}')],
            [("call", "a", "f", FULL, X), ("call", "call_1", "f", '{"x":2}', {"x": 2})],
            id="rule 6: and other arguments are another call",
        ),
        pytest.param(
            [fragment(FULL, "f"), fragment(FULL, "g"), fragment("", "h")],
            [
                ("call", "call_1", "f", FULL, X),
                ("call", "call_2", "g", FULL, X),
                ("call", "call_3", "h", "", {}),
            ],
            id="rule 3: with a name of its own",
        ),
        pytest.param(
            [fragment('{"x":{"y":1}', "f", id="a"), fragment('{"z"'), fragment(":1}}")],
            [("bad call", "a", '{"x":{"y":1}{"z":1}}', ...)],
            id="rule 3: not before the first is whole",
        ),
        pytest.param(
            [fragment('{"x"', "f", id=""), fragment(":1}", id="a"), fragment("", id="a")],
            [("call", "call_1", "f", FULL, X)],
            id="rule 4: an id that comes too late",
        ),
        pytest.param(
            [fragment("", "f", id=""), fragment("", id="a"), fragment(FULL)],
            [("call", "a", "f", FULL, X)],
            id="rule 4: an id that comes in time",
        ),
        pytest.param(
            [
                fragment('{"x"', "f", id="0", index=0),
                fragment("{", "g", id="0", index=1),
                fragment(":1}", "f", id="0", index=0),
                fragment("}", "g", id="0", index=1),
            ],
            [("call", "0", "f", FULL, X), ("call", "call_1", "g", "{}", {})],
            id="rule 4: the same id twice",
        ),
        pytest.param(
            [
                fragment("", "get_", id="a"),
                fragment("", "x"),
                fragment('{"x"', "get_x"),
                fragment(":1}", "get_x"),
            ],
            [("call", "a", "get_x", FULL, X)],
            id="rule 5: the full name again and again",
        ),
        pytest.param(
            [fragment("", "get_", id="a"), fragment("{", "x"), fragment("}", "get_x"), fragment("", "y")],
            [("call", "a", "get_x", "{}", {}), ("call", "call_1", "y", "", {})],
            id="rule 5: a name in pieces, and another behind a whole call",
        ),
        pytest.param(
            [fragment('{"x"', id="a"), fragment(":1", "f"), fragment("}")],
            [("call", "a", "f", FULL, X)],
            id="a name behind the arguments",
        ),
        pytest.param(
            [fragment(X, "f", id="a"), fragment(X, "f", id="a"), fragment(None, id="a")],
            [("call", "a", "f", FULL, X)],
            id="rule 6: an object, once",
        ),
        pytest.param(
            [fragment(FULL, "f", id="a"), fragment(FULL, "f", id="a")],
            [("call", "a", "f", FULL, X)],
            id="the whole call again",
        ),
        pytest.param(
            [fragment("{}", "f", id="a", index=3), fragment("{}", "g", id="b", index=7)],
            [("call", "a", "f", "{}", {}), ("call", "b", "g", "{}", {})],
            id="rule 6: indexes with holes",
        ),
        pytest.param(
            [
                fragment(None, "f", id="a", index=0),
                fragment("null", "g", id="b", index=1),
                fragment(" ", "h", id="c", index=2),
            ],
            [("call", "a", "f", "", {}), ("call", "b", "g", "null", {}), ("call", "c", "h", " ", {})],
            id="rule 7: no arguments",
        ),
        pytest.param(
            [{"index": 0}, {}, {"index": 1, "id": "a"}, {"function": None}], [], id="nothing at all"
        ),
    ],
)
def test_fragments_are_assembled_to_the_models_calls(fragments: list[Fragment], story: list[Any]) -> None:
    assert [blur(call, like) for call, like in zip(calls(*fragments), story, strict=True)] == story


def blur(call: tuple[Any, ...], like: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(... if pattern is ... else value for value, pattern in zip(call, like, strict=False))


@pytest.mark.parametrize(
    ("arguments", "finish", "text"),
    [
        (
            '{"x":',
            "length",
            "the answer was cut off at its length limit, so the arguments are not valid JSON",
        ),
        ('{"x":', "stop", "the arguments are not valid JSON: Input data was truncated; nothing was run"),
        ('{"x":1}}', "stop", "not valid JSON"),
        ("{x:1}", "stop", "not valid JSON"),
        ('{"x":NaN}', "stop", "not valid JSON"),
        ('{"x":"a\nb"}', "stop", "not valid JSON"),
        ("[" * 100_000, "stop", "not valid JSON"),
        ("[1]", "stop", "the arguments must be a JSON object, not '[1]'"),
        ('"{}"', "stop", "the arguments must be a JSON object"),
        ("1", "stop", "the arguments must be a JSON object"),
    ],
)
def test_arguments_that_are_not_an_object_are_reported_as_written(
    arguments: str, finish: str, text: str
) -> None:
    ((kind, id, written, problem),) = calls(fragment(arguments, "f", id="a"), finish=finish)
    assert (kind, id, written) == ("bad call", "a", arguments)
    assert text in problem


def test_a_call_without_a_name_is_reported_as_an_error() -> None:
    ((kind, id, written, problem),) = calls(fragment(FULL, id="a"))
    assert (kind, id, written, problem) == (
        "bad call",
        "a",
        FULL,
        "the call has no tool name; nothing was run",
    )


def test_complete_arguments_may_run_although_the_answer_was_cut_off_later() -> None:
    assert calls(fragment(FULL, "f", id="a"), finish="length") == [("call", "a", "f", FULL, X)]


def test_an_id_that_the_conversation_already_has_is_replaced() -> None:
    decoder = OpenAIDecoder(used_ids=["a", "call_1"])
    events = decoder.feed(
        sse(chunk({"tool_calls": [fragment("{}", "f", id="a")]}), chunk(finish="tool_calls"))
    )
    assert summarise(events)[0] == ("call", "call_2", "f", "{}", {})


def test_ids_are_created_by_the_configured_function() -> None:
    decoder = OpenAIDecoder(new_id=iter(["x", "y"]).__next__)
    events = decoder.feed(
        sse(chunk({"tool_calls": [fragment("{}", "f"), fragment("{}", "f")]}), chunk(finish="stop"))
    )
    assert [call[1] for call in summarise(events)[:-1]] == ["x", "y"]


def test_a_call_begins_with_its_first_arguments_and_ends_with_the_answer() -> None:
    decoder = OpenAIDecoder()
    header = chunk({"tool_calls": [fragment("", "f", id="a")]})
    assert decoder.feed(sse(chunk({"content": "Hm"}), header, done=False))[-1] == e.TextEnd("text-1")
    begun = decoder.feed(sse(chunk({"tool_calls": [fragment('{"x"')]}), done=False))
    assert begun == [e.ToolInputStart("a", "f"), e.ToolInputDelta("a", '{"x"')]
    assert decoder.feed(sse(chunk({"tool_calls": [fragment(":1}")]}), done=False)) == [
        e.ToolInputDelta("a", ":1}")
    ]
    assert decoder.feed(sse(chunk(finish="tool_calls"))) == [
        e.ToolInputAvailable("a", "f", X),
        e.FinishStep("tool-calls", None, "m-1"),
    ]


def test_text_after_a_call_follows_it() -> None:
    header, text = chunk({"tool_calls": [fragment("", "f", id="a")]}), chunk({"content": "so"})
    story = decode(
        [sse(header, text, chunk({"tool_calls": [fragment("{}")]}), text, chunk(finish="stop"))]
    ).story
    assert story == [
        ("call", "a", "f", "{}", {}),
        ("text", "so"),
        ("text", "so"),
        ("finish", "tool-calls", "m-1"),
    ]


def test_calls_without_arguments_stay_before_later_ones() -> None:
    fragments = [fragment("", "f", id="a", index=0), fragment("{}", "g", id="b", index=1)]
    assert [call[1] for call in calls(*fragments)] == ["a", "b"]


def test_a_long_argument_in_many_fragments_takes_linear_time() -> None:
    text = "x" * 20
    grown = sse(chunk({"tool_calls": [fragment(text)]}), done=False) * 500
    decoder = OpenAIDecoder()
    decoder.feed(sse(chunk({"tool_calls": [fragment('{"x":"', "f", id="a")]}), done=False))
    for _ in range(80):
        decoder.feed(grown)
    decoder.feed(sse(chunk({"tool_calls": [fragment('"}')]}), done=False))
    available, _ = decoder.feed(sse(chunk(finish="tool_calls")))
    assert isinstance(available, e.ToolInputAvailable)
    assert available.input == {"x": text * 40_000}
