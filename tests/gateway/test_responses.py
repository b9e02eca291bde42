"""The door for clients of the Responses API: translated answers, errors, and what they cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from dragoman.wire.sse import SSEParser
from tests.gateway.metered_hub import Desk, Site, completion, desk, refusal, tokens, usage
from tests.gateway.recordings import ANTHROPIC, ANTHROPIC_BROKEN
from tests.gateway.upstream import Answer, Stage
from tests.wire import openai_streams

HI: Any = {"model": "up/m", "input": "hi"}


def events_in(raw: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(frame) for frame in SSEParser().feed(raw)]


async def ask(at: Desk, key: dict[str, str] | None = None, **fields: Any) -> Any:
    return await at.http.post("/v1/responses", json={**HI, **fields}, headers=key or {})


async def test_a_request_is_translated_and_its_answer_is_a_response_that_is_paid_for(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("Hello"))) as at:
        response = await ask(at, instructions="Be brief.", metadata={"a": "b"})
        body = response.json()
        assert response.status_code == 200, body
        assert response.headers["x-dragoman-model"] == "up/m"
        assert "x-dragoman-cost" in response.headers
        assert body["status"] == "completed"
        assert body["output"][0]["content"][0]["text"] == "Hello"
        assert body["usage"]["total_tokens"] == 15
        assert (body["metadata"], body["instructions"], body["tools"]) == ({"a": "b"}, "Be brief.", [])
        assert at.sites["up"].bodies[0]["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ]
        row = await at.row()
        assert (row.door, row.tokens.total_tokens) == ("responses", 15)


async def test_a_stream_is_a_response_that_grows(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("Hel", "lo", counts=usage(7, 2)))) as at:
        response = await ask(at, stream=True)
        assert response.headers["content-type"] == "text/event-stream"
        found = events_in(response.content)
        assert found[0]["response"]["id"] == found[-1]["response"]["id"]
        assert found[-1]["type"] == "response.completed"
        assert found[-1]["response"]["usage"]["output_tokens"] == 2
        text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
        assert text == "Hello"


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
async def test_a_failure_of_the_provider_leaves_clients_no_reason_to_try_again(
    tmp_path: Path, status: int, retries: int
) -> None:
    async with desk(tmp_path, up=Site(refusal(status), retries=retries)) as at:
        client = openai.AsyncOpenAI(
            base_url=f"{at.http.base_url}/v1", api_key="none", max_retries=2, timeout=30
        )
        with pytest.raises(openai.APIStatusError):
            await client.responses.create(**HI)
        tries = len(at.sites["up"].requests)
        stream = await client.responses.create(**HI, stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.code == "invalid_prompt"
        assert len(at.sites["up"].requests) == 2 * tries
        whole = await ask(at)
        assert whole.status_code == (401 if status == 401 else 424)
        assert whole.headers["x-should-retry"] == "false"
        await client.close()


async def test_an_answer_that_breaks_off_ends_as_failed(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("Hel", over=False))) as at:
        at.sites["up"].replies(tokens("Hel", over=False) + b"0\r\n\r\n")
        found = events_in((await ask(at, stream=True)).content)
        assert found[-1]["type"] == "response.failed"


async def test_errors_of_the_hub_are_in_openais_form_and_name_the_field(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion())) as at:
        response = await ask(at, max_output_tokens=0)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "max_output_tokens"
        assert response.json()["error"]["type"] == "invalid_request_error"
        unknown = await ask(at, model="up2/m")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_openais_client_reads_text_calls_and_reasoning_of_another_family(stage: Stage) -> None:
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0)
    for name in sorted(ANTHROPIC.keys() - ANTHROPIC_BROKEN.keys()):
        stage.upstream.play(Answer(body=ANTHROPIC[name]))
        with client.responses.stream(model="ant/m", input="hi") as stream:
            kinds = [event.type for event in stream]
        assert kinds[0] == "response.created"
        assert kinds[-1] in ("response.completed", "response.incomplete"), name


def test_the_shortest_client_of_the_documentation_works(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "responses.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    stage.upstream.play(Answer(body=openai_streams.recording("openai_text")))
    program = code.replace("http://127.0.0.1:8000", stage.url).replace('"fast"', '"short"')
    exec(program, {"key": stage.key})
    assert capsys.readouterr().out.strip()
