"""A fake internet: given names and addresses, answered by one server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.http.dialer import AddrInfo, connect_socket
from dragoman.operations import Calls, Context, Operation, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.tools.web.host_policy import WebSettings
from dragoman.tools.web.operations import operations
from tests.waiting import LIMIT

PUBLIC = "93.184.216.34"


class Internet:
    """Names with their answers, the last of which is repeated; and what was asked of it."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]], port: int = 9) -> None:
        self.lookups: list[str] = []
        self.reached: list[list[str]] = []
        self._names = {name: list(answers) for name, answers in names.items()}
        self._port = port

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The next answer for a name."""
        self.lookups.append(host)
        answers = self._names.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def reach(self, places: list[AddrInfo]) -> socket.socket:
        """A socket to the one server, whatever the address is."""
        self.reached.append([place[4][0] for place in places])
        here = ("127.0.0.1", self._port)
        return await connect_socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", here))

    async def fetch(self, url: str, settings: WebSettings | None = None, **input: Any) -> dict[str, Any]:
        """What `web.fetch` gives for a URL of this internet."""
        made = operations(settings or WebSettings(), resolve=self.resolve, open_socket=self.reach)
        return await fetch_with(made, url, **input)


async def fetch_with(made: list[Operation], url: str, **input: Any) -> dict[str, Any]:
    """What `web.fetch` of these operations gives."""
    async with Calls(Registry(*made), MemoryLedger()) as calls, asyncio.timeout(LIMIT):
        return (await calls.call("web.fetch", {"url": url, **input}, context=Context())).to_json()


def home(port: int, **settings: Any) -> WebSettings:
    """Settings under which a server on this machine may be asked."""
    return WebSettings(allow_networks=("127.0.0.1/32",), ports=(port,), **settings)


async def fetch_here(url: str, settings: WebSettings, **input: Any) -> dict[str, Any]:
    """What `web.fetch` gives over real sockets and the system's names."""
    return await fetch_with(operations(settings), url, **input)
