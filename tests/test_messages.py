"""Messages and events as users of the library read them."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from dragoman import (
    Data,
    DataPart,
    Event,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    StepStartPart,
    TextDelta,
    TextPart,
    ToolPart,
)
from dragoman.events import decode, encode
from dragoman.messages import decode_part, encode_part

CALL = ToolPart("tool-look", "c1", "output-available", input={}, output="a cat")
PICTURE = FilePart("image/png", "https://example.com/cat.png")


@pytest.mark.parametrize("kind", [*get_args(Event), *get_args(Part)])
def test_the_word_of_a_class_is_the_one_on_the_wire(kind: Any) -> None:
    tag = kind.__struct_config__.tag
    assert tag is None or kind.type == tag
    assert "type" not in kind.__struct_fields__ or tag is None


def test_a_word_is_written_once_and_read_again() -> None:
    assert encode(TextDelta("t", "Hi")) == b'{"type":"text-delta","id":"t","delta":"Hi"}'
    assert decode(encode(TextDelta("t", "Hi"))).type == "text-delta"
    assert encode(Data("data-weather", 1)) == b'{"type":"data-weather","data":1}'
    assert decode_part(encode_part(TextPart("Hi")).decode()).type == "text"


def test_parts_of_your_own_have_a_name() -> None:
    assert (Data("data-weather", {}).name, DataPart("data-weather", {}).name) == ("weather", "weather")
    assert (CALL.name, msgspec.structs.replace(CALL, type="dynamic-tool", tool_name="see").name) == (
        "look",
        "see",
    )


def test_the_text_of_an_answer_is_that_of_its_steps() -> None:
    parts = (
        StepStartPart(),
        ReasoningPart("A picture."),
        TextPart("Let me "),
        TextPart("look."),
        CALL,
        StepStartPart(),
        ReasoningPart("A cat."),
        TextPart("It is a cat."),
        StepStartPart(),
    )
    message = Message("a1", "assistant", parts)
    assert message.text == "Let me look.\n\nIt is a cat."
    assert message.reasoning == "A picture.\n\nA cat."
    assert message.tool_calls == (CALL,)


def test_the_text_of_a_user_is_one_line_a_part() -> None:
    message = Message("u1", "user", (TextPart("What is this?"), PICTURE, TextPart("And this?")))
    assert message.text == "What is this?\nAnd this?"
    assert message.files == (PICTURE,)
    assert Message("u2", "user").text == ""
