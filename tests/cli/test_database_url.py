"""The database of a command: `--database`, `DRAGOMAN_DATABASE`, `database:`, and never the password."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.cli.conftest import Run
from tests.cli.program import LIMIT, finish, run, scripted, serving, start
from tests.postgres_server import shared_server

CONFIG = "providers: {{sim: {{type: scripted, script: {script}}}}}\nmodel: sim/x\n{database}"


@pytest.fixture
def url() -> Iterator[str]:
    """A schema of Postgres, whose URL has a password that the server does not ask for."""
    with shared_server().schema(new=True) as schema:
        yield shared_server().url(schema, password="s3cret")


def write_config(folder: Path, database: str = "") -> Path:
    script = scripted(folder, "sim", [{"text": "Good day."}])["script"]
    path = folder / "dragoman.yaml"
    path.write_text(CONFIG.format(script=script, database=database))
    return path


def test_a_hub_on_postgres_serves_and_commands_beside_it_and_after_it_find_its_data(
    url: str, tmp_path: Path
) -> None:
    providers = {"sim": scripted(tmp_path, "sim", [{"text": "Good day."}])}
    config = {"providers": providers, "model": "sim/x", "database": "${HUB_DATABASE}"}
    with serving(tmp_path, config, HUB_DATABASE=url) as hub:
        environment = {"DRAGOMAN_DATABASE": url}
        key = run("keys", "create", "--data", hub.data, "--owner", "ann", env=environment)
        assert (key.code, "database: postgresql://" in key.err) == (0, True)
        head = {"authorization": f"Bearer {key.out.strip()}"}
        message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hello?"}]}
        body = {"id": "s", "messages": [message], "trigger": "submit-message"}
        answer = httpx2.post(f"{hub.url}/api/chat", json=body, headers=head, timeout=LIMIT, trust_env=False)
        assert "Good day." in answer.text
        url_of_search = f"{hub.url}/api/search?q=hello"
        found = httpx2.get(url_of_search, headers=head, timeout=LIMIT, trust_env=False).json()
        assert [each["messageId"] for each in found["found"]] == ["u"]
        status = run("database", "status", "--json", env=environment)
        assert "dragoman" in status.json["usedBy"], status.out
        ended = finish(hub.process, signal.SIGTERM)
    shown = [key.err, status.out, status.err, ended.out, ended.err]
    listed = run("sessions", "list", "--data", hub.data, env=environment)
    assert (listed.code, "ann" in listed.out) == (0, True), (listed.out, listed.err)
    assert not (hub.data / "hub.db").exists()
    assert not [text for text in [*shown, listed.out, listed.err] if "s3cret" in text]


def test_the_option_goes_over_the_variable_and_that_over_the_file(
    url: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, "database: postgresql://ann:s3cret@127.0.0.1:1/file")
    assert "postgresql://ann@127.0.0.1:1/file" in run("check").err
    refused = run("keys", "list")
    assert (refused.code, "postgresql://ann@127.0.0.1:1/file" in refused.err) == (1, True)
    monkeypatch.setenv("DRAGOMAN_DATABASE", url)
    assert run("keys", "create", "--owner", "ann").code == 0
    assert "ann" in run("keys", "list").out
    stopped = run("serve", "--database", "mysql://ann:s3cret@localhost/x")
    assert (stopped.code, "must be a URL that begins with postgresql://" in stopped.err) == (1, True)
    assert "s3cret" not in refused.err + stopped.err


def test_check_says_what_the_database_is(
    url: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path)
    assert run("check", "--json").json["database"] is None
    monkeypatch.setenv("DRAGOMAN_DATABASE", url)
    before = run("check")
    assert (before.code, "none yet; the hub creates them" in before.out) == (0, True)
    run("keys", "create", "--owner", "ann")
    found = run("check", "--json").json["database"]
    assert found["revision"] == found["programRevision"]
    assert found["version"].split(".")[0] >= "13"
    assert abs(found["clockSkew"]) < 60
    assert (found["maxConnections"], found["usedBy"], found["problem"]) == (400, None, None)
    monkeypatch.setenv("DRAGOMAN_DATABASE", shared_server().url("nowhere"))
    refused = run("check")
    assert (refused.code, "search_path" in refused.err) == (1, True)
    assert "s3cret" not in before.out + before.err


def test_without_psycopg_a_hub_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(name='psycopg')")
    process = start(
        "serve",
        "--config",
        write_config(tmp_path),
        "--database",
        "postgresql://localhost/hub",
        "--port",
        "0",
        env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    ended = finish(process)
    assert (ended.code, "pip install 'dragoman[postgres]'" in ended.err) == (1, True)
