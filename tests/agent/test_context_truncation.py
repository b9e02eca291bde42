"""Truncated conversations: what is kept, and that every provider family accepts them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.agent.context.truncation import estimate_tokens, is_approaching_limit, truncate_messages
from dragoman.errors import BadRequest
from tests.agent.conversations import checked, system, turn, user, working


def call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_the_newest_turns_stay_with_the_system_prompt_and_every_family_takes_them() -> None:
    history = [system(), *turn(1), *turn(2), *turn(3), user("And now?", "last")]
    remaining = truncate_messages(history, 4)
    assert [message.id for message in remaining] == ["s", "u3", "a3", "last"]
    assert [message.id for message in history][:3] == ["s", "u1", "a1"]
    checked(remaining)


def test_the_system_prompt_goes_only_when_asked_to() -> None:
    remaining = truncate_messages([system(), *turn(1), user("x", "last")], 1, preserve_system=False)
    assert [message.id for message in remaining] == ["last"]


def test_the_last_question_and_the_last_answer_stay_even_when_nothing_is_to() -> None:
    assert [message.id for message in truncate_messages([*turn(1), *turn(2)], 0)] == ["u2", "a2"]
    assert truncate_messages([], 3) == []


def test_by_tokens_the_first_steps_of_the_last_turn_go_and_its_question_stays() -> None:
    history = [system(), *turn(1), user("Work.", "last"), working(20, "a")]
    remaining = truncate_messages(history, tokens=600)
    assert [message.id for message in remaining] == ["s", "last", "a"]
    assert remaining[-1].parts == working(20).parts[-20:]
    assert estimate_tokens(remaining) <= 600
    checked(remaining)


@given(st.integers(0, 6), st.integers(0, 9), st.integers(0, 2500), st.booleans())
def test_whatever_is_cut_every_family_takes_what_is_left(turns: int, steps: int, room: int, by: bool) -> None:
    history = [message for number in range(turns) for message in turn(number)]
    history += [user("Go on.", "last"), *([working(steps, "a")] if steps else [])]
    remaining = truncate_messages(history, tokens=room) if by else truncate_messages(history, room % 8)
    assert any(message.id == "last" for message in remaining)
    checked(remaining)


def test_messages_in_an_apis_words_keep_calls_and_results_together() -> None:
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "assistant", "content": None, "tool_calls": [call("c")]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    assert truncate_messages(history, 3) == [*history[:2], *history[5:]]
    assert truncate_messages(history, 5) == [*history[:2], *history[5:]]
    assert truncate_messages(history, 6) == history


def test_anthropics_results_in_a_users_message_are_no_question() -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]},
        {"role": "assistant", "content": "Done."},
    ]
    assert truncate_messages(history, 2) == [history[0], history[3]]
    assert truncate_messages(history, 3) == [history[0], history[3]]


@pytest.mark.parametrize("wrong", [{}, {"keep": 1, "tokens": 1}, {"keep": -1}, {"tokens": -1}])
def test_what_is_to_be_kept_has_to_be_said_in_one_way(wrong: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        truncate_messages([user("x")], **wrong)  # type: ignore[arg-type]  # mypy takes it for the bool


def test_a_conversation_is_as_long_in_either_spelling_and_longer_for_claude() -> None:
    typed, spelled = [user("x" * 400)], [{"role": "user", "content": "x" * 400}]
    assert estimate_tokens(typed) == estimate_tokens(spelled) == 104
    assert estimate_tokens(typed, model="anthropic/claude-sonnet-4-5") == 136
    assert estimate_tokens("x" * 400) == 100
    assert estimate_tokens([]) == estimate_tokens("") == 0


def test_an_image_in_an_apis_words_is_not_counted_as_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert 1500 <= estimate_tokens([{"role": "user", "content": [image]}]) < 1600


def test_a_limit_is_near_above_its_margin() -> None:
    history = [user("x" * 400)]
    assert is_approaching_limit(history, 115)
    assert not is_approaching_limit(history, 116)
    assert is_approaching_limit(history, 200, margin=0.5)
