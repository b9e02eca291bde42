"""`dragoman init`: the files of a new project, from what is found here or from a LiteLLM configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dragoman.cli.init import command, discovery
from dragoman.cli.init.discovery import find_servers
from dragoman.config import DATABASE_VARIABLE, read_config
from tests.cli.conftest import Run

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY")
SECRET = "sk-proj-4f9a0c1d2e4b5a67"


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys, no servers and no local model."""
    for name in (*KEYS, "OLLAMA_HOST", DATABASE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery, "SERVERS", {})
    monkeypatch.setattr(discovery, "is_installed", lambda: False)


@contextmanager
def model_server(answers: dict[str, Any], **headers: str) -> Iterator[str]:
    """A server that answers these paths with JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path)).encode()
            self.send_response(200 if self.path in answers else 404)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_project_is_written_for_a_key_in_the_environment_and_can_be_served(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    result = run("init", "--yes")
    assert (result.code, "dragoman serve" in result.out) == (0, True)
    assert all(SECRET not in path.read_text() for path in tmp_path.iterdir())
    assert (tmp_path / ".gitignore").read_text() == ".dragoman/\n.env\n"
    checked = run("check", "--json").json
    assert checked["model"].startswith("anthropic/")
    assert checked["providers"][0]["keys"][0]["from"] == "$ANTHROPIC_API_KEY"
    called = run("ops", "call", "days.until", "--input", '{"day": "2000-01-01"}')
    assert int(called.out) < 0


def test_a_configuration_that_is_there_is_replaced_only_by_force(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    (tmp_path / "dragoman.yaml").write_text("model: mine\n")
    (tmp_path / "operations.py").write_text("mine = 1\n")
    (tmp_path / ".gitignore").write_text("*.log\n.env")
    refused = run("init", "--yes")
    assert (refused.code, "--force" in refused.err) == (1, True)
    assert (tmp_path / "dragoman.yaml").read_text() == "model: mine\n"
    assert run("init", "--yes", "--force", "--model", "openai/gpt-5").code == 0
    assert read_config(tmp_path / "dragoman.yaml").model == "openai/gpt-5"
    assert (tmp_path / "operations.py").read_text() == "mine = 1\n"
    assert (tmp_path / ".gitignore").read_text() == "*.log\n.env\n.dragoman/\n"


def test_a_machine_without_any_model_is_told_what_to_do(run: Run, tmp_path: Path) -> None:
    result = run("init", "--yes")
    assert (result.code, "OPENAI_API_KEY" in result.err, list(tmp_path.iterdir())) == (1, True, [])


def test_a_model_of_a_provider_that_is_not_here_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    for model in ("mistral/large", "gpt-5"):
        result = run("init", "--yes", "--model", model)
        assert (result.code, "openai" in result.err) == (1, True)


def test_the_questions_choose_the_model_and_the_operation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: 2)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    result = run("init")
    assert "anthropic/" in result.out
    assert result.out.index("dragoman keys create") < result.out.index("dragoman serve")
    written = read_config(tmp_path / "dragoman.yaml")
    assert (str(written.model).partition("/")[0], written.operations) == ("anthropic", [])
    assert set(written.providers) == {"openai", "anthropic"}
    assert not (tmp_path / "operations.py").exists()


def test_a_server_that_never_ends_its_answer_does_not_hold_up_a_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(b"[" * 65_536)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/v1"
        monkeypatch.setattr(discovery, "SERVERS", {"vllm": ("vLLM", address)})
        assert find_servers({}) == []
    finally:
        server.shutdown()
        server.server_close()


def test_servers_on_this_machine_are_found_with_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"/api/tags": {"models": [{"name": "nomic-embed-text"}, {"name": "qwen3:4b"}]}}
    listed = {"/v1/models": {"data": [{"id": "phi"}]}}
    with (
        model_server(tags) as ollama,
        model_server(listed) as studio,
        model_server(listed, **{"x-dragoman-request-id": "req_1"}) as hub,
        model_server({"/v1/models": {"data": "none"}}) as odd,
    ):
        servers = {
            "ollama": ("Ollama", "http://127.0.0.1:1"),
            "lmstudio": ("LM Studio", f"{studio}/v1"),
            "vllm": ("vLLM", f"{hub}/v1"),
            "llamacpp": ("llama.cpp", f"{odd}/v1"),
        }
        monkeypatch.setattr(discovery, "SERVERS", servers)
        found = find_servers({"OLLAMA_HOST": ollama.removeprefix("http://")})
    assert [(each.default_model, each.fields["type"]) for each in found] == [
        ("ollama/qwen3:4b", "ollama"),
        ("lmstudio/phi", "openai"),
    ]


def test_without_a_configuration_a_hub_uses_the_servers_of_this_machine_and_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_server({"/v1/models": {"data": [{"id": "phi"}]}}) as studio:
        monkeypatch.setattr(discovery, "SERVERS", {"lmstudio": ("LM Studio", f"{studio}/v1")})
        alone = run("check", "--json").json
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        beside = run("check", "--json").json
    source = f"LM Studio at {studio}/v1"
    assert (alone["source"], alone["model"]) == (f"no configuration; {source}", "lmstudio/phi")
    assert beside["source"] == f"no configuration; keys from OPENAI_API_KEY; {source}"
    assert (beside["model"], [each["name"] for each in beside["providers"]]) == (
        "openai/gpt-5-mini",
        ["openai", "lmstudio"],
    )
