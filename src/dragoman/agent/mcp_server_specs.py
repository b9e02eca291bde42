"""MCP servers as an agent accepts them (a path, a command, a URL, a ServerSpec), made into specs."""

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
    """Return the specs, each with a unique name: that of its file, package or host."""
    if isinstance(servers, str | PurePath):
        servers = [servers]
    specs: list[ServerSpec] = []
    used_names: set[str] = set()
    for server in servers:
        spec = server if isinstance(server, ServerSpec) else server_spec(server, used_names)
        if spec.name.lower() in used_names:
            raise ConfigError(f"there are two MCP servers named {spec.name!r}; rename one of them")
        used_names.add(spec.name.lower())
        specs.append(spec)
    return tuple(specs)


def server_spec(server: str | PurePath | Sequence[str], used_names: set[str]) -> ServerSpec:
    """Return the spec of one server. A URL that ends in /sse uses SSE, any other Streamable HTTP; the rest is
    a command.
    """
    if isinstance(server, str) and server.lower().startswith(("http://", "https://")):
        path = urlsplit(server).path.rstrip("/")
        transport: Transport = "sse" if path.endswith("/sse") else "http"
        return ServerSpec(
            name=unique_name(host_label(server), used_names), url=server, transport=transport, trust="always"
        )
    command = parse_command(server)
    return ServerSpec(name=unique_name(command_name(command), used_names), command=command, trust="always")


def parse_command(server: str | PurePath | Sequence[str]) -> tuple[str, ...]:
    """Return the program and its arguments. The suffix of a script selects its interpreter. Raises
    ConfigError.
    """
    if not isinstance(server, str | PurePath):
        if not server or not all(isinstance(word, str) for word in server):
            raise ConfigError(f"the command of an MCP server must be a list of strings, not {server!r:.100}")
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
        raise ConfigError("an MCP server must be a path, a command or a URL, not an empty string")
    return tuple(words)


def existing_script(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r} to start as an MCP server")
    return str(path.resolve())


def command_name(command: Sequence[str]) -> str:
    """Return what a command runs: the script, or the package."""
    words = [word for word in command[1:] if not word.startswith("-")] or [command[0]]
    return PurePath(words[0].rpartition("/")[2] or words[0]).stem


def host_label(url: str) -> str:
    """Return the most specific label of a host name."""
    words = (urlsplit(url).hostname or "").split(".")
    labels = [word for word in words[:-1] or words if word not in GENERIC_LABELS and not word.isdecimal()]
    return labels[-1] if labels else "server"


def unique_name(name: str, used_names: set[str]) -> str:
    """Return the name as a namespace, with a number if it is used."""
    plain = INVALID_CHARACTERS.sub("_", name).strip("_-")[:NAME_LIMIT] or "server"
    unique, number = plain, 2
    while unique.lower() in used_names or unique.lower() == RESERVED_NAME:
        unique, number = f"{plain}_{number}", number + 1
    return unique
