"""Logs: each line names its request, each request ends with one line, no line contains a secret."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dragoman import identity
from dragoman.cli.logging_setup import configure_logging
from dragoman.config import ProviderConfig
from dragoman.events import Usage
from dragoman.server.http.request_log import assign_request_id, log_request
from dragoman.usage_record import UsageRecord

Err = pytest.CaptureFixture[str]
ODD = "correct horse battery"  # a secret that looks like none
KEYS = (
    "dgm_0123456789abcdef",
    "sk-ant-api03-AAAABBBBCCCC",
    "xai-0123456789abcdef01",
    "AIzaSyA0123456789abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
)
SHAPES = (
    "Authorization: Bearer {}",
    "{{'authorization': 'Basic {}', 'accept': '*/*'}}",
    "headers={{'x-api-key': '{}'}}",
    'api_key="{}"',
    "b'api-key: {}'",
    "https://models.example/v1?api_key={}&x=1",
    '{{"access_token": "{}"}}',
    "cookie={}; path=/",
    "password = {}",
)
RECORD = UsageRecord(
    id="use_1",
    owner="ann",
    status="finished",
    started_at=1.0,
    door="openai",
    provider="main",
    model_asked="fast",
    model_served="gpt-x-1",
    key_id="key_1",
    tokens=Usage(input_tokens=90, output_tokens=7, reasoning_tokens=0, estimated=True),
    cost=0.000123456789,
    duration=1.5,
    first_byte=0.25,
    upstream_status=200,
    finish_reason="stop",
)
FIELDS = {
    "door": "openai",
    "model_asked": "fast",
    "model_served": "gpt-x-1",
    "provider": "main",
    "status": "finished",
    "upstream_status": 200,
    "finish_reason": "stop",
    "duration": 1.5,
    "first_byte": 0.25,
    "cost": 0.000123,
    "key_id": "key_1",
    "owner": "ann",
    "input_tokens": 90,
    "output_tokens": 7,
    "reasoning_tokens": 0,
    "estimated": True,
}


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    pending, level, token = list(root.handlers), root.level, identity.request_id.set(None)
    hooks = sys.excepthook, threading.excepthook
    yield
    root.handlers[:] = pending
    root.setLevel(level)
    sys.excepthook, threading.excepthook = hooks
    identity.request_id.reset(token)


def entries(err: Err) -> list[dict[str, Any]]:
    """The JSON lines that were written; their times are left out."""
    lines = [msgspec.json.decode(line) for line in err.readouterr().err.splitlines()]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("timestamp"))
    return lines


def test_a_request_keeps_the_id_that_its_client_gave_it() -> None:
    for question in ("abc-1", "A.b_c-9", "x" * 128):
        assert assign_request_id({"x-request-id": question}) == question
        assert identity.request_id.get() == question


def test_a_request_without_a_sane_id_gets_one() -> None:
    for question in ("", "x" * 129, "a b", "a\nb", "é", "<script>"):
        made = assign_request_id({"x-request-id": question})
        assert re.fullmatch(r"req_[\w-]{18}", made)
        assert identity.request_id.get() == made
    assert assign_request_id({}) != assign_request_id({})


async def test_every_line_of_a_request_has_its_id_in_tasks_and_threads_too(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    log = logging.getLogger("dragoman.server.gateway.handlers")

    async def serve(number: int) -> None:
        assign_request_id({"x-request-id": f"r{number}"})
        log.info("here")
        await asyncio.gather(asyncio.to_thread(log.info, "there"))

    await asyncio.gather(serve(1), serve(2))
    log.info("outside")
    seen = sorted((line["event"], line.get("request_id")) for line in entries(capsys)[:-1])
    assert seen == [("here", "r1"), ("here", "r2"), ("there", "r1"), ("there", "r2")]


def test_a_line_for_programs_is_one_json_object(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    assign_request_id({"x-request-id": "r1"})
    logging.getLogger("dragoman.server.gateway.handlers").warning("%s is\n%d", "one", 1)
    assert entries(capsys) == [
        {
            "level": "warning",
            "logger": "dragoman.server.gateway.handlers",
            "event": "one is\n1",
            "request_id": "r1",
        }
    ]


def test_a_line_for_people_says_when_where_for_whom_and_what(capsys: Err) -> None:
    configure_logging("info", as_json=False)
    logging.getLogger("dragoman.server.gateway.handlers").warning("one")
    assign_request_id({"x-request-id": "r1"})
    logging.getLogger("dragoman.server.gateway.handlers").info("two", extra={"fields": {"a": 1, "b": "x"}})
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "WARNING server.gateway.handlers: one",
        "INFO    server.gateway.handlers [r1]: two a=1 b=x",
    ]


def test_a_request_that_ended_has_one_line_with_what_is_known(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    assign_request_id({"x-request-id": "r1"})
    log_request(RECORD)
    log_request(UsageRecord(id="u", owner="ann", status="failed", started_at=1.0, error="timeout"))
    head = {"level": "info", "logger": "dragoman.access", "event": "request", "request_id": "r1"}
    assert entries(capsys) == [
        {**head, **FIELDS},
        {**head, "status": "failed", "error": "timeout", "owner": "ann"},
    ]


def test_a_line_that_is_written_later_still_names_its_request(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    log_request(UsageRecord(id="u", owner="ann", status="finished", started_at=1.0, request_id="r9"))
    assert [line["request_id"] for line in entries(capsys)] == ["r9"]


def test_there_is_no_line_where_nobody_wants_it(capsys: Err) -> None:
    configure_logging("warning", as_json=True)
    log_request(RECORD)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_whatever_is_logged_no_key_comes_through(capsys: Err, as_json: bool) -> None:
    configure_logging("info", as_json=as_json, secrets={ODD})
    log = logging.getLogger("dragoman.x")
    for shape in SHAPES:
        for key in (*KEYS, "plainvalue123", ODD):
            text = shape.format(key)
            log.info(text)
            log.info("%s", text, extra={"fields": {"said": text}})
    for key in (*KEYS, ODD):
        log.info("the server said that %r is wrong", key)
    message = capsys.readouterr().err
    assert [key for key in (*KEYS, "plainvalue123", ODD) if key in message] == []
    assert "the server said that '***' is wrong" in message


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_is_reported_without_its_keys(capsys: Err, as_json: bool) -> None:
    configure_logging("info", as_json=as_json, secrets=[ODD])
    try:
        try:
            raise ValueError(f"the header was 'Bearer {KEYS[1]}'")
        except ValueError as cause:
            raise RuntimeError(f"asked with {KEYS[0]} and {ODD}") from cause
    except RuntimeError:
        logging.getLogger("dragoman.x").exception("it failed with %s", KEYS[2])
    message = capsys.readouterr().err
    assert "Traceback (most recent call last)" in message
    assert "RuntimeError: asked with" in message
    assert [key for key in (*KEYS, ODD) if key in message] == []


def test_a_providers_configuration_can_be_logged(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    headers = {"authorization": "Bearer plain-secret", "x-api-key": "other-secret", "accept": "text/plain"}
    config = ProviderConfig(type="openai", base_url="https://models.example/v1", headers=headers)
    logging.getLogger("dragoman.x").info("%r %s", config, msgspec.to_builtins(config))
    (line,) = entries(capsys)
    assert "https://models.example/v1" in line["event"]
    assert [secret for secret in ("plain-secret", "other-secret") if secret in line["event"]] == []


def test_a_secret_that_comes_later_is_hidden_from_then_on(capsys: Err) -> None:
    secrets: set[str] = set()
    configure_logging("info", as_json=True, secrets=secrets)
    log = logging.getLogger("dragoman.x")
    log.info("a %s", ODD)
    secrets.add(ODD)
    log.info("a %s", ODD)
    assert [line["event"] for line in entries(capsys)] == [f"a {ODD}", "a ***"]


def test_words_that_only_look_a_little_like_keys_stay(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    text = (
        "input_tokens=123456 of run run_abcdefghijklmnop, task-1234567, 3 tokens: 1234567, risk-free-choice"
    )
    logging.getLogger("dragoman.x").info(text)
    assert [line["event"] for line in entries(capsys)] == [text]


def test_a_line_that_cannot_be_written_tells_none_of_its_arguments(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    logging.getLogger("dragoman.x").info("%d", KEYS[0])
    message = capsys.readouterr().err
    assert re.fullmatch(r"a log line failed \(TypeError\), from .*test_logs\.py:\d+\n", message)


def test_what_ends_the_program_or_a_thread_is_reported_without_keys(capsys: Err) -> None:
    configure_logging("info", as_json=True)
    error = RuntimeError(f"with {KEYS[0]}")
    sys.excepthook(RuntimeError, error, None)

    def fail() -> None:
        raise error

    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    messages = entries(capsys)
    assert [line["event"] for line in messages] == ["the program failed", "the thread worker failed"]
    assert all("RuntimeError: with dgm_***" in line["exception"] for line in messages)


def test_nothing_that_others_wrote_looks_like_another_entry_or_steers_the_terminal(capsys: Err) -> None:
    configure_logging("info", as_json=False)
    evil = "x\n12:00:00 ERROR   auth: \x1b]0;pwned\x07\x9b31m\u202e"
    try:
        raise RuntimeError(evil)
    except RuntimeError:
        logging.getLogger("dragoman.x").warning("it said %s", evil, exc_info=True)
    logging.getLogger("dragoman.x").info("request", extra={"fields": {"model_asked": evil}})
    message = capsys.readouterr().err
    assert not set("\x1b\x07\x9b\u202e") & set(message)
    begun = [line for line in message.splitlines() if not line.startswith("    ")]
    assert [line.split()[1:3] for line in begun] == [["WARNING", "x:"], ["INFO", "x:"]]
    assert "\\u001b]0;pwned" in message


def test_a_key_of_a_few_letters_blots_nothing_out(capsys: Err) -> None:
    configure_logging("info", as_json=False, secrets={"x", "abc", "abcd"})
    logging.getLogger("test").info("request req_xabcx took abcd")
    assert capsys.readouterr().err.endswith("request req_xabcx took ***\n")
