"""`dragoman serve`: start, refusals, shutdown."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import LIMIT, Hub, environ, finish, read_until, run, scripted, serving, start

SLOW: list[dict[str, Any]] = [{"text": ["first ", *(f"word{n} " for n in range(2000))], "delay": 0.02}]


def config(folder: Path, **more: Any) -> dict[str, Any]:
    return {"providers": {"sim": scripted(folder, "sim", SLOW)}, "model": "sim/x", **more}


def get(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def connected(hub: Hub) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])))


def test_a_hub_is_ready_when_it_says_so_and_lets_in_who_has_a_key(tmp_path: Path) -> None:
    with serving(tmp_path, config(tmp_path)) as hub:
        assert get(f"{hub.url}/readyz") == 200
        assert get(f"{hub.url}/api/sessions") == 401
        assert get(f"{hub.url}/api/sessions", authorization=f"Bearer {hub.key('ada')}") == 200
        result = finish(hub.process, signal.SIGTERM)
    assert result.code == 0
    assert "nobody has a key yet" in result.err


def test_a_hub_that_is_loaded_anew_starts_serves_and_ends(tmp_path: Path) -> None:
    """All others of these tests may be forked from a process that has loaded the program: tests/zygote.py."""
    (tmp_path / "dragoman.yaml").write_text(json.dumps(config(tmp_path)))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "dragoman", "serve", "--data", tmp_path / "data", "--port", "0"],
        env=environ(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    url = read_until(process, "listening on http://")[-7:] + read_until(process, "\n").split()[0]
    assert get(f"{url}/readyz") == 200
    assert finish(process, signal.SIGTERM).code == 0


def test_no_auth_is_said_loudly_and_refused_beyond_this_machine(tmp_path: Path) -> None:
    with serving(tmp_path, config(tmp_path), "--no-auth") as hub:
        assert get(f"{hub.url}/api/sessions") == 200
        assert "WARNING: --no-auth" in finish(hub.process, signal.SIGTERM).err
    result = run(
        "serve", "--config", tmp_path / "dragoman.yaml", "--no-auth", "--host", "0.0.0.0", "--port", "0"
    )
    assert (result.code, result.out) == (2, "")
    assert "--no-auth" in result.err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_open_streams_properly_and_the_program_with_0(
    tmp_path: Path, how: signal.Signals
) -> None:
    with serving(tmp_path, config(tmp_path, limits={"drain": 0.5}), "--no-auth") as hub:
        chat = start("chat", "go", "--json", "--session", "s", "--hub", hub.url)
        read_until(chat, "first")
        assert finish(hub.process, how).code == 0
        events = [json.loads(line) for line in finish(chat).out.splitlines()[1:]]
    assert [event["type"] for event in events[-4:]] == ["text-end", "finish-step", "abort", "finish"]
    assert events[-2]["reason"] == "the hub is shutting down"
    result = run("sessions", "show", "s", "--data", hub.data, "--json").json
    assert result["running"] is False
    assert result["messages"][1]["metadata"]["finishReason"] == "aborted"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, config(tmp_path), "--no-auth") as hub, connected(hub) as stuck:
        stuck.sendall(b"POST /api/chat HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{")
        assert get(f"{hub.url}/healthz") == 200
        hub.process.send_signal(signal.SIGINT)
        assert hub.process.stderr is not None
        while "Ctrl-C again" not in hub.process.stderr.readline():
            pass
        result = finish(hub.process, signal.SIGINT)
    assert result.code == 130


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        scripted(tmp_path, "sim", SLOW)
        (tmp_path / "hub.yaml").write_text(json.dumps(config(tmp_path)))
        result = run(
            "serve", "--config", tmp_path / "hub.yaml", "--data", tmp_path / "data", "--port", str(port)
        )
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[0] == f"dragoman: port {port} on 127.0.0.1 is taken by another program"
    assert "--port 0" in result.err


def test_a_data_folder_in_use_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(json.dumps(config(tmp_path)))
    result = run("serve", "--config", tmp_path / "hub.yaml", "--data", hub.data, "--port", "0")
    assert (result.code, result.out) == (1, "")
    assert str(hub.process.pid) in result.err


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A hub whose database is down starts and relays; one that never had a place for its data does not."""
    (tmp_path / "notes.txt").write_text("no folder")
    for data in (tmp_path / "notes.txt", tmp_path / "notes.txt/below"):
        result = run("serve", "--port", "0", "--no-auth", "--data", str(data))
        assert (result.code, result.out) == (1, "")
        assert f"the data folder '{data}' cannot be used: " in result.err
        assert "--data" in result.err


def test_a_key_that_is_not_set_is_a_loud_warning_and_the_hub_starts(tmp_path: Path) -> None:
    more = {"type": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "NOBODY_SETS_THIS"}
    settings = config(tmp_path)
    settings["providers"]["other"] = more
    with serving(tmp_path, settings) as hub:
        result = finish(hub.process, signal.SIGTERM)
    assert result.code == 0
    assert "WARNING" in result.err
    assert "NOBODY_SETS_THIS is not set" in result.err


def test_a_configuration_is_taken_from_where_one_stands_or_an_example_is_shown(tmp_path: Path) -> None:
    scripted(tmp_path, "sim", SLOW)
    (tmp_path / "dragoman.yaml").write_text(json.dumps(config(tmp_path)))
    process = start("serve", "--data", tmp_path / "data", "--port", "0", cwd=tmp_path)
    read_until(process, "listening on")
    result = finish(process, signal.SIGTERM)
    assert (result.code, "dragoman.yaml; model sim/x" in result.err) == (0, True)
    broken = run("serve", "--config", tmp_path / "none.yaml")
    assert (broken.code, "none.yaml" in broken.err) == (1, True)
    (tmp_path / "wrong.yaml").write_text("modell: a/b")
    wrong = run("serve", "--config", tmp_path / "wrong.yaml")
    assert (wrong.code, "modell" in wrong.err, "Traceback" in wrong.err) == (1, True, False)


def test_logs_are_json_lines_when_asked_for_and_hold_no_keys(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings["providers"]["other"] = {
        "type": "openai",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key_env": "NOBODY_SETS_THIS",
    }
    with serving(tmp_path, settings, "--log-json", "--log-level", "debug") as hub:
        key = hub.key("ada")
        assert get(f"{hub.url}/api/sessions?key={key}", authorization=f"Bearer {key}") == 200
        result = finish(hub.process, signal.SIGTERM)
    lines = [json.loads(line) for line in (*result.out.splitlines(), *result.err.splitlines())]
    assert {"level", "event", "logger", "timestamp"} <= set(lines[0])
    assert any("NOBODY_SETS_THIS" in line["event"] for line in lines)
    assert key not in result.err
    assert "dgm_***" in result.err
    wrong = run("serve", "--log-json", "--config", tmp_path / "none.yaml", "--data", tmp_path / "other")
    assert [json.loads(line)["level"] for line in wrong.err.splitlines()] == ["error"]


def test_operations_of_ones_own_are_served(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dragoman.operations.definitions.decorator import operation\n\n\n"
        '@operation("mine")\ndef greet(name: str) -> str:\n    """Greet."""\n    return f"Hello {name}"\n'
    )
    with serving(tmp_path, config(tmp_path), "--no-auth", "--operations", str(tmp_path / "mine.py")) as hub:
        assert run("ops", "call", "mine.greet", "name=Ada", "--hub", hub.url).out == "Hello Ada\n"
