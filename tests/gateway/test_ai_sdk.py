"""The AI SDK 6 and 7 at chat.completions and Messages, with each of its packages, from each family.

Its packages are strict: they check every chunk against a schema. One process of Node plays all conversations.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import msgspec
import pytest

from tests.clients.driver import player
from tests.effort import rows
from tests.gateway.upstream import Answer, Stage, document
from tests.providers.servers import LIMIT
from tests.responses.answers import say, sent
from tests.responses.test_sdk_clients import CLIENTS_FOLDER
from tests.wire import anthropic_streams as ant
from tests.wire import openai_streams as oai
from tests.wire import responses_streams as res

pytestmark = pytest.mark.timeout(300)
PACKAGES = ("chat", "compatible", "anthropic")
FAMILIES = ("oai", "ant", "res")
CASES = [
    (version, package, family, stream)
    for version in ("ai6", "ai7")
    for package in PACKAGES
    for family in FAMILIES
    for stream in (True, False)
]
OSLO = '{"city":"Oslo"}'
OBJECT = '{"city":"Oslo","degrees":3}'
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(24)).decode()
THOUGHT = "It may be cold."


def play(stage: Stage, case: tuple[str, str, str, bool], *prompts: Any, **task: Any) -> dict[str, Any]:
    """What the client made of a conversation: its turns, and the errors."""
    version, package, family, stream = case
    server = {"url": stage.url, "key": stage.key, "model": f"{family}/claude-opus-4-5"}
    report: dict[str, Any] = player("drive.mjs", folder=CLIENTS_FOLDER).play(
        {**server, "client": version, "package": package, "prompts": prompts, "stream": stream, **task}
    )
    return report


def think_and_call(family: str) -> Answer:
    """Reasoning, and then a call of the tool."""
    match family:
        case "oai":
            function = {"name": "weather", "arguments": OSLO}
            calls = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
            chunks = [
                oai.chunk({"reasoning_content": THOUGHT}),
                oai.chunk(calls),
                oai.chunk(None, "tool_calls"),
            ]
            return Answer(body=oai.sse(*chunks))
        case "ant":
            thought = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = (
                {"type": "thinking_delta", "thinking": THOUGHT},
                {"type": "signature_delta", "signature": "c2ln"},
            )
            parts = [*ant.block(0, thought, *deltas), *ant.call(1, "toolu_1", "weather", OSLO)]
            return Answer(body=ant.sse(ant.start(), *parts, ant.stop("tool_use"), ant.STOP))
        case _:
            item = res.function_call("weather", OSLO, call_id="call_1", id="fc_1")
            thought_item = res.reasoning(THOUGHT)
            events = [*res.reasoning_events(0, thought_item), *res.call_events(1, item, OSLO)]
            return Answer(body=res.sse(*res.opening(), *events, res.ending(thought_item, item)))


@pytest.mark.parametrize("case", rows(CASES, quick=7), ids=str)
def test_a_tool_runs_and_the_conversation_goes_on(stage: Stage, case: tuple[str, str, str, bool]) -> None:
    family = case[2]
    stage.upstream.play(
        think_and_call(family), say(family, "It is 3 degrees."), say(family, "You are welcome.")
    )
    report = play(stage, case, "Is it cold in Oslo?", "Thanks!")
    assert report["errors"] == []
    first, second = report["turns"]
    assert (first["text"], first["steps"], first["finish"]) == ("It is 3 degrees.", 2, "stop")
    assert first["calls"] == [["weather", {"city": "Oslo"}, False]]
    if case[1] != "chat":  # @ai-sdk/openai reads no reasoning at chat.completions
        assert first["reasoning"] == THOUGHT
    assert (second["text"], second["calls"]) == ("You are welcome.", [])
    assert (second["usage"]["inputTokens"], second["usage"]["outputTokens"]) == (36, 12)
    assert len(stage.upstream.requests) == 3
    for words in ("Is it cold in Oslo?", OSLO, "Oslo: 3 degrees", "It is 3 degrees.", "Thanks!"):
        assert words in sent(stage.upstream)


@pytest.mark.parametrize("case", rows(CASES, quick=5), ids=str)
def test_an_object_fits_its_schema_which_the_provider_gets(
    stage: Stage, case: tuple[str, str, str, bool]
) -> None:
    stage.upstream.play(say(case[2], OBJECT))
    report = play(stage, case, "Oslo?", format=True)
    assert report["errors"] == []
    assert report["turns"][0]["object"] == json.loads(OBJECT)
    assert '"degrees"' in sent(stage.upstream)


@pytest.mark.parametrize("case", rows(CASES, quick=5), ids=str)
def test_an_image_reaches_the_model(stage: Stage, case: tuple[str, str, str, bool]) -> None:
    stage.upstream.play(say(case[2], "A picture."))
    content = [
        {"type": "text", "text": "What is it?"},
        {"type": "file", "mediaType": "image/png", "data": PNG},
    ]
    report = play(stage, case, content)
    assert report["errors"] == []
    assert report["turns"][0]["text"] == "A picture."
    assert PNG in sent(stage.upstream)
    assert "What is it?" in sent(stage.upstream)


REFUSALS = {400: "bad request", 429: "slow down", 529: "overloaded"}


@pytest.mark.parametrize("case", rows(CASES, quick=5), ids=str)
@pytest.mark.parametrize("status", REFUSALS)
def test_an_error_of_the_provider_is_the_error_of_the_client(
    stage: Stage, case: tuple[str, str, str, bool], status: int
) -> None:
    error = {"type": "error", "message": REFUSALS[status], "code": None}
    stage.upstream.play(document({"type": "error", "error": error}, status))
    report = play(stage, case, "Hi", settings={"maxRetries": 0})
    found = report["errors"][0]
    assert found.startswith(str(status))
    assert REFUSALS[status] in found
    assert len(stage.upstream.requests) == 1


@pytest.mark.parametrize("case", rows([case for case in CASES if case[3]], quick=3), ids=str)
def test_whoever_leaves_ends_the_request_to_the_provider(
    stage: Stage, case: tuple[str, str, str, bool]
) -> None:
    answer = say(case[2], "Hello")
    beginning = answer.body[: answer.body.index(b"\n\n", answer.body.index(b"Hel")) + 2]
    left = stage.upstream.left
    stage.upstream.play(msgspec.structs.replace(answer, body=beginning, framing="held"))
    report = play(stage, case, "Hi", abort=True)
    assert report["turns"]
    deadline = time.monotonic() + LIMIT
    while stage.upstream.left == left:
        assert time.monotonic() < deadline
        stage.do(stage.upstream.turn())
