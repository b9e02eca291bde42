"""Clients of one family with providers of another read what the upstream sent."""

from __future__ import annotations

from typing import Any

import ollama as ollama_sdk
import pytest

from tests.gateway.recordings import (
    ANTHROPIC,
    ANTHROPIC_BROKEN,
    OLLAMA,
    OLLAMA_BROKEN,
    OPENAI,
    OPENAI_BROKEN,
    Said,
    decoded,
    known_ids,
    said_by_anthropic,
    said_by_openai,
)
from tests.gateway.sdk_clients import Failed, Pair, completion, final, heard, message, snapshot
from tests.gateway.upstream import LINES, Answer, Stage

BEHAVED = ("dashscope", "deepseek", "openai_calls", "openai_forced_call", "openai_text")
ODD = ("length", "unnamed", "gateway")  # Anthropic's own client cannot say what they hold
REFUSED = "No."  # the explanation of a refusal, which OpenAI's clients read as its text


def uncounted(reply: Said, want: Said) -> Said:
    """The answer with nothing where nobody counted: Anthropic's clients demand numbers there."""
    tokens: Any = tuple(
        None if true is None else reported for reported, true in zip(reply.tokens, want.tokens, strict=True)
    )
    return Said(**{**{name: getattr(reply, name) for name in reply.__struct_fields__}, "tokens": tokens})


def check_openai(chat: Pair, *, model: str, raw: bytes, want: Said) -> None:
    """A stream and a plain answer of the OpenAI door say what is wanted."""
    for read in (snapshot, completion):
        report = heard(read, chat.hub, model)
        assert not isinstance(report, Failed), report
        assert known_ids(said_by_openai(report), raw) == want


def check_anthropic(messages: Pair, *, model: str, raw: bytes, want: Said) -> None:
    """A stream and a plain answer of the Anthropic door say what is wanted."""
    for read in (final, message):
        report = heard(read, messages.hub, model)
        assert not isinstance(report, Failed), report
        assert uncounted(known_ids(said_by_anthropic(report), raw), want) == want


@pytest.mark.parametrize("name", sorted(ANTHROPIC))
def test_openais_client_reads_an_anthropic_server(
    stage: Stage, chat: Pair, messages: Pair, name: str
) -> None:
    raw = ANTHROPIC[name]
    stage.upstream.play(Answer(body=raw, seed=5))
    want = decoded("ant", raw)
    assert isinstance(want, Said)
    assert name in ODD or said_by_anthropic(final(messages.straight, "m")) == want
    if name == "refusal":
        want = Said(text=REFUSED, reasoning="", calls=[], finish=want.finish, tokens=want.tokens)
    check_openai(chat, model="ant/m", raw=raw, want=known_ids(want, raw))


@pytest.mark.parametrize("name", sorted(OPENAI.keys() - OPENAI_BROKEN.keys()))
def test_anthropics_client_reads_an_openai_compatible_server(
    stage: Stage, chat: Pair, messages: Pair, name: str
) -> None:
    raw = OPENAI[name]
    stage.upstream.play(Answer(body=raw, seed=5))
    want = decoded("oai", raw)
    assert isinstance(want, Said)
    if name in BEHAVED:
        assert said_by_openai(heard(snapshot, chat.straight, "m")) == want
    for read in (final, message):
        report = heard(read, messages.hub, "oai/m")
        assert not isinstance(report, Failed), report
        reply = uncounted(known_ids(said_by_anthropic(report), raw), want)
        assert unread(reply) == unread(known_ids(want, raw))


def unread(reply: Said) -> Said:
    """The answer with a sign for arguments that are not an object: each client shows them in its own way."""
    calls = [
        (id, name, value if isinstance(value, dict) and "INVALID_JSON" not in value and value else "unread")
        for id, name, value in reply.calls
    ]
    return Said(**{**{name: getattr(reply, name) for name in reply.__struct_fields__}, "calls": calls})


@pytest.mark.parametrize("name", sorted(OLLAMA.keys() - OLLAMA_BROKEN.keys()))
def test_both_clients_read_ollamas_answers(stage: Stage, chat: Pair, messages: Pair, name: str) -> None:
    raw = OLLAMA[name]
    stage.upstream.play(Answer(body=raw, headers=LINES, seed=5))
    want = decoded("oll", raw)
    assert isinstance(want, Said)
    if name not in ("leaked", "tags"):  # Ollama's own client shows the tags of a thought as text
        assert said_by_ollama(stage) == (want.text, want.reasoning, [call[1:] for call in want.calls])
    want = known_ids(want, raw)
    check_openai(chat, model="oll/m", raw=raw, want=want)
    check_anthropic(messages, model="oll/m", raw=raw, want=want)


def said_by_ollama(stage: Stage) -> tuple[str, str, list[tuple[str, Any]]]:
    """What Ollama's own client hears."""
    text, thinking, calls = "", "", []
    with ollama_sdk.Client(host=stage.upstream.url) as client:
        for part in client.chat(model="m", messages=[], stream=True):
            text += part.message.content or ""
            thinking += part.message.thinking or ""
            calls += [
                (call.function.name, dict(call.function.arguments)) for call in part.message.tool_calls or ()
            ]
    return text, thinking, calls


BROKEN: dict[str, tuple[str, Answer, str, int | None]] = {
    **{
        f"anthropic {name}": ("ant/m", Answer(body=raw), words, None)
        for name, (raw, status, words) in ANTHROPIC_BROKEN.items()
        if status == 200
    },
    **{
        f"openai {name}": ("oai/m", Answer(body=OPENAI[name]), words, status)
        for name, (status, words) in OPENAI_BROKEN.items()
    },
    **{
        f"ollama {name}": ("oll/m", Answer(body=OLLAMA[name], headers=LINES), words, None)
        for name, words in OLLAMA_BROKEN.items()
    },
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_an_answer_that_broke_off_is_an_error_for_each_client(
    stage: Stage, chat: Pair, messages: Pair, name: str
) -> None:
    model, answer, words, status = BROKEN[name]
    stage.upstream.play(answer)
    streamed = [heard(snapshot, chat.hub, model), heard(final, messages.hub, model)]
    plain = [] if model == "oai/m" else [heard(completion, chat.hub, model)]
    plain += [] if model == "ant/m" else [heard(message, messages.hub, model)]
    for failure in (*streamed, *plain):
        assert isinstance(failure, Failed), failure
        assert words in failure.message
    assert {failure.status for failure in plain} <= {400, 429, 500, 502, 503, 529}
    assert {failure.status for failure in streamed} <= {None, 200, 502, status}


def test_the_other_choices_of_an_answer_are_not_for_anthropics_client(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_two_choices"]))
    assert said_by_anthropic(final(messages.hub, "oai/m")).text == "AB"


@pytest.mark.parametrize("read", [final, message])
def test_a_prompt_that_nobody_counted_is_estimated_for_a_client_that_demands_a_number(
    stage: Stage, messages: Pair, read: Any
) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_refusal"]))
    assert 0 < read(messages.hub, "oai/m").usage.input_tokens < 50
