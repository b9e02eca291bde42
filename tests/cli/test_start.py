"""What a command line and a hub import when they start: a tenth of a second each, or megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND_LINE = "from dragoman.cli import program; program.build_program()"
ONE_COMMAND = "from dragoman.cli import program; program.build_program('keys')"
DATA_FOLDER = "import dragoman.server.app.offline_api"
HUB = """
import asyncio, pathlib, tempfile
from dragoman.config import parse_config
from dragoman.server.app import Hub

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with Hub.open(parse_config({}), pathlib.Path(folder), require_keys=False):
            pass

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
