"""What a provider refuses of one client's request changes nothing for the requests of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.events import Usage
from tests.providers.servers import Peer, Received
from tests.wire import anthropic_streams, responses_streams

from .metered_hub import Reply, Site, chunked, desk, refusal, tokens, usage


def checking(problem: Callable[[Mapping[str, Any]], str | None], answer: bytes) -> Reply:
    """Refuses what has a problem, and answers all else."""

    async def reply(peer: Peer, received: Received) -> None:
        refused = problem(msgspec.json.decode(received.body))
        await peer.send(answer if refused is None else refusal(400, refused))

    return reply


def refuse_stream_options(body: Mapping[str, Any]) -> str | None:
    if body.get("stream_options") and not body["stream"]:
        return "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    unknown = set(body.get("stream_options", ())) - {"include_usage"}
    return f"Unknown parameter: 'stream_options.{unknown.pop()}'." if unknown else None


async def test_a_client_whose_stream_options_are_refused_leaves_usage_to_the_others(tmp_path: Path) -> None:
    answer = tokens("ok", counts=usage(10, 5))
    async with desk(tmp_path, up=Site(checking(refuse_stream_options, answer))) as at:
        refused = [
            await at.chat(stream=False, stream_options={"include_usage": True}),
            await at.chat(stream=True, stream_options={"flavour": 1}),
            await at.message(stream=True, stream_options={"flavour": 1}),
        ]
        assert [each.status_code for each in refused] == [400] * 3
        assert (await at.chat(stream=True)).status_code == 200
        assert (await at.message(stream=True)).status_code == 200
        assert [row.tokens for row in (await at.rows(5))[3:]] == [Usage(10, 5, 15)] * 2


def refuse_minimal_effort(body: Mapping[str, Any]) -> str | None:
    if body.get("reasoning", {}).get("effort") == "minimal":
        return "Unsupported value: 'reasoning.effort' does not support 'minimal' with this model."
    return None


async def test_a_value_that_a_model_refuses_takes_no_other_value_from_the_others(tmp_path: Path) -> None:
    answer = chunked(responses_streams.STREAMS["text"])
    up = Site(checking(refuse_minimal_effort, answer), type="responses")
    async with desk(tmp_path, up=up) as at:
        assert (await at.chat(reasoning_effort="minimal")).status_code == 200
        assert (await at.chat(reasoning_effort="high")).status_code == 200
    assert [body.get("reasoning", {}).get("effort") for body in up.bodies] == ["minimal", None, "high"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_field_that_is_left_out_since_its_model_has_refused_it_is_named(
    tmp_path: Path, stream: bool
) -> None:
    def refuse_temperature(body: Mapping[str, Any]) -> str | None:
        return "`temperature` is deprecated for this model." if "temperature" in body else None

    answer = chunked(anthropic_streams.STREAMS["text"])
    async with desk(tmp_path, up=Site(checking(refuse_temperature, answer), type="anthropic")) as at:
        replies = [await at.chat(temperature=0.5, stream=stream, max_tokens=9) for _ in range(2)]
    assert [reply.headers.get("x-dragoman-dropped") for reply in replies] == ["temperature"] * 2
