"""The programs of examples/library run and print what they should."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples" / "library"
LIMIT = 120.0
KEYS = ("OPENAI_", "ANTHROPIC_", "OLLAMA_")
OUTCOMES = {
    "chat": ["Bonn was the capital.", "success after 1 step", "About 335,000 people."],
    "tools": [
        "calls math_add with {'a': 2, 'b': 2}",
        "calls tools_double with {'a': 21}",
        "4 and 42. (2 calls in 2 steps)",
    ],
    "mcp_stdio": ["mcp_server ready True", 'Take a hat: {"result":"sun in Rome"}.'],
    "budget": [
        "budget_exhausted after 2 steps and $0.022",
        "The budget of 0.04 USD has 0.018000 left; this call may cost 0.020240.",
    ],
    "hooks": [
        "eve@example.com denied mail.send was blocked: mail goes to example.org only",
        "ann@example.org done sent to ann@example.org as number 7",
        'Eve got nothing, Ann: "sent"',
    ],
    "approvals": ["ann tool-output-available", "bob tool-output-denied", "Ann has her money, Bob has not."],
    "subagents": [
        "told: Bonn, on the Rhine.",
        'It was "Bonn, on the Rhine."',
        "success 2 1",
    ],
    "structured": ["City(name='Bonn', people=335000)", "success after 2 steps"],
    "manual": [
        "tool-output-available",
        "tool-output-error",
        "The kitchen has 21.5 degrees; the attic has no sensor.",
    ],
}


def environ() -> dict[str, str]:
    """That of this process, without anybody's keys; the paths of modules are absolute."""
    paths = os.environ.get("PYTHONPATH", "")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(KEYS)}
    absolute = [str(Path(path).absolute()) for path in paths.split(os.pathsep) if path]
    return {**variables, "PYTHONPATH": os.pathsep.join(absolute)} if absolute else variables


def printed(name: str, folder: Path, *arguments: str) -> list[str]:
    """The lines that an example prints, run in an empty folder with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@contextmanager
def served() -> Iterator[str]:
    """The examples' MCP server on a free port; its URL."""
    port = free_port()
    command = [sys.executable, str(EXAMPLES / "mcp_server.py"), "http", str(port)]
    with subprocess.Popen(command, env=environ(), stderr=subprocess.DEVNULL) as server:
        try:
            until_it_listens(port, server)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.kill()


def until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until somebody can be reached there."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)  # nothing else tells that it listens
        else:
            return
    raise AssertionError("the server does not listen")


@pytest.mark.parametrize("name", sorted(OUTCOMES))
def test_an_example_says_what_it_should(name: str, tmp_path: Path) -> None:
    lines = printed(name, tmp_path)
    seen = [line for line in lines if line.startswith("meanwhile: ")]  # as often as it takes long
    assert [line for line in lines if line not in seen] == OUTCOMES[name]
    assert bool(seen) == (name == "subagents")


def test_the_example_of_mcp_over_http_calls_a_server_elsewhere(tmp_path: Path) -> None:
    with served() as url:
        assert printed("mcp_http", tmp_path, url) == [
            "weather ready True",
            'Take a hat: {"result":"sun in Rome"}.',
        ]


def test_there_are_ten_examples_each_under_forty_lines_and_all_are_run() -> None:
    scripts = {path.stem: path.read_text("utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(scripts) == {*OUTCOMES, "mcp_http", "mcp_server"}
    assert {
        name: len(text.splitlines()) for name, text in scripts.items() if len(text.splitlines()) >= 40
    } == {}
