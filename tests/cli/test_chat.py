"""`dragoman chat` for scripts: one turn, stdout, exit codes."""

from __future__ import annotations

import io
import re
import signal
import socket

import msgspec
import pytest

from tests.cli.conftest import Run
from tests.cli.program import Hub, finish, read_until, start
from tests.cli.program import run as run_apart


def test_stdout_is_the_answer_and_stderr_all_about_it(run: Run, hub: Hub) -> None:
    result = run("chat", "hello", "--hub", hub.url)
    assert (result.code, result.out) == (0, "Good day.\n")
    assert "plain/x · 1 step · 5 tokens in · 3 tokens out" in result.err
    assert "dragoman chat --session cli-" in result.err


def test_tool_calls_are_shown_with_arguments_results_and_time(
    run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_HUB", hub.url)
    result = run("chat", "hello", "--model", "tools/x")
    assert result.out == "It is 42.\n"
    lines = result.err.splitlines()
    assert lines[0] == "I calculate."
    assert lines[1].startswith('→ math.calculate {"expression":"6 * 7"}; no.such {}')
    assert lines[2].startswith('  ✓ [{"success":true,"result":42},{"success":false')
    assert re.search(r" [\d.]+ m?s$", lines[2])


def test_the_message_may_come_through_a_pipe(hub: Hub) -> None:
    result = run_apart("chat", "--hub", hub.url, "--session", "piped", input="from a pipe")
    assert (result.code, result.out) == (0, "Good day.\n")
    shown = run_apart("sessions", "show", "piped", "--hub", hub.url, "--json").json
    assert shown["messages"][0]["parts"] == [{"type": "text", "text": "from a pipe"}]


def test_a_pipe_without_a_message_is_asked_wrongly(
    run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    result = run("chat", "--hub", hub.url)
    assert (result.code, result.out) == (2, "")


def test_json_is_one_event_a_line(run: Run, hub: Hub) -> None:
    result = run("chat", "hello", "--json", "--hub", hub.url)
    events = [msgspec.json.decode(line) for line in result.out.splitlines()]
    assert [event["type"] for event in events][:2] == ["start", "start-step"]
    assert events[-1]["finishReason"] == "stop"
    assert result.err == ""


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_answer_that_fails_ends_with_1(run: Run, hub: Hub, form: list[str]) -> None:
    result = run("chat", "hello", "--model", "bad/x", "--hub", hub.url, *form)
    assert result.code == 1
    assert "the model fell over" in result.out + result.err


def test_a_model_cannot_steer_the_terminal(run: Run, hub: Hub) -> None:
    result = run("chat", "hello", "--model", "rude/x", "--hub", hub.url)
    assert result.out == "]0;gotchaplain [31mred\n"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_stops_the_run_and_ends_with_130(hub: Hub, form: list[str]) -> None:
    session = f"stopped-{len(form)}"
    chat = start("chat", "go", "--model", "slow/x", "--hub", hub.url, "--session", session, *form)
    read_until(chat, "first")
    result = finish(chat, signal.SIGINT)
    assert result.code == 130
    shown = run_apart("sessions", "show", session, "--hub", hub.url, "--json").json
    assert shown["running"] is False
    assert shown["messages"][1]["metadata"]["finishReason"] == "aborted"


def test_a_busy_session_is_not_disturbed(run: Run, hub: Hub) -> None:
    chat = start("chat", "go", "--model", "slow/x", "--hub", hub.url, "--session", "busy")
    read_until(chat, "first")
    result = run("chat", "me too", "--hub", hub.url, "--session", "busy")
    assert (result.code, result.out) == (1, "")
    assert "already has an active run" in result.err
    assert finish(chat, signal.SIGINT).code == 130


def test_no_hub_a_wrong_address_and_another_server_are_told_apart(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with socket.socket() as taken:  # nobody listens there, and nobody else can
            taken.bind(("127.0.0.1", 0))
            absent = run("chat", "hi", "--hub", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert (absent.code, "dragoman serve" in absent.err) == (1, True)
        wrong = run("chat", "hi", "--hub", "127.0.0.1:8000")
        assert (wrong.code, "http://127.0.0.1:8000" in wrong.err) == (1, True)
        other = start("chat", "hi", "--hub", f"http://127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\nconnection: close\r\n\r\nOops")
            result = finish(other)
        assert (result.code, "is not a hub" in result.err) == (1, True)
