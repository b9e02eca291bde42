"""`context_management` of the Responses API: a conversation too long is compacted before it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.usage_limits import Limits
from dragoman.wire.responses.compaction import WHOLE_PREFIX
from tests.gateway.test_responses_compaction import client, post, texts
from tests.gateway.upstream import Stage
from tests.responses.answers import call, say, sent
from tests.waiting import until

LONG = "The name of the ship is Wavedancer. " * 40
HISTORY: Any = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": "Noted: it sails."},
    {"role": "user", "content": "What is its name?"},
]
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
def api(stage: Stage) -> Iterator[Any]:
    with client(stage) as opened:
        yield opened.responses


def rule(tokens: Any, kind: Any = "compaction") -> Any:
    return [{"type": kind, "compact_threshold": tokens}]


@pytest.mark.promise("context-management")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ["oai", "ant"])
def test_a_long_conversation_is_compacted_and_the_answer_follows_it(
    stage: Stage, api: Any, family: str, stream: bool
) -> None:
    stage.upstream.play(say(family, "Ship: Wavedancer."), say(family, "Wavedancer."))
    body: Any = {"model": f"{family}/m", "input": HISTORY, "context_management": rule(200)}
    body |= {"tools": [TOOL], "max_output_tokens": 50}
    if stream:
        events: list[Any] = list(api.create(**body, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type.removeprefix("response.") for event in events]
        assert kinds[:4] == ["created", "in_progress", "output_item.added", "output_item.done"]
        response = events[-1].response
    else:
        response = api.create(**body)
    assert [item.type for item in response.output] == ["compaction", "message"]
    assert response.output[0].encrypted_content == f"{WHOLE_PREFIX}Ship: Wavedancer."
    summary, answer = (sent(stage.upstream, number) for number in range(2))
    assert all(words in summary for words in ("Be brief.", LONG[:30], "What is its name?", "Write a summary"))
    assert '"max_tokens":50' not in summary
    assert all(words in answer for words in ("Be brief.", "Ship: Wavedancer.", "What is its name?"))
    assert LONG[:30] not in answer
    assert "Noted: it sails." not in answer

    # by its id, and by its items, the conversation goes on from there, with any provider
    items = [item.model_dump(exclude_unset=True, warnings=False) for item in response.output]
    more: Any = {"role": "user", "content": "Thanks!"}
    for following in (
        {"input": [more], "previous_response_id": response.id},
        {"input": [*HISTORY, *items, more]},
        {"input": [*HISTORY, *items, more], "context_management": rule(200)},
    ):
        for other in ("oai", "res"):
            stage.upstream.play(say(other, "Fine."))
            last = api.create(model=f"{other}/m", stream=True, **following)
            assert [item.type for item in list(last)[-1].response.output] == ["message"]
            prompt = sent(stage.upstream)
            assert all(words in prompt for words in ("Ship: Wavedancer.", "Wavedancer.", "Thanks!"))
            assert LONG[:30] not in prompt
            assert WHOLE_PREFIX not in prompt
            assert "Be brief." in prompt


def test_a_call_goes_on_behind_the_compaction(stage: Stage, api: Any) -> None:
    stage.upstream.play(say("oai", "They ask for the weather."), call("oai", "weather", "{}"))
    body: Any = {"model": "oai/m", "tools": [TOOL], "context_management": rule(200)}
    first: Any = api.create(input=[*HISTORY], **body)
    assert [item.type for item in first.output] == ["compaction", "function_call"]
    stage.upstream.play(say("oai", "Cold."))
    output: Any = {"type": "function_call_output", "call_id": "call_1", "output": "3 degrees"}
    second: Any = api.create(input=[output], previous_response_id=first.id, **body)
    assert texts(second.output) == ["Cold."]
    assert all(words in sent(stage.upstream) for words in ("They ask for the weather.", "3 degrees"))


def test_it_is_charged_and_may_be_done_with_one_request_at_a_time(stage: Stage) -> None:
    made, key = stage.do(stage.hub.store.keys.create("tester", limits=Limits(parallel=1)))
    stage.upstream.play(say("oai", "Short."), say("oai", "Fine."))
    with client(stage, key) as opened:
        opened.responses.create(model="oai/m", input=HISTORY, context_management=rule(200))

    async def charged() -> int:
        return sum(row.key_id == made.id for row in await stage.hub.store.usage.list())

    async def both_are_charged() -> bool:
        return await charged() >= 2

    stage.do(until(both_are_charged))
    assert stage.do(charged()) == 2


def test_in_the_background_the_compaction_is_the_first_item(stage: Stage, api: Any) -> None:
    stage.upstream.play(say("oai", "Short."), say("oai", "Fine."))
    body: Any = {"model": "oai/m", "input": HISTORY, "context_management": rule(200), "background": True}
    events: list[Any] = list(api.create(**body, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in events[-1].response.output] == ["compaction", "message"]
    assert api.retrieve(events[-1].response.id).output == events[-1].response.output


UNTOUCHED: dict[str, Any] = {
    "below": {"context_management": rule(100_000)},
    "nothing to summarise": {"context_management": rule(1), "input": [HISTORY[0], HISTORY[1]]},
    "null": {"context_management": None},
    "without a threshold": {"context_management": [{"type": "compaction"}]},
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_other_requests_are_sent_as_they_are(stage: Stage, name: str) -> None:
    stage.upstream.play(say("oai", "Fine."))
    answer = post(stage, "", **{"model": "oai/m", "input": HISTORY, **UNTOUCHED[name]})
    assert [item["type"] for item in answer.json()["output"]] == ["message"]
    assert LONG[:30] in sent(stage.upstream)
    assert "x-dragoman-dropped" not in answer.headers


def test_a_server_of_the_protocol_gets_the_rule_itself(stage: Stage) -> None:
    stage.upstream.play(say("res", "Fine."))
    assert post(stage, "", model="res/m", input=HISTORY, stream=True, context_management=rule(10)).is_success
    assert stage.upstream.body["context_management"] == rule(10)


def test_an_unknown_rule_is_dropped_and_said_to_be(stage: Stage) -> None:
    stage.upstream.play(say("oai", "Fine."))
    answer = post(stage, "", model="oai/m", input=HISTORY, context_management=rule(1, "forget"))
    assert answer.headers["x-dragoman-dropped"] == "context_management[].type.forget"


@pytest.mark.parametrize("value", [7, "x", [7], rule(0), rule(-1), rule("many"), rule(1.5), rule(True), {}])
def test_a_rule_that_is_none_is_refused(stage: Stage, value: Any) -> None:
    stage.upstream.play(say("oai", "no"))
    answer = post(stage, "", model="oai/m", input=HISTORY, context_management=value)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("context_management")
    assert stage.upstream.requests == []


def test_a_failed_summary_is_a_failed_answer(stage: Stage, api: Any) -> None:
    stage.upstream.play(say("oai", ""))
    answer = post(stage, "", model="oai/m", input=HISTORY, context_management=rule(200))
    assert (answer.status_code, "summary" in answer.json()["error"]["message"]) == (424, True)
    stage.upstream.play(say("oai", ""))
    events = list(api.create(model="oai/m", input=HISTORY, context_management=rule(200), stream=True))
    assert [event.type for event in events][-1] == "response.failed"
