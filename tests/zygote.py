"""Forks programs from a process that has already imported the package.

Loading takes a second of processor time, and the tests start the program some hundred times. `make soak`
and `make coverage` start every program anew, and `make test` what is neither the program, nor a script of the
tests, nor an example of the documentation.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import pkgutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import typer.main

import dragoman
from tests.certificates import trust_no_certificates
from tests.forking import ROOT, STRICT, ForkServer, serve

PROGRAM = [sys.executable, "-m", "dragoman"]
INSTALLED = str(Path(sysconfig.get_path("scripts")) / "dragoman")
SCRIPTS = (Path(__file__).parent, ROOT / "examples")
PACKAGES = ("cli", "server", "mcp", "spokes")
SDK = ("mcp.server.mcpserver", "uvicorn")  # what the MCP servers of tests and examples import besides
HOSTS = "dragoman.runs.dbos_engine"  # what hubs on Postgres import besides; the tests themselves have no DBOS
HARMLESS = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")

loaded_server: tuple[socket.socket, int] | None = None  # of a process that tests/loaded_workers.py has forked


class Zygote(ForkServer):
    """The process that forks programs."""

    def __init__(self) -> None:
        super().__init__("tests.zygote", fits)
        if loaded_server is not None:
            self.adopt(*loaded_server)

    def install(self) -> None:
        """From now on `subprocess` asks here for what can be forked, and commands are built once."""
        build_commands_once()
        super().install()


def build_commands_once() -> None:
    """Typer builds all commands anew at each call, which costs more than most of them do."""
    typer.main.get_command = functools.cache(typer.main.get_command)


def fits(args: Any, env: Mapping[str, str]) -> bool:
    """Whether this is the program or a script of the tests, under the settings of Python that forks have."""

    def settings(environ: Mapping[str, str]) -> Mapping[str, str]:
        return {
            name: value
            for name, value in environ.items()
            if name.startswith("PYTHON") and name not in HARMLESS
        }

    is_ours = list(args[:3]) == PROGRAM or os.fspath(args[0]) == INSTALLED or is_script(args)
    return is_ours and settings(env) == settings(os.environ)


def is_script(args: Any) -> bool:
    """Whether this is Python with a program of the tests, or any script whose warnings are errors."""
    if list(args[:3]) == STRICT:
        return len(args) > 3 and os.fspath(args[3]).endswith(".py")
    is_python = len(args) > 1 and args[0] == sys.executable
    is_module = list(args[1:2]) == ["-m"] and len(args) > 2 and args[2].startswith("tests.")
    return is_python and (is_module or any(folder in Path(args[1]).parents for folder in SCRIPTS))


def load() -> None:
    """Import what the program imports, also what it imports late."""
    for package in PACKAGES:
        found = importlib.import_module(f"dragoman.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in SDK:
        importlib.import_module(name)
    with suppress(ImportError):
        importlib.import_module(HOSTS)
    for name in dragoman.__all__:
        getattr(dragoman, name)
    build_commands_once()
    build_all_commands()
    asyncio.run(open_hub())
    compile_statements()
    compile_copies()
    trust_no_certificates(ROOT / "tests")


def build_all_commands() -> None:
    """Build the program of each command, which reads the types of its parameters, and that of `--help`."""
    program = importlib.import_module("dragoman.cli.program")
    for name in ("", *program.COMMANDS, *program.GROUPS):
        typer.main.get_command(program.build_program(name))


async def open_hub() -> None:
    """Open a hub, which makes what a start makes once per process."""
    config = importlib.import_module("dragoman.config").parse_config({})
    hubs = importlib.import_module("dragoman.server.app").Hub
    with tempfile.TemporaryDirectory() as folder:
        async with hubs.open(config, Path(folder), require_keys=False, environ={}):
            pass
    vars(tempfile)["tempdir"] = None  # found anew: each process has a TMPDIR of its own


def compile_statements() -> None:
    """Compile all SQL, so that no process that is forked has to. That of Postgres needs no server."""
    sqlite = importlib.import_module("dragoman.store.sqlite").SQLiteBackend
    postgres = importlib.import_module("dragoman.store.postgres.backend").PostgresBackend
    compiled = importlib.import_module("dragoman.store.database").COMPILED
    for backend in (sqlite(Path("none")), postgres("postgresql:///none")):
        for kind in statement_classes():
            compiled[type(backend), kind] = kind(backend)


def compile_copies() -> None:
    """Compile the statements that copy databases, which takes longer than the copies of tests."""
    copy = importlib.import_module("dragoman.store.maintenance.copy")
    sqlite = importlib.import_module("dragoman.store.sqlite").SQLiteBackend(Path("none"))
    postgres = importlib.import_module("dragoman.store.postgres.backend").PostgresBackend(
        "postgresql:///none"
    )
    for source, target in product((sqlite, postgres), repeat=2):
        for table in copy.TABLES:
            copy.table_copy(table, source=source, target=target)


def statement_classes() -> Iterator[type]:
    """The classes that hold the compiled SQL of a part of the store."""
    store = importlib.import_module("dragoman.store")
    for module in pkgutil.walk_packages(store.__path__, f"{store.__name__}."):
        if ".migrations" in module.name:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            is_holder = isinstance(value, type) and value.__name__.endswith("Statements")
            if is_holder and list(inspect.signature(value).parameters) == ["compiler"]:
                yield value


if __name__ == "__main__":
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))
