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
from dragoman.mcp.spec import RESERVED, ServerSpec, Transport

McpServer: TypeAlias = str | PurePath | Sequence[str] | ServerSpec
UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
NAME_LIMIT = 40
RUNNERS = {".js": "node", ".mjs": "node", ".cjs": "node", ".ts": "bun"}
NO_NAMES = ("", "localhost", "www", "api", "mcp")


def specs_of(given: Sequence[McpServer]) -> tuple[ServerSpec, ...]:
    """The servers, each under a name of its own: that of its file, package or host."""
    if isinstance(given, str | PurePath):
        given = [given]
    found: list[ServerSpec] = []
    taken: set[str] = set()
    for each in given:
        spec = each if isinstance(each, ServerSpec) else spec_of(each, taken)
        if spec.name.lower() in taken:
            raise ConfigError(f"there are two MCP servers named {spec.name!r}; give one another name")
        taken.add(spec.name.lower())
        found.append(spec)
    return tuple(found)


def spec_of(given: str | PurePath | Sequence[str], taken: set[str]) -> ServerSpec:
    """One server. A URL that ends in /sse speaks SSE, any other Streamable HTTP; the rest is started."""
    if isinstance(given, str) and given.lower().startswith(("http://", "https://")):
        path = urlsplit(given).path.rstrip("/")
        transport: Transport = "sse" if path.endswith("/sse") else "http"
        return ServerSpec(name=fresh(host_of(given), taken), url=given, transport=transport, trust="always")
    command = command_of(given)
    return ServerSpec(name=fresh(title_of(command), taken), command=command, trust="always")


def command_of(given: str | PurePath | Sequence[str]) -> tuple[str, ...]:
    """The program and its arguments. A script is run by what its ending says. ConfigError if none."""
    if not isinstance(given, str | PurePath):
        if not given or not all(isinstance(word, str) for word in given):
            raise ConfigError(f"the command of an MCP server is a list of words, got {given!r:.100}")
        return tuple(given)
    text = str(given)
    path = Path(text)
    if path.suffix == ".py":
        return (sys.executable, existing(path))
    if path.suffix in RUNNERS:
        return (RUNNERS[path.suffix], existing(path))
    if path.is_file():
        return (str(path.resolve()),)
    words = shlex.split(text)
    if not words:
        raise ConfigError("an MCP server is a path, a command or a URL, got an empty text")
    return tuple(words)


def existing(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r} to start as an MCP server")
    return str(path.resolve())


def title_of(command: Sequence[str]) -> str:
    """What a command runs: the script, or the package."""
    words = [word for word in command[1:] if not word.startswith("-")] or [command[0]]
    return PurePath(words[0].rpartition("/")[2] or words[0]).stem


def host_of(url: str) -> str:
    """The word that says most of a host's name."""
    words = (urlsplit(url).hostname or "").split(".")
    telling = [word for word in words[:-1] or words if word not in NO_NAMES and not word.isdecimal()]
    return telling[-1] if telling else "server"


def fresh(name: str, taken: set[str]) -> str:
    """The name as a namespace, with a number where it is taken."""
    plain = UNFIT.sub("_", name).strip("_-")[:NAME_LIMIT] or "server"
    found, number = plain, 2
    while found.lower() in taken or found.lower() == RESERVED:
        found, number = f"{plain}_{number}", number + 1
    return found
