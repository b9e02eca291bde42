"""Estimates of tokens: close enough for guard rails, and never an error."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from dragoman.messages import FilePart, Message, ReasoningPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.wire.multimodal_outputs import write_multimodal_output
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR, estimate_input, estimate_text


def make_request(
    *parts: TextPart | FilePart | ReasoningPart | ToolPart, tools: tuple[Tool, ...] = ()
) -> ModelRequest:
    return ModelRequest(model="m", messages=(Message("1", "user", parts),), tools=tools)


def test_four_characters_count_as_a_token_rounded_up() -> None:
    assert [estimate_text(text) for text in ("", "a", "abcd", "abcde")] == [0, 1, 1, 2]


def test_a_chinese_japanese_or_korean_character_counts_as_a_token() -> None:
    assert estimate_text("今天天气很好") == 6
    assert estimate_text("こんにちは") == 5
    assert estimate_text("안녕하세요") == 5
    assert estimate_text("naïve café") == 3


def test_a_message_costs_four_tokens_more_than_its_text_and_a_factor_scales_all() -> None:
    assert estimate_input(make_request(TextPart("x" * 400))) == 104
    assert estimate_input(make_request(TextPart("x" * 400)), factor=ANTHROPIC_FACTOR) == 135


def test_a_tool_counts_as_json() -> None:
    tool = Tool("search", "Looks it up.", {"type": "object", "properties": {}})
    assert 20 < estimate_input(make_request(tools=(tool,))) < 50


def test_an_image_counts_by_its_size_if_that_is_known() -> None:
    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (300).to_bytes(4) + (200).to_bytes(4) + bytes(40)
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    assert estimate_input(make_request(FilePart("image/png", url))) == 84
    assert estimate_input(make_request(FilePart("image/png", "https://example.org/a.png"))) == 1504
    assert estimate_input(make_request(FilePart("image/png", "data:image/png;base64,!!"))) == 1504


def test_data_url_files_count_by_their_bytes() -> None:
    text = "data:text/plain;base64," + base64.b64encode(b"x" * 4000).decode()
    pdf = "data:application/pdf;base64," + base64.b64encode(bytes(300_000)).decode()
    assert 1000 <= estimate_input(make_request(FilePart("text/plain", text))) <= 1010
    assert 10_000 <= estimate_input(make_request(FilePart("application/pdf", pdf))) <= 10_010


def test_a_result_counts_as_a_message_and_its_images_as_images() -> None:
    picture = FilePart("image/png", "https://example.org/a.png")
    call = ToolPart(
        "tool-see",
        "c",
        "output-available",
        input={},
        output=write_multimodal_output([TextPart("x" * 40), picture]),
    )
    assert estimate_input(make_request(call)) == round(4 + 3 / 4 + 2 / 3 + 4 + 10 + 1500)


@given(st.text())
def test_any_text_can_be_estimated(text: str) -> None:
    assert 0 <= estimate_text(text) <= len(text)
