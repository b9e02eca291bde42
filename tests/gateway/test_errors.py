"""Errors as the SDKs raise them: the provider's and the hub's own, in each endpoint's format."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import openai
import pytest
from msgspec.structs import replace

from dragoman.usage_limits import Limits
from tests.gateway.recordings import ANTHROPIC, OPENAI
from tests.gateway.sdk_clients import (
    Pair,
    anthropic_pair,
    completion,
    events,
    heard,
    message,
    openai_pair,
    said_status,
    snapshot,
)
from tests.gateway.upstream import KEY, Answer, Stage, document
from tests.wire.openai_streams import chunk, sse

STATUSES = (400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 529)
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
TOLD = "It did not work."


def openais() -> Any:
    return {"error": {"message": TOLD, "type": "some_error", "param": "messages[0]", "code": "some_code"}}


def anthropics(status: int) -> Any:
    kind = TYPES.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": TOLD}, "request_id": "req_9"}


OTHERS = {
    "fastapi": {"detail": TOLD},
    "ollama": {"error": TOLD},
    "mistral": {"object": "error", "message": TOLD, "type": "x", "code": 1},
    "text": TOLD.encode(),
    "page": f"<html><head><title>{TOLD}</title></head></html>".encode(),
}


def unnamed(report: Any, provider: str) -> Any:
    """The failure without the sentence that names the provider, which a refused key has."""
    if report.status not in (401, 403):
        return report
    named = f"the provider {provider} refused the hub's key for it: "
    assert report.message.startswith(named)
    return replace(report, message=report.message.removeprefix(named))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_raises_the_same_as_without_the_hub(
    stage: Stage, chat: Pair, status: int, stream: bool
) -> None:
    read = snapshot if stream else completion
    stage.upstream.play(document(openais(), status))
    straight = heard(read, chat.straight, "m")
    report = heard(read, chat.hub, "oai/m")
    assert (unnamed(report, "oai"), report.status) == (straight, status)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_client_raises_the_same_as_without_the_hub(
    stage: Stage, messages: Pair, status: int, stream: bool
) -> None:
    read = events if stream else message
    stage.upstream.play(document(anthropics(status), status))
    straight = heard(read, messages.straight, "m")
    report = heard(read, messages.hub, "ant/m")
    assert (unnamed(report, "ant"), report.status) == (straight, status)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("model", ["oai/m", "ant/m", "oll/m"])
def test_each_client_raises_what_fits_whatever_the_provider_speaks(
    stage: Stage, chat: Pair, messages: Pair, status: int, model: str
) -> None:
    body = {"oai/m": openais(), "ant/m": anthropics(status)}.get(model, {"error": TOLD})
    stage.upstream.play(document(body, status))
    for pair, read in ((chat, completion), (messages, message)):
        report = heard(read, pair.hub, model)
        straight = said_status(pair.straight, status)
        assert (report.kind, report.status) == (straight, status)
        assert TOLD in report.message


@pytest.mark.parametrize("shape", sorted(OTHERS))
def test_an_error_of_any_shape_keeps_its_status_and_its_words(
    stage: Stage, chat: Pair, messages: Pair, shape: str
) -> None:
    stage.upstream.play(document(OTHERS[shape], 422))
    for pair, read, model in ((chat, completion, "oai/m"), (messages, message, "ant/m")):
        report = heard(read, pair.hub, model)
        assert (report.kind, report.status) == ("UnprocessableEntityError", 422)
        assert TOLD in report.message


def test_openais_fields_of_an_error_arrive(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(document(openais(), 400))
    with pytest.raises(openai.BadRequestError) as raised:
        completion(chat.hub, "oai/m")
    error = raised.value
    assert (error.type, error.param, error.code) == ("some_error", "messages[0]", "some_code")
    assert error.request_id == error.response.headers["x-dragoman-request-id"]


def test_anthropics_fields_of_an_error_arrive(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(document(anthropics(413), 413))
    with pytest.raises(anthropic.RequestTooLargeError) as raised:
        message(messages.hub, "ant/m")
    assert raised.value.body["error"] == {"type": "request_too_large", "message": TOLD}  # type: ignore[index]
    assert raised.value.request_id == raised.value.response.headers["x-dragoman-request-id"]


def test_a_prompt_that_is_too_long_is_known_by_its_code(stage: Stage, chat: Pair, messages: Pair) -> None:
    words = "prompt is too long: 9 tokens > 8 maximum"
    error = {"type": "invalid_request_error", "message": words}
    stage.upstream.play(document({"type": "error", "error": error}, 400))
    with pytest.raises(openai.BadRequestError) as raised:
        completion(chat.hub, "ant/m")
    assert raised.value.code == "context_length_exceeded"
    text = "This model's maximum context length is 8 tokens."
    stage.upstream.play(document({"error": {"message": text, "code": "context_length_exceeded"}}, 400))
    assert heard(message, messages.hub, "oai/m").message.startswith("prompt is too long")


@pytest.mark.parametrize("status", [429, 500, 529])
def test_a_passing_failure_is_retried_by_the_hub(
    stage: Stage, chat: Pair, messages: Pair, status: int
) -> None:
    refusals = {"oai": document(openais(), status), "ant": document(anthropics(status), status)}
    answers = {"oai": Answer(body=OPENAI["openai_text"]), "ant": Answer(body=ANTHROPIC["text"])}
    for pair, read in ((chat, snapshot), (messages, events)):
        stage.upstream.play(refusals[pair.family], answers[pair.family])
        report = heard(read, pair.hub, f"{pair.family}-again/m")
        assert len(stage.upstream.requests) == 2
        stage.upstream.play(answers[pair.family])
        assert report == heard(read, pair.straight, "m")


def test_a_passing_failure_is_retried_by_the_sdk_where_the_hub_does_not(stage: Stage) -> None:
    with openai_pair(stage, max_retries=2) as chat, anthropic_pair(stage, max_retries=2) as messages:
        for pair, read, refusal, answer in (
            (chat, snapshot, document(openais(), 500), OPENAI["openai_text"]),
            (messages, events, document(anthropics(529), 529), ANTHROPIC["text"]),
        ):
            stage.upstream.play(refusal, Answer(body=answer))
            report = heard(read, pair.hub, f"{pair.family}/m")
            assert len(stage.upstream.requests) == 2
            assert report == heard(read, pair.straight, "m")


def test_no_sdk_tries_again_what_cannot_get_better(stage: Stage) -> None:
    with openai_pair(stage, max_retries=2) as chat, anthropic_pair(stage, max_retries=2) as messages:
        for pair, read in ((chat, completion), (messages, message)):
            quota = {"error": {"message": TOLD, "type": "insufficient_quota", "code": "insufficient_quota"}}
            stage.upstream.play(document(quota, 429))
            assert heard(read, pair.hub, "oai/m").kind == "RateLimitError"
            assert len(stage.upstream.requests) == 1


def test_a_connection_that_breaks_is_an_error_in_the_stream(stage: Stage, chat: Pair, messages: Pair) -> None:
    stage.upstream.play(Answer(body=sse(chunk({"content": "Hel"}), done=False), framing="cut"))
    report = heard(snapshot, chat.hub, "oai/m")
    assert (report.kind, report.status) == ("APIError", None)
    stage.upstream.play(Answer(body=ANTHROPIC["text"][:600], framing="cut"))
    report = heard(events, messages.hub, "ant/m")[-1]
    assert (report.kind, report.status) == ("APIStatusError", 200)


# ---- the hub's own --------------------------------------------------------------------------------------


def both(stage: Stage, *, key: str, model: str) -> list[Any]:
    """What both clients raise."""
    with (
        openai.OpenAI(base_url=f"{stage.url}/v1", api_key=key, max_retries=0) as chat,
        anthropic.Anthropic(base_url=stage.url, api_key=key, max_retries=0) as messages,
    ):
        return [heard(completion, chat, model), heard(message, messages, model)]


def test_a_key_that_is_not_known_is_refused(stage: Stage) -> None:
    for report in both(stage, key="dgm_nobody", model="oai/m"):
        assert (report.kind, report.status) == ("AuthenticationError", 401)
        assert "unknown" in report.message


def test_a_model_that_is_not_known_is_not_found(stage: Stage) -> None:
    for report in both(stage, key=stage.key, model="nobody/m"):
        assert (report.kind, report.status) == ("NotFoundError", 404)
        assert "'nobody/m'" in report.message


def test_a_model_that_a_key_may_not_ask_is_forbidden(stage: Stage) -> None:
    for report in both(stage, key=stage.new_key(models=["ant/*"]), model="oai/m"):
        assert (report.kind, report.status) == ("PermissionDeniedError", 403)


def test_a_key_for_other_endpoints_is_forbidden(stage: Stage) -> None:
    for report in both(stage, key=stage.new_key(scopes=["chat"]), model="oai/m"):
        assert (report.kind, report.status) == ("PermissionDeniedError", 403)


def test_a_limit_says_when_to_come_again(stage: Stage) -> None:
    key = stage.new_key(limits=Limits(requests_per_minute=1))
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    with openai.OpenAI(base_url=f"{stage.url}/v1", api_key=key, max_retries=0) as chat:
        snapshot(chat, "oai/m")
        with pytest.raises(openai.RateLimitError) as raised:
            snapshot(chat, "oai/m")
    assert 1 <= int(raised.value.response.headers["retry-after"]) <= 60
    assert raised.value.response.headers["x-should-retry"] == "true"
    assert raised.value.code == "rate_limit_exceeded"
    report = both(stage, key=key, model="oai/m")[1]
    assert (report.kind, report.status) == ("RateLimitError", 429)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", b"{", "invalid_request_error"),
        ("/v1/messages", b"[]", "invalid_request_error"),
        ("/v1/messages", b'{"model": "oai/m", "stream": "yes"}', "invalid_request_error"),
        ("/v1/messages/count_tokens", b"{}", "invalid_request_error"),
        ("/v1/chat/completions", b'{"model": "ant/m", "messages": "Hi"}', "invalid_request_error"),
        ("/v1/messages", b'{"model": "oai/m", "messages": []}', "invalid_request_error"),
        ("/v1/embeddings", b'{"model": 7}', "invalid_request_error"),
        ("/v1/embeddings", b'{"model": "ant/m", "input": "Hi"}', "invalid_request_error"),
    ],
)
def test_a_body_that_is_none_is_a_bad_request(stage: Stage, path: str, body: bytes, kind: str) -> None:
    headers = {"authorization": f"Bearer {stage.key}"}
    with httpx2.Client(base_url=stage.url, headers=headers, trust_env=False, timeout=60) as http:
        response = http.post(path, content=body)
    report = response.json()
    assert (response.status_code, report["error"]["type"]) == (400, kind)
    assert report.get("type") == ("error" if "messages" in path else None)


def test_the_provider_s_key_is_never_said_back(stage: Stage, chat: Pair, messages: Pair) -> None:
    error = {"message": f"Bad key {KEY}", "type": "x", "param": KEY, "code": None}
    stage.upstream.play(document({"error": error}, 400))
    for pair, read in ((chat, completion), (messages, message)):
        with pytest.raises((openai.APIError, anthropic.APIError)) as raised:
            read(pair.hub, "oai/m")
        assert KEY not in f"{raised.value!r} {raised.value} {vars(raised.value)}"


def test_an_address_or_method_that_is_not_there_is_an_error_as_the_sdks_read_it(
    chat: Pair, messages: Pair
) -> None:
    for method, path, status, code in (
        ("GET", "/files", 404, "unknown_url"),
        ("POST", "/audio/speech", 404, "unknown_url"),
        ("GET", "/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/responses", 405, "method_not_allowed"),
    ):
        call = getattr(chat.hub, method.lower())
        with pytest.raises(openai.APIStatusError) as refused:
            call(path, cast_to=object)
        assert (refused.value.status_code, refused.value.code) == (status, code)
        assert refused.value.type == "invalid_request_error"
        assert refused.value.request_id
    for path, status, kind in (
        ("/v1/messages/batches", 404, "not_found_error"),
        ("/v1/files", 404, "not_found_error"),
        ("/v1/messages", 405, "invalid_request_error"),
    ):
        with pytest.raises(anthropic.APIStatusError) as missing:
            messages.hub.get(path, cast_to=object)
        assert missing.value.status_code == status
        assert (missing.value.type, missing.value.request_id is not None) == (kind, True)
        body: Any = missing.value.body
        assert (body["type"], body["error"]["type"]) == ("error", kind)
