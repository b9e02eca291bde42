"""Webhooks at the ends of runs: signed, tried again, in order, and never to where they may not go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.config import read_config
from dragoman.http.webhook import verify_webhook
from dragoman.runs import webhooks
from dragoman.runs.delivery_limits import PER_OWNER
from dragoman.server.app import Hub
from dragoman.store.webhook_deliveries import WebhookDelivery
from tests.databases import BACKENDS
from tests.flows.background import read_run, send_away, until_state
from tests.providers.servers import accepting
from tests.serving import Served, ask, listening, write_script
from tests.waiting import LIMIT, poll, until

SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="


class Receiver:
    """A server that answers posts with these statuses, then with 204; `got` has what was posted."""

    def __init__(self, statuses: Sequence[int]) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        self.got.append((headers, await reader.readexactly(int(headers["content-length"]))))
        status = self.statuses.pop(0) if self.statuses else 204
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()

    def bodies(self) -> list[Any]:
        return [msgspec.json.decode(body) for _, body in self.got]


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(statuses)
    async with accepting(receiver.answer) as receiver.port:
        yield receiver


def configure(folder: Path, steps: Sequence[Any], **section: Any) -> Path:
    script = write_script(folder, steps, play="once")
    config = {
        "providers": {"sim": {"type": "scripted", "script": str(script)}},
        "model": "sim/any",
        "webhooks": {"secret_env": "HOOK_SECRET", **section},
    }
    path = folder / "dragoman.yaml"
    path.write_bytes(msgspec.json.encode(config))
    return path


@asynccontextmanager
async def hub_of(config: Path, data: Path) -> AsyncIterator[Served]:
    """The hub of a configuration file, served, with the secret in its environment."""
    async with (
        Hub.open(read_config(config), data, require_keys=False, environ={"HOOK_SECRET": SECRET}) as hub,
        listening(hub) as url,
        httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
    ):
        yield Served(hub, url, http)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(webhooks, "BACKOFF", (0.05,))


async def until_delivery(hub: Any, id: str, status: str) -> dict[str, Any]:

    async def look() -> dict[str, Any] | None:
        webhook: dict[str, Any] = (await read_run(hub, id))["webhook"]
        return webhook if webhook["status"] == status else None

    return await poll(look)


@pytest.mark.promise("background-runs")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_the_end_of_a_run_is_posted_signed_and_in_order_and_tried_again(tmp_path: Path) -> None:
    async with receiving(500, 503) as receiver:
        local = {"allow_networks": ["127.0.0.0/8"], "ports": [receiver.port]}
        config = configure(tmp_path, [{"text": "One."}, {"text": "Two."}], **local)
        url = f"http://127.0.0.1:{receiver.port}/hook?token=t0p"
        async with hub_of(config, tmp_path / "hub") as hub:
            ids = [await send_away(hub, "a", webhook=url)]
            ids.append(await send_away(hub, "b", webhook=url, whenBusy="queue"))
            for id in ids:
                await until_delivery(hub, id, "delivered")
            assert (await read_run(hub, ids[0]))["webhook"] == {
                "status": "delivered", "attempts": 3, "error": None
            }  # fmt: skip
        bodies = receiver.bodies()
        assert [body["data"]["runId"] for body in bodies] == [ids[0]] * 3 + [ids[1]]
        assert {body["type"] for body in bodies} == {"run.done"}
        assert bodies[0]["data"]["sessionId"] == "s"
        assert len({headers["webhook-id"] for headers, _ in receiver.got[:3]}) == 1
        for headers, body in receiver.got:
            verify_webhook(headers, body, secret=SECRET, now=time.time())
            assert b"One." not in body


async def test_a_delivery_that_failed_survives_a_restart(tmp_path: Path) -> None:
    async with receiving(*[500] * 2) as receiver:
        local = {"allow_networks": ["127.0.0.0/8"], "ports": [receiver.port]}
        config = configure(tmp_path, [{"text": "One."}], url=f"http://127.0.0.1:{receiver.port}/", **local)
        async with hub_of(config, tmp_path / "hub") as hub:
            id = await send_away(hub)
            await until_state(hub, id, "done")
        config = configure(tmp_path, [], **local)
        async with hub_of(config, tmp_path / "hub") as hub:
            await until_delivery(hub, id, "delivered")
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


async def test_a_delivery_is_given_up_with_a_reason_that_does_not_name_the_address(tmp_path: Path) -> None:
    async with receiving(*[500] * 9) as receiver:
        local = {"allow_networks": ["127.0.0.0/8"], "ports": [receiver.port], "attempts": 3}
        config = configure(tmp_path, [{"text": "One."}], **local)
        async with hub_of(config, tmp_path / "hub") as hub:
            id = await send_away(hub, webhook=f"http://127.0.0.1:{receiver.port}/?token=t0p")
            found = await until_delivery(hub, id, "failed")
        assert found == {"status": "failed", "attempts": 3, "error": "the receiver answered with status 500"}


async def test_nothing_is_posted_to_an_address_that_is_not_public(tmp_path: Path) -> None:
    async with receiving() as receiver:
        config = configure(tmp_path, [{"text": "One."}], ports=[receiver.port], attempts=1)
        async with hub_of(config, tmp_path / "hub") as hub:
            id = await send_away(hub, webhook=f"http://127.0.0.1:{receiver.port}/")
            found = await until_delivery(hub, id, "failed")
            assert "not on the public internet" in found["error"]
            body = ask("b", background=True, webhook="file:///etc/passwd")
            assert (await hub.http.post("/api/chat", json=body)).status_code == 400
        assert receiver.got == []


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_receivers_that_never_answer_do_not_delay_those_of_another_owner(tmp_path: Path) -> None:
    accepted: list[object] = []
    over = asyncio.Event()

    async def stay_silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        await over.wait()
        writer.close()

    async with receiving() as receiver, accepting(stay_silent) as silent_port:
        ports = {"slow": silent_port, "quick": receiver.port}
        local = {"allow_networks": ["127.0.0.0/8"], "ports": list(ports.values())}
        async with hub_of(configure(tmp_path, [{"text": "One."}], **local), tmp_path / "hub") as hub:
            run_id = await send_away(hub, "a")
            await until_state(hub, run_id, "done")
            for owner, number in (*(("slow", number) for number in range(200)), ("quick", 0)):
                await insert_delivery(hub, run_id, owner=owner, id=f"{owner}{number}", port=ports[owner])
            async with asyncio.timeout(LIMIT):
                while not (receiver.got and accepted):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert len(accepted) <= PER_OWNER
            over.set()


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_an_attempt_that_ends_after_a_later_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LEASE", 0.0)  # as if the first one took longer than that
    requests: list[asyncio.StreamWriter] = []
    both = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        requests.append(writer)
        if len(requests) == 1:
            await both.wait()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % (500 if writer is requests[0] else 204))
        writer.close()

    receiver = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = receiver.sockets[0].getsockname()[1]
    local = {"allow_networks": ["127.0.0.0/8"], "ports": [port]}
    async with receiver, hub_of(configure(tmp_path, [{"text": "One."}], **local), tmp_path / "hub") as hub:
        deliveries, ends = hub.hub.store.webhooks, list[bool]()
        end = deliveries.end

        async def end_and_note(*arguments: Any, **options: Any) -> bool:
            ends.append(await end(*arguments, **options))
            return ends[-1]

        monkeypatch.setattr(deliveries, "end", end_and_note)
        id = await send_away(hub, "a", webhook=f"http://127.0.0.1:{port}/")
        delivered = await until_delivery(hub, id, "delivered")
        await until(lambda: True in ends)
        later = len(ends)
        both.set()
        await until(lambda: len(ends) >= len(requests))
        assert ends.count(True) == 1
        assert not any(ends[later:]), "the first one"
        assert (await read_run(hub, id))["webhook"] == delivered


async def insert_delivery(hub: Served, run_id: str, *, owner: str, id: str, port: int) -> None:
    """Queue a delivery of a run that has ended, as if it were of another owner."""
    now = time.time()
    delivery = WebhookDelivery(
        id=id,
        run_id=run_id,
        session_id=id,
        owner=owner,
        url=f"http://127.0.0.1:{port}/",
        next_at=now - 10 if owner == "slow" else now,
        created_at=now,
    )
    webhooks_of = hub.hub.store.webhooks
    await hub.hub.store.database.write(lambda connection: webhooks_of.insert(connection, delivery))
