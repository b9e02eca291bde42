"""Compactions of the Responses API: by the endpoint, and by the last item of a request."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import openai
import pytest

from dragoman.wire.responses.compaction import PREFIX, PROMPT
from tests.gateway.upstream import Answer, Stage, document
from tests.responses.answers import call, say, sent
from tests.wire import openai_streams as oai
from tests.wire.responses_streams import USAGE

TRIGGER: Any = {"type": "compaction_trigger"}
OWN: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": f"{PREFIX}Earlier: blue."}
FOREIGN: Any = {"type": "compaction", "id": "cmp_2", "encrypted_content": "gAAA+/="}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
HISTORY: Any = [
    {"role": "user", "content": "Is it cold in Oslo?"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "3 degrees"},
    {"role": "assistant", "content": "It is 3 degrees."},
    {"role": "user", "content": [{"type": "input_text", "text": "Thanks!"}]},
]
USERS = ["Is it cold in Oslo?", "Thanks!"]


def client(stage: Stage, key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stage.url}/v1", api_key=key or stage.key, max_retries=0)


def post(stage: Stage, path: str, **body: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {stage.key}"}
    return httpx2.post(f"{stage.url}/v1/responses{path}", json=body, headers=headers, timeout=30)


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items if item.type == "message"]


@pytest.mark.promise("compaction")
@pytest.mark.parametrize("family", ["oai", "ant"])
def test_a_model_summarises_and_any_model_goes_on_with_its_summary(stage: Stage, family: str) -> None:
    stage.upstream.play(say(family, "Oslo: 3 degrees, thanked."))
    compacted = client(stage).responses.compact(
        model=f"{family}/m",
        input=HISTORY,
        instructions="Be brief.",
        extra_body={"tools": [WEATHER], "text": {"format": {"type": "json_object"}}},
    )
    prompt = sent(stage.upstream)
    assert all(words in prompt for words in (*USERS, "3 degrees", "Be brief.", "Write a summary"))
    assert "json_object" not in prompt
    assert stage.upstream.body["tool_choice"] in ("none", {"type": "none"})
    assert (compacted.object, compacted.usage.input_tokens, compacted.usage.output_tokens) == (
        "response.compaction",
        36,
        12,
    )
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert texts(compacted.output) == USERS
    items: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
    for next_family in ("oai", "ant", "res"):
        stage.upstream.play(say(next_family, "Fine."))
        body: Any = {"model": f"{next_family}/m", "input": [*items, {"role": "user", "content": "And now?"}]}
        events = list(client(stage).responses.create(**body, stream=True))
        assert events[-1].type == "response.completed"
        prompt = sent(stage.upstream)
        assert all(words in prompt for words in (*USERS, "Oslo: 3 degrees, thanked.", "And now?"))
        assert PREFIX not in prompt
        assert "It is 3 degrees." not in prompt


def test_a_second_compaction_has_the_first_in_its_summary_and_no_message_of_it(stage: Stage) -> None:
    stage.upstream.play(say("oai", "Blue, then red."))
    history: Any = [{"role": "user", "content": "Blue."}, OWN, {"role": "user", "content": "Red."}]
    compacted = client(stage).responses.compact(model="oai/m", input=history)
    assert "Earlier: blue." in sent(stage.upstream)
    assert texts(compacted.output) == ["Blue.", "Red."]
    last: Any = compacted.output[-1]
    assert last.encrypted_content == f"{PREFIX}Blue, then red."


COMPACTED = {
    "id": "resp_9",
    "object": "response.compaction",
    "created_at": 1,
    "output": [{"role": "user", "type": "message", "content": []}, FOREIGN],
    "usage": USAGE,
}


def test_a_server_that_compacts_gets_the_request_and_its_answer_is_relayed(stage: Stage) -> None:
    stage.upstream.play(say("res", "It is 3 degrees."))
    first = client(stage).responses.create(model="res/m", input="Is it cold in Oslo?", stream=True)
    id = next(event.response.id for event in first if event.type == "response.completed")
    whole = msgspec.json.encode(COMPACTED)
    stage.upstream.play(document(whole))
    answer = post(stage, "/compact", model="res/m", previous_response_id=id, input=[OWN])
    assert answer.content == whole
    assert float(answer.headers["x-dragoman-cost"]) > 0
    assert stage.upstream.requests[-1].line.startswith("POST /v1/responses/compact ")
    prompt = sent(stage.upstream)
    assert all(words in prompt for words in ("Is it cold in Oslo?", "It is 3 degrees.", "Earlier: blue."))
    assert stage.upstream.body["previous_response_id"] is None
    stage.upstream.play(say("res", "Fine."))
    assert post(stage, "", model="res/m", input=[FOREIGN], stream=True).status_code == 200
    assert stage.upstream.body["input"] == [FOREIGN]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_where_the_server_has_no_such_endpoint_its_model_is_asked(stage: Stage, status: int) -> None:
    stage.upstream.play(document({"error": {"message": "Not Found"}}, status), say("res", "Cold."))
    answer = post(stage, "/compact", model="res/m", input=HISTORY)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][-1]["encrypted_content"] == f"{PREFIX}Cold."
    lines = [request.line.partition(" HTTP")[0] for request in stage.upstream.requests]
    assert lines == ["POST /v1/responses/compact", "POST /v1/responses"]


USER: Any = {"role": "user", "content": "hi"}
REFUSED: dict[str, tuple[str, Any, str]] = {
    "stream": ("/compact", {"input": [USER], "stream": True}, "stream"),
    "background": ("/compact", {"input": [USER], "background": True}, "stream"),
    "agent": ("/compact", {"input": [USER], "model": "agent/default"}, "model"),
    "agent's trigger": ("", {"input": [USER, TRIGGER], "model": "agent/default"}, "input"),
    "empty": ("/compact", {"input": []}, "input"),
    "no input": ("/compact", {}, "input"),
    "number": ("/compact", {"input": 7}, "input"),
    "no model": ("/compact", {"input": [USER], "model": None}, "model"),
    "trigger alone": ("", {"input": [TRIGGER]}, "input"),
    "trigger before": ("", {"input": [TRIGGER, USER]}, "input[1]"),
    "two triggers": ("/compact", {"input": [USER, TRIGGER]}, "input[2]"),
    "foreign": ("/compact", {"input": [USER, FOREIGN]}, "input[1]"),
    "no content": ("", {"input": [USER, {"type": "compaction", "encrypted_content": 7}]}, "input[1]"),
    "unknown": ("/compact", {"previous_response_id": "resp_x"}, "previous_response_id"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compacted_is_refused_and_names_its_field(stage: Stage, name: str) -> None:
    path, body, field = REFUSED[name]
    stage.upstream.play(say("oai", "no"))
    answer = post(stage, path, **{"model": "oai/m", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
    assert stage.upstream.requests == []


def test_nobody_compacts_the_response_of_another_owner(stage: Stage) -> None:
    stage.upstream.play(say("oai", "secret"))
    first = client(stage).responses.create(model="oai/m", input="hi")
    _, key = stage.do(stage.hub.store.keys.create("stranger"))
    with pytest.raises(openai.BadRequestError) as refused:
        client(stage, key).responses.compact(model="oai/m", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"


CUT = Answer(body=oai.sse(oai.chunk({"content": "Ha"}), oai.chunk(None, "length")))
NO_SUMMARY = {"nothing": say("oai", ""), "a call": call("oai", "weather", "{}"), "half": CUT}


@pytest.mark.parametrize("name", NO_SUMMARY)
def test_an_answer_without_a_whole_summary_is_a_failure_of_the_provider(stage: Stage, name: str) -> None:
    stage.upstream.play(NO_SUMMARY[name])
    answer = post(stage, "/compact", model="oai/m", input=HISTORY)
    assert (answer.status_code, "summary" in answer.json()["error"]["message"]) == (424, True), answer.text
    stage.upstream.play(NO_SUMMARY[name])
    streamed = client(stage).responses.create(model="oai/m", input=[USER, TRIGGER], stream=True)
    last = list(streamed)[-1]
    assert last.type == ("response.incomplete" if name == "half" else "response.failed")


def test_a_trigger_is_answered_by_a_compaction_and_what_continues_it_has_only_that(stage: Stage) -> None:
    api = client(stage).responses
    stage.upstream.play(say("oai", "It is 3 degrees."))
    first = api.create(model="oai/m", input="Is it cold in Oslo?")
    stage.upstream.play(say("oai", "Oslo is cold."))
    stream = api.create(model="oai/m", input=[TRIGGER], previous_response_id=first.id, stream=True)
    events: list[Any] = list(stream)
    assert [event.type.removeprefix("response.") for event in events if "compacting" not in event.type] == [
        "created",
        "in_progress",
        "output_item.added",
        "output_item.done",
        "completed",
    ]
    assert any(event.type == "response.compaction.compacting" for event in events)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert sent(stage.upstream).count(PROMPT[:40]) == 1
    second = events[-1].response
    assert [item.type for item in second.output] == ["compaction"]
    assert api.retrieve(second.id).output == second.output
    stage.upstream.play(say("oai", "Yes."))
    api.create(model="oai/m", input="Still?", previous_response_id=second.id)
    prompt = sent(stage.upstream)
    assert all(words in prompt for words in ("Oslo is cold.", "Still?"))
    assert "It is 3 degrees." not in prompt
    assert "Is it cold in Oslo?" not in prompt
