"""MCP servers as an agent is given them: a path, a command, a URL or a spec, made into specs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TypeAlias
from urllib.parse import urlsplit

from dragoman.errors import ConfigError
from dragoman.mcp.server_spec import RESERVED_NAME, ServerSpec, Transport

McpServer: TypeAlias = str | PurePath | Sequence[str] | ServerSpec
INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")
NAME_LIMIT = 40
INTERPRETERS = {".js": "node", ".mjs": "node", ".cjs": "node", ".ts": "bun"}
GENERIC_LABELS = ("", "localhost", "www", "api", "mcp")


def server_specs(servers: Sequence[McpServer]) -> tuple[ServerSpec, ...]:
    """The servers, each under a name of its own: that of its file, package or host."""
    if isinstance(servers, str | PurePath):
        servers = [servers]
    found: list[ServerSpec] = []
    taken: set[str] = set()
    for each in servers:
        spec = each if isinstance(each, ServerSpec) else server_spec(each, taken)
        if spec.name.lower() in taken:
            raise ConfigError(f"there are two MCP servers named {spec.name!r}; give one another name")
        taken.add(spec.name.lower())
        found.append(spec)
    return tuple(found)


def server_spec(server: str | PurePath | Sequence[str], used_names: set[str]) -> ServerSpec:
    """One server. A URL that ends in /sse speaks SSE, any other Streamable HTTP; the rest is started."""
    if isinstance(server, str) and server.lower().startswith(("http://", "https://")):
        path = urlsplit(server).path.rstrip("/")
        transport: Transport = "sse" if path.endswith("/sse") else "http"
        return ServerSpec(
            name=unique_name(host_label(server), used_names), url=server, transport=transport, trust="always"
        )
    command = parse_command(server)
    return ServerSpec(name=unique_name(command_name(command), used_names), command=command, trust="always")


def parse_command(server: str | PurePath | Sequence[str]) -> tuple[str, ...]:
    """The program and its arguments. A script is run by what its ending says. ConfigError if none."""
    if not isinstance(server, str | PurePath):
        if not server or not all(isinstance(word, str) for word in server):
            raise ConfigError(f"the command of an MCP server is a list of words, got {server!r:.100}")
        return tuple(server)
    text = str(server)
    path = Path(text)
    if path.suffix == ".py":
        return (sys.executable, existing_script(path))
    if path.suffix in INTERPRETERS:
        return (INTERPRETERS[path.suffix], existing_script(path))
    if path.is_file():
        return (str(path.resolve()),)
    words = shlex.split(text)
    if not words:
        raise ConfigError("an MCP server is a path, a command or a URL, got an empty text")
    return tuple(words)


def existing_script(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r} to start as an MCP server")
    return str(path.resolve())


def command_name(command: Sequence[str]) -> str:
    """What a command runs: the script, or the package."""
    words = [word for word in command[1:] if not word.startswith("-")] or [command[0]]
    return PurePath(words[0].rpartition("/")[2] or words[0]).stem


def host_label(url: str) -> str:
    """The word that says most of a host's name."""
    words = (urlsplit(url).hostname or "").split(".")
    telling = [word for word in words[:-1] or words if word not in GENERIC_LABELS and not word.isdecimal()]
    return telling[-1] if telling else "server"


def unique_name(name: str, used_names: set[str]) -> str:
    """The name as a namespace, with a number where it is taken."""
    plain = INVALID_CHARACTERS.sub("_", name).strip("_-")[:NAME_LIMIT] or "server"
    found, number = plain, 2
    while found.lower() in used_names or found.lower() == RESERVED_NAME:
        found, number = f"{plain}_{number}", number + 1
    return found
