"""What a command line and a hub import when they start: a tenth of a second each, or megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dragoman.cli.main import main
from tests.cli.program import LIMIT

COMMAND_LINE = "from dragoman.cli import program; program.build_program()"
ONE_COMMAND = "from dragoman.cli import program; program.build_program('keys')"
DATA_FOLDER = "import dragoman.server.app.offline_api"
HUB = """
import asyncio, pathlib, tempfile
from dragoman.config import parse_config
from dragoman.server.app import Hub

async def main():
    with tempfile.TemporaryDirectory() as folder:
        provider = {"type": "openai", "base_url": "http://127.0.0.1:9/v1"}
        config = parse_config({"providers": {"up": provider}})
        async with Hub.open(config, pathlib.Path(folder), require_keys=False):
            await asyncio.sleep(0)  # background jobs begin

asyncio.run(main())
"""
ONLY_COMMANDS = {
    "alembic",
    "jsonschema_rs",
    "prompt_toolkit",
    "pydantic",
    "rich",
    "sqlalchemy",
    "starlette",
    "yaml",
}


@pytest.mark.parametrize(
    ("program", "unneeded"),
    [
        pytest.param("import dragoman", {"asyncio", "msgspec", "dragoman.errors"}, id="the library"),
        pytest.param(COMMAND_LINE, {*ONLY_COMMANDS, "uvicorn", "websockets"}, id="help of all commands"),
        pytest.param(ONE_COMMAND, {*ONLY_COMMANDS, "dragoman.cli.ops", "dragoman.cli.mcp"}, id="one command"),
        pytest.param(
            DATA_FOLDER,
            {"dragoman.server.app.hub", "dragoman.tools.builtin", "mcp", "opentelemetry", "uvicorn"},
            id="a command that reads a data folder",
        ),
        pytest.param(
            HUB,
            {
                "genai_prices",
                "jsonschema_rs",
                "mcp",
                "opentelemetry",
                "prometheus_client",
                "psycopg",
                "rich",
                "snowballstemmer",
            },
            id="a hub",
        ),
    ],
)
def test_what_starts_does_not_import_what_it_does_not_need(
    program: str, unneeded: set[str], tmp_path: Path
) -> None:
    shown = f"{program}\nimport sys\nprint(*sorted({unneeded!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", shown], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("\n", "")


class InterruptedModule(ModuleType):
    """A module during whose import somebody presses Ctrl-C."""

    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt


def test_ctrl_c_during_the_imports_of_a_command_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dragoman.cli.program", InterruptedModule("dragoman.cli.program"))
    with pytest.raises(SystemExit) as ended:
        main(["keys", "list"])
    assert ended.value.code == 130
    assert ended.value.__suppress_context__


CLOSED = """
import os, sys
for number in (0, 1, 2):
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None  # as Python starts without them
from dragoman.cli.terminal import prepare_streams
prepare_streams()
assert [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)] == [0, 1, 2]
from dragoman.cli import main
sys.argv = ["dragoman", "ops", "list"]
main()
"""


def test_a_command_whose_streams_are_closed_does_its_work(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CLOSED], check=True, cwd=tmp_path, timeout=LIMIT)
