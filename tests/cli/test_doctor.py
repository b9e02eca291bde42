"""`dragoman doctor`: what it finds, what it says to do, and that it prints no secret."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dragoman.cli.init import discovery
from tests.cli.conftest import Run
from tests.cli.program import Hub, Said, scripted, serving

SECRET = "sk-proj-8c1d77e0a4b24f6f9a3e5b21"
NOWHERE = "http://127.0.0.1:9"


@contextmanager
def provider(status: int, body: Any, *, date: str | None = None) -> Iterator[str]:
    """A server that answers each request alike; it repeats the key that it got, as some do."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = json.dumps(body).replace("KEY", str(self.headers.get("authorization"))).encode()
            self.send_response_only(status)
            self.send_header("date", date or self.date_time_string())
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def findings(result: Said) -> dict[str, tuple[str, str, str]]:
    """State, message and advice of each check; an error of the command itself fails here."""
    found = {
        each["check"]: (each["state"], each["message"], each["todo"] or "")
        for each in result.json["findings"]
    }
    assert result.json["ok"] == (result.code == 0) == all(row[0] != "failed" for row in found.values())
    assert all(row[2] for row in found.values() if row[0] in ("failed", "warning")), "no advice"
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration whose provider's key is in the environment."""
    monkeypatch.setattr(discovery, "SERVERS", {})
    monkeypatch.setenv("MODEL_KEY", SECRET)
    write_config(tmp_path, "http://127.0.0.1:9/v1")
    return tmp_path


def write_config(folder: Path, address: str) -> None:
    fields = {"type": "openai", "base_url": address, "api_key_env": "MODEL_KEY"}
    config = {"providers": {"up": fields}, "model": "up/any", "database": None}
    (folder / "dragoman.yaml").write_text(json.dumps(config))


@pytest.mark.promise("doctor")
def test_a_healthy_hub_has_no_failures_and_its_model_answers(run: Run, tmp_path: Path) -> None:
    steps = [{"text": "ready", "usage": {"inputTokens": 5, "outputTokens": 1, "totalTokens": 6}}]
    config = {"providers": {"play": scripted(tmp_path, "play", steps)}, "model": "play/x"}
    with serving(tmp_path, config) as hub:
        scopes = [word for scope in ("admin", "chat", "operations", "gateway") for word in ("--scope", scope)]
        key = hub.key("me", *scopes)
        result = run("doctor", "--hub", hub.url, "--key", key, "--data", hub.data, "--ask", "--json")
        found = findings(result)
        states = {
            check: row[0] for check, row in found.items() if check not in ("sandbox", "console", "disk")
        }
        assert states == {
            "configuration": "ok",
            "data folder": "ok",
            "database": "ok",
            "keys": "ok",
            "provider play": "skipped",
            "clock": "skipped",
            "hub": "ok",
            "ready": "ok",
            "key": "ok",
            "streaming": "ok",
            "websockets": "ok",
            "operations": "ok",
            "provider play in the hub": "ok",
            "answer": "ok",
        }
        assert key not in result.out + result.err
        for wrong in ("dgm_0000000000000000000000000000000000000000000", None):
            refused = run("doctor", "--hub", hub.url, "--json", *(["--key", wrong] if wrong else []))
            assert findings(refused)["key"][0] == "failed"
            assert refused.code == 1


@pytest.mark.parametrize(
    ("status", "body", "state", "words"),
    [
        (200, {"data": []}, "ok", "accepts the key"),
        (401, {"error": {"message": "Incorrect API key provided: KEY"}}, "failed", "refused the hub's key"),
        (403, {"error": {"message": "no access"}}, "failed", "no access"),
        (404, {}, "warning", "does not list its models"),
        (500, {"error": {"message": "broken"}}, "failed", "broken"),
    ],
)
def test_a_provider_is_asked_for_its_models_and_its_key_is_never_printed(
    run: Run, project: Path, *, status: int, body: Any, state: str, words: str
) -> None:
    with provider(status, body) as address:
        write_config(project, f"{address}/v1")
        result = run("doctor", "--hub", NOWHERE, "--config", "dragoman.yaml", "--json")
        text = run("doctor", "--hub", NOWHERE, "--config", "dragoman.yaml")
    found = findings(result)["provider up"]
    assert (found[0], words in found[1]) == (state, True), found
    assert SECRET not in result.out + result.err + text.out + text.err


def test_each_thing_that_is_wrong_is_named_with_what_to_do(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODEL_KEY")
    found = findings(run("doctor", "--json"))
    assert (found["provider up"][0], "$MODEL_KEY" in found["provider up"][1]) == ("failed", True)
    assert (found["data folder"][0], found["hub"][0]) == ("skipped", "failed")

    monkeypatch.setenv("MODEL_KEY", SECRET)
    with provider(200, {"data": []}, date="Thu, 01 Jan 2015 00:00:00 GMT") as address:
        write_config(project, f"{address}/v1")
        assert findings(run("doctor", "--json"))["clock"][0] == "failed"
        odd = findings(run("doctor", "--hub", address, "--config", "dragoman.yaml", "--json"))["hub"]
        assert (odd[0], "is not a hub" in odd[1]) == ("failed", True)

    assert run("keys", "create", "--owner", "me").code == 0
    data = project / ".dragoman"
    data.chmod(0o755)
    assert findings(run("doctor", "--json"))["data folder"][0] == "warning"
    data.chmod(0o700)
    file = data / "hub.db"
    with sqlite3.connect(file) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    file.write_bytes(file.read_bytes()[:20_000] + b"\xff" * (file.stat().st_size - 20_000))
    assert findings(run("doctor", "--json"))["database"][0] == "failed"

    (project / "dragoman.yaml").write_text("providers: {up: {type: telegraph}}\n")
    found = findings(run("doctor", "--json"))
    assert (found["configuration"][0], "telegraph" in found["configuration"][1]) == ("failed", True)


def test_without_an_installation_here_only_the_named_hub_is_asked(run: Run, hub: Hub) -> None:
    found = findings(run("doctor", "--hub", hub.url, "--json"))
    assert ("configuration" in found, found["hub"][0], found["streaming"][0]) == (False, "ok", "ok")
