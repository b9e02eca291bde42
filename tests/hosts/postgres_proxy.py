"""A proxy between a host and Postgres whose connections break as those of networks do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from tests.postgres_server import shared_server

SOCKET = ".s.PGSQL.5432"
CLOSED = socket.SHUT_RDWR
CommitFault: TypeAlias = Literal["unsent", "unanswered", "frozen"]
"""What becomes of a commit: it does not reach the server, its answer does not arrive, or all stops before."""
ConnectionUse: TypeAlias = Literal["membership", "writer", "signals", "queue", "reader"]
USES: Mapping[bytes, ConnectionUse] = {
    b"dragoman host ": "membership",
    b"begin_as_host": "writer",
    b"LISTEN ": "signals",
    b".workflow_status": "queue",
}
"""Words in what a host sends that tell what the connection is for; one without them reads."""


def refusal(state: str, message: str) -> bytes:
    """What a server says that takes no connection."""
    body = f"SFATAL\0VFATAL\0C{state}\0M{message}\0\0".encode()
    return b"E" + (len(body) + 4).to_bytes(4, "big") + body


class Link:
    """A connection of a host, and the one to the server that stands for it."""

    def __init__(self, proxy: PostgresProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(str(shared_server().folder / SOCKET))
        self.flows = threading.Event()
        self.flows.set()
        self.use: ConnectionUse = "reader"
        self._is_muted = self._is_claiming = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def cut(self) -> None:
        """Close both ends."""
        self.flows.set()
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(CLOSED)

    def _run(self) -> None:
        answers = threading.Thread(target=self._answer, daemon=True)
        answers.start()
        with self._client, self._server:
            self._send()
            answers.join()

    def _send(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(65_536):
                self.use = next((use for words, use in USES.items() if words in data), self.use)
                fault = self._proxy.take_commit() if self.use == "writer" and b"COMMIT\0" in data else None
                if fault == "unsent":
                    break
                self._is_muted = fault == "unanswered" or self._is_lost_claim(data)
                if self._proxy.on_send(self.use, data):
                    self._proxy.flows.clear()
                self._proxy.flows.wait()
                self.flows.wait()
                self._server.sendall(data)
        self.cut()

    def _is_lost_claim(self, data: bytes) -> bool:
        """Whether a commit by which a host takes a turn from the queue is to remain without an answer."""
        self._is_claiming = self._is_claiming or b"SKIP LOCKED" in data
        if not (self._is_claiming and b"COMMIT" in data and self._proxy.loses_claims):
            return False
        self._proxy.loses_claims = False
        self._proxy.claim_lost.set()
        return True

    def _answer(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(65_536):
                if self._is_muted:
                    break
                self._proxy.flows.wait()
                self._client.sendall(data)
        self.cut()


class PostgresProxy:
    """Takes connections in a folder of its own: `url` is the address for hosts.

    `flows` cleared: nothing arrives any more, at either end, and no connection is closed. `on_commit` is
    asked about each commit of a host, by its number.
    """

    def __init__(self, folder: Path, schema_url: str) -> None:
        folder.mkdir(parents=True)
        server, here = quote(str(shared_server().folder), safe=""), quote(str(folder), safe="")
        self.url = schema_url.replace(server, here)
        self.flows = threading.Event()
        self.flows.set()
        self.on_commit: Callable[[int], CommitFault | None] = lambda _: None
        self.on_send: Callable[[ConnectionUse, bytes], bool] = lambda _use, _data: False
        """Asked about all that a host sends: whether from there on nothing arrives."""
        self.commits = 0
        self.loses_claims = False
        """Whether the answer to the next claim of a queued turn is lost, with its connection."""
        self.claim_lost = threading.Event()
        self.refusal: bytes | None = None
        """What new connections get instead of one to the server."""
        self._guard = threading.Lock()
        self._links: list[Link] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def take_commit(self) -> CommitFault | None:
        """Count a commit; return what becomes of it."""
        with self._guard:
            self.commits += 1
            fault = self.on_commit(self.commits)
            if fault == "frozen":
                self.flows.clear()
            return fault

    def stall(self, *uses: ConnectionUse) -> int:
        """Let the connections there are for these uses carry nothing any more; return how many."""
        stalled = [link for link in self._links if link.use in uses and link.thread.is_alive()]
        for link in stalled:
            link.flows.clear()
        return len(stalled)

    def cut(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.cut()

    def close(self) -> None:
        """Take no more connections, and close all."""
        with suppress(OSError):
            self._listener.shutdown(CLOSED)
        self._listener.close()
        self.flows.set()
        self.cut()
        for link in self._links:
            link.thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                refusal = self.refusal  # read once: the test's thread changes it
                if refusal is None:
                    self._links.append(Link(self, client))
                    continue
                with client, suppress(OSError):  # one that has gone already
                    client.recv(65_536)
                    client.sendall(refusal)


@contextmanager
def proxied(folder: Path, schema_url: str) -> Iterator[PostgresProxy]:
    """A proxy for the hosts of a schema."""
    proxy = PostgresProxy(folder, schema_url)
    try:
        yield proxy
    finally:
        proxy.close()
