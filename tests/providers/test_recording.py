"""Recordings, and their replay to the same requests only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderError
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.recording import record, replay
from dragoman.providers.scripted import Failure, ScriptedModelProvider, ScriptedStep, Step

from .servers import answering, ok, serving

KEY = "tok-of-the-provider-1"
PASSWORD = "correct horse"
TOOL = Tool("add", "Adds.", {"type": "object"})


def ask(text: str = "Hi", id: str = "u1", **fields: Any) -> ModelRequest:
    message = Message(id, "user", (TextPart(text),))
    return ModelRequest(model="any", messages=[message], tools=[TOOL], **fields)


async def collect(provider: Any, request: ModelRequest) -> list[Any]:
    return [list(batch) async for batch in provider.stream(request)]


async def drain(provider: Any, collected: list[e.Event]) -> None:
    async for batch in provider.stream(ask()):
        collected += batch


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def recorded(folder: Path, *steps: ScriptedStep, secrets: tuple[str, ...] = ()) -> list[list[Any]]:
    """What came of asking once a step."""
    recorder = record(ScriptedModelProvider(steps, name="rehearsal"), folder, secrets=secrets)
    return [await collect(recorder, ask(f"question {number}")) for number in range(len(steps))]


async def test_a_replay_answers_what_was_recorded_batch_by_batch(tmp_path: Path) -> None:
    usage = e.Usage(input_tokens=5, output_tokens=1)
    first, second = await recorded(
        tmp_path, ("add", {"a": 1}), Step(text="a b c", reasoning="hm", usage=usage)
    )

    async with replay(tmp_path) as provider:
        assert (provider.name, provider.family) == ("rehearsal", "scripted")
        assert await collect(provider, ask("question 0")) == first
        assert await collect(provider, ask("question 1")) == second


async def test_ids_and_metadata_of_messages_do_not_count(tmp_path: Path) -> None:
    await recorded(tmp_path, "yes")
    other = ask("question 0", id="another")
    other = replace(other, messages=[replace(other.messages[0], metadata={"duration": 2})])

    assert await collect(replay(tmp_path), other)


async def test_requests_that_were_made_at_a_time_may_come_in_any_order(tmp_path: Path) -> None:
    first, second = await recorded(tmp_path, "one", "two")
    provider = replay(tmp_path)

    assert await collect(provider, ask("question 1")) == second
    assert await collect(provider, ask("question 0")) == first


async def test_another_request_is_refused_with_the_difference(tmp_path: Path) -> None:
    await recorded(tmp_path, "yes")

    with pytest.raises(ProviderError) as raised:
        await collect(replay(tmp_path), ask("question 7"))

    assert "0001.json" in raised.value.message
    assert '-          "text": "question 0"' in raised.value.message
    assert '+          "text": "question 7"' in raised.value.message


async def test_a_recording_answers_once_and_what_is_left_is_reported(tmp_path: Path) -> None:
    await recorded(tmp_path, "one", "two")
    provider = replay(tmp_path)
    await collect(provider, ask("question 0"))

    with pytest.raises(AssertionError, match=r"1 recordings were not used: 0002\.json"):
        provider.assert_complete()
    await collect(provider, ask("question 1"))
    provider.assert_complete()
    with pytest.raises(ProviderError, match="all recordings"):
        await collect(provider, ask("question 1"))


async def test_failures_are_recorded_and_raised_again(tmp_path: Path) -> None:
    failure = Failure("slow down", category="rate_limit", transient=True, retry_after=3.0)
    recorder = record(ScriptedModelProvider([Step(text="Half", error=failure)], name="r"), tmp_path)
    with pytest.raises(ProviderError):
        await collect(recorder, ask())

    collected: list[e.Event] = []
    with pytest.raises(ProviderError) as raised:
        await drain(replay(tmp_path), collected)

    error = raised.value
    assert (error.message, error.category, error.transient) == ("slow down", "rate_limit", True)
    assert error.retry_after == 3.0
    assert e.TextDelta("text-1", "Half") in collected


@pytest.mark.promise("recordings-hold-no-secrets")
async def test_neither_keys_nor_given_secrets_are_written(tmp_path: Path) -> None:
    answer = (
        f'data: {{"choices":[{{"index":0,"delta":{{"content":"{KEY} and sk-live-0123456789abcdef"}},'
        '"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    script = answering(ok(answer.encode(), "content-type: text/event-stream"))
    async with serving(script) as server, OpenAIProvider(base_url=server.url, api_key=KEY) as provider:
        recorder = record(provider, tmp_path, secrets=[PASSWORD])
        await collect(recorder, ask(f"my password is {PASSWORD}", instructions=f"use {KEY}"))

    (written,) = (path.read_text() for path in files(tmp_path))
    assert [word for word in (KEY, PASSWORD, "sk-live", "authorization") if word in written] == []
    assert "my password is ***" in written
    assert await collect(
        replay(tmp_path, secrets=[PASSWORD, KEY]),
        ask(f"my password is {PASSWORD}", instructions=f"use {KEY}"),
    )


async def test_a_secret_that_comes_in_pieces_is_not_written_either(tmp_path: Path) -> None:
    await recorded(tmp_path, Step(text=["the corr", "ect ho", "rse!"]), secrets=(PASSWORD,))

    batches = await collect(replay(tmp_path), ask("question 0"))

    texts = [event.delta for batch in batches for event in batch if isinstance(event, e.TextDelta)]
    assert texts == ["the ***!"]
    assert isinstance(batches[-1][-1], e.FinishStep)


async def test_what_was_given_up_is_not_recorded(tmp_path: Path) -> None:
    stream = record(ScriptedModelProvider(["a b c"], name="r"), tmp_path).stream(ask())
    await anext(stream)
    await stream.aclose()

    assert files(tmp_path) == []


async def test_recordings_are_never_overwritten(tmp_path: Path) -> None:
    await recorded(tmp_path, "yes")

    with pytest.raises(ConfigError, match="already contains recordings"):
        record(ScriptedModelProvider([], name="r"), tmp_path)


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no recordings"):
        replay(tmp_path)


def test_a_file_that_is_no_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "0001.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"0001\.json"):
        replay(tmp_path)
