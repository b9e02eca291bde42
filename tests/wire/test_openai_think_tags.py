"""Reasoning in tags inside the text."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.wire.openai.quirks import Quirks

from .openai_streams import chunk, decode, sse

STOP = chunk(finish="stop")


@pytest.mark.parametrize(
    ("mode", "text", "story"),
    [
        ("auto", "<think>a</think>b", [("reasoning", "a"), ("text", "b")]),
        ("auto", " \n<think>\n a </think>\n\nb", [("reasoning", "a "), ("text", "b")]),
        ("auto", "<think>\n\n</think>\n\nb", [("text", "b")]),
        ("auto", "<thought>a</think></thought>b", [("reasoning", "a</think>"), ("text", "b")]),
        ("auto", "[THINK]a[/THINK]b", [("reasoning", "a"), ("text", "b")]),
        ("auto", "<think>a", [("reasoning", "a")]),
        ("auto", "<think>a</thin", [("reasoning", "a</thin")]),
        ("auto", "</think>\n\nb", [("text", "b")]),
        ("auto", "a\n</think>\n\nb", [("text", "a\n"), ("text", "b")]),
        ("auto", "a</think>", [("text", "a")]),
        ("auto", "a</think> <", [("text", "a"), ("text", "<")]),
        ("auto", "a `</think>` b", [("text", "a `</think>` b")]),
        ("auto", "a <think> b</think>", [("text", "a <think> b</think>")]),
        ("auto", " \n", [("text", " \n")]),
        ("auto", "<", [("text", "<")]),
        ("auto", " <b>", [("text", " <b>")]),
        ("auto", "<think>a</think><think>b</think>c", [("reasoning", "ab"), ("text", "c")]),
        ("open", "a</think>\nb", [("reasoning", "a"), ("text", "b")]),
        ("open", "<think>a</think>b", [("reasoning", "a"), ("text", "b")]),
        ("open", "\n</think>b", [("text", "b")]),
        ("off", "<think>a</think>b", [("text", "<think>a</think>b")]),
    ],
)
def test_thinking_in_tags_becomes_reasoning_however_it_is_split(
    mode: Any, text: str, story: list[Any]
) -> None:
    quirks = Quirks(think_tags=mode)
    for size in (1, 2, 3, 5, 8, 100):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        chunks = [chunk({"content": data}) for data in pieces]
        for reads in ([sse(*chunks, STOP)], [*(sse(one, done=False) for one in chunks), sse(STOP)]):
            assert decode(reads, quirks).story == [*story, ("finish", "stop", "m-1")], size
