"""Awaiting on behalf of a client ends when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest
from starlette.types import Message

from dragoman.flag import Flag
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectSource, DisconnectWatch
from dragoman.server.http.response_cycle import LeanFlowControl, ResponseCycle
from tests.waiting import LIMIT, until

GONE: Message = {"type": "http.disconnect"}
MORE: Message = {"type": "http.request", "body": b"", "more_body": False}


class Client:
    """The other end of an exchange."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.watched = 0
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
        self.exchange = Exchange(scope, self._receive, self._send)

    def leave(self) -> None:
        self.messages.put_nowait(GONE)

    async def _receive(self) -> Message:
        self.watched += 1
        try:
            return await self.messages.get()
        finally:
            self.watched -= 1

    async def _send(self, _: Message) -> None:
        return None


async def wait(*, ended: list[str]) -> None:
    """Work that never ends by itself."""
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise


async def run(client: Client, work: Callable[[DisconnectWatch], Awaitable[None]]) -> DisconnectWatch:
    """Do the work while the client is there, as a request's own task."""
    presence = DisconnectWatch(client.exchange)

    async def serve() -> None:
        with presence:
            await work(presence)
        await asyncio.sleep(0)  # nothing of the cancelling is left

    await asyncio.wait_for(asyncio.ensure_future(serve()), LIMIT)
    return presence


async def test_a_client_that_goes_ends_the_work_and_is_no_error() -> None:
    client, ended = Client(), list[str]()
    client.messages.put_nowait(MORE)  # what still comes of a request says nothing
    client.leave()
    presence = await run(client, lambda _: wait(ended=ended))
    assert (presence.disconnected, ended) == (True, ["cancelled"])


async def test_work_that_ends_by_itself_is_left_alone_and_nobody_watches_any_more() -> None:
    client, done = Client(), list[str]()

    async def work(_: DisconnectWatch) -> None:
        await until(lambda: client.watched == 1)
        done.append("done")

    presence = await run(client, work)
    await until(lambda: client.watched == 0)
    assert (presence.disconnected, done) == (False, ["done"])


async def test_the_end_of_the_channel_behind_the_last_of_an_answer_is_no_going() -> None:
    client, done = Client(), list[str]()

    async def work(presence: DisconnectWatch) -> None:
        await until(lambda: client.watched == 1)
        presence.response_complete = True
        client.leave()
        await until(lambda: client.watched == 0)
        await asyncio.sleep(0)
        done.append("sent")

    presence = await run(client, work)
    assert (presence.disconnected, done) == (False, ["sent"])


async def test_work_may_settle_what_it_has_done_before_it_ends() -> None:
    client, messages = Client(), list[str]()
    client.leave()

    async def work(presence: DisconnectWatch) -> None:
        try:
            await wait(ended=messages)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            messages.append(f"settled, gone: {presence.disconnected}")
            raise

    await run(client, work)
    assert messages == ["cancelled", "settled, gone: True"]


async def test_an_error_of_the_work_is_raised_also_when_the_client_goes() -> None:
    client = Client()

    async def work(_: DisconnectWatch) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run(client, work)

    async def fails_while_leaving(_: DisconnectWatch) -> None:
        try:
            await wait(ended=[])
        except asyncio.CancelledError:
            raise ValueError("broken") from None

    client.leave()
    with pytest.raises(ValueError, match="broken"):
        await run(client, fails_while_leaving)


async def test_being_cancelled_by_others_is_passed_on() -> None:
    client, ended = Client(), list[str]()
    presence = DisconnectWatch(client.exchange)

    async def serve() -> None:
        with presence:
            await wait(ended=ended)

    task = asyncio.ensure_future(serve())
    await until(lambda: client.watched == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: client.watched == 0)
    assert (presence.disconnected, ended) == (False, ["cancelled"])


class CallingClient(DisconnectSource):
    """The other end of an exchange whose server calls back."""

    def __init__(self, *, calls_back: bool = True) -> None:
        self.calls_back = calls_back
        self.callback: Callable[[], None] | None = None
        self.received = 0
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
        self.exchange = Exchange(scope, self.receive, self._send)

    def watch_disconnect(self, callback: Callable[[], None] | None) -> bool:
        self.callback = callback if self.calls_back else None
        return self.callback is not None

    async def receive(self) -> Message:
        self.received += 1
        return GONE

    async def _send(self, _: Message) -> None:
        return None


@pytest.mark.parametrize("calls_back", [True, False])
async def test_a_server_that_calls_back_is_not_asked_by_a_task(calls_back: bool) -> None:
    client, ended = CallingClient(calls_back=calls_back), list[str]()
    presence = DisconnectWatch(client.exchange, at_once=True)

    async def serve() -> None:
        with presence:
            if client.callback is not None:
                asyncio.get_running_loop().call_soon(client.callback)
            await wait(ended=ended)

    await asyncio.wait_for(asyncio.ensure_future(serve()), LIMIT)
    assert (presence.disconnected, ended) == (True, ["cancelled"])
    assert (client.received, client.callback) == (0 if calls_back else 1, None)


def make_cycle() -> ResponseCycle:
    """A request whose body has not been received yet."""
    transport = cast(asyncio.Transport, object())
    log = logging.getLogger(__name__)
    return ResponseCycle(
        scope=cast(Any, {"type": "http"}),
        transport=transport,
        flow=LeanFlowControl(transport),
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[],
        message_event=cast(asyncio.Event, Flag()),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


async def test_a_server_calls_back_once_the_client_has_gone_and_not_when_the_response_is_complete() -> None:
    calls: list[str] = []
    for end in ("disconnected", "response_complete"):
        cycle = make_cycle()
        assert not cycle.watch_disconnect(lambda: calls.append("early"))  # the body has not been received
        cycle.more_body = False
        assert cycle.watch_disconnect(partial(calls.append, end))
        setattr(cycle, end, True)
        cycle.message_event.set()
        assert not cycle.watch_disconnect(lambda: calls.append("late"))
    forgotten = make_cycle()
    forgotten.more_body = False
    assert forgotten.watch_disconnect(lambda: calls.append("forgotten"))
    forgotten.watch_disconnect(None)
    forgotten.disconnected = True
    forgotten.message_event.set()
    assert calls == ["disconnected"]
