"""Measures how long a run waits when its host is killed: until its model is asked again elsewhere.

Two hosts are processes of this machine on one Postgres. Each round begins an answer that never ends,
kills its host (`kill -9`), waits until the model is asked by the other one, and starts a host in its place.

examples
  python benchmarks/takeover.py               25 kills, about two minutes
  python benchmarks/takeover.py --kills 100
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from tests.clients import hub as hubs
from tests.clients.hub import Hub
from tests.databases import VARIABLE
from tests.postgres_server import PostgresServer

DURABLE = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on"}
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
PAUSE = 0.1  # seconds between two chunks
LIMIT = 60.0  # seconds after which a takeover counts as failed
KILLS = 25


class Model(ThreadingHTTPServer):
    """A model server that never ends an answer; it knows when it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.times: list[float] = []
        self.changed = threading.Condition()

    def note(self) -> None:
        """Note that it is asked now."""
        with self.changed:
            self.times.append(time.monotonic())
            self.changed.notify_all()

    def wait(self, count: int) -> float:
        """Return when it was asked for the last time, once that is the `count`-th."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.times) >= count, timeout=LIMIT):
                raise SystemExit(f"the model was not asked again within {LIMIT:.0f} s")
            return self.times[count - 1]


class Answer(BaseHTTPRequestHandler):
    """Streams words until its client is gone."""

    def do_POST(self) -> None:
        """Answer a request."""
        self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Model)
        self.server.note()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(CHUNK)
                self.wfile.flush()
                time.sleep(PAUSE)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def running_model() -> Iterator[Model]:
    """A model server, served by threads."""
    with Model() as model:
        threading.Thread(target=model.serve_forever, daemon=True).start()
        try:
            yield model
        finally:
            model.shutdown()


def measure(kills: int) -> Sequence[float]:
    """Return the seconds of each takeover, shortest first."""
    server = PostgresServer(DURABLE)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="takeover-") as folder,
            server.schema() as schema,
            running_model() as model,
            ExitStack() as stack,
        ):
            url = f"http://127.0.0.1:{model.server_address[1]}/v1"
            provider = {"type": "openai", "base_url": url}
            config = {"providers": {"up": provider}, "model": "up/any"}
            place, environ = Path(folder), {VARIABLE: server.url(schema)}

            def start(name: str) -> Hub:
                return hubs.start(place / name, config, key="", environ=environ)

            hosts = [start("first"), start("second")]
            stack.callback(lambda: [host.stop() for host in hosts])
            return sorted(kill_one(hosts, at, model=model, start=start) for at in range(kills))
    finally:
        server.close()


def kill_one(hosts: list[Hub], number: int, *, model: Model, start: Callable[[str], Hub]) -> float:
    """Kill the host of a run; return the seconds until its model was asked again. Start another host."""
    victim, other = hosts
    session, before = f"s{number}", len(model.times)
    message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    body = {"id": session, "messages": [message], "trigger": "submit-message", "background": True}
    status, answer = victim.request("POST", "/api/chat", body)
    assert status == 202, answer
    model.wait(before + 1)
    time.sleep(random.uniform(0.2, 1.2))  # anywhere between two ticks
    killed_at = time.monotonic()
    victim.process.kill()
    taken = model.wait(before + 2) - killed_at
    other.request("POST", f"/api/sessions/{session}/stop")
    victim.stop()
    hosts[:] = [other, start(f"again-{number}")]
    return taken


def main() -> None:
    """Measure, and print the distribution."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=KILLS)
    found = measure(parser.parse_args().kills)
    print(f"kill -9 until the model is asked again, {len(found)} kills, seconds:")
    for label, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        print(f"  {label}  {quantile(found, share):.2f}")


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which this share of ordered values is."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    main()
