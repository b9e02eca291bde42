"""A client for the internal listeners of other hosts.

Each host writes its address and a token into its row of `hosts`; whoever can read the database may call it.
The paths are those of `server/internal/routes.py`.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from dragoman.errors import (
    DragomanError,
    HostGone,
    HostUnreachable,
    ProviderError,
    StoreError,
    WireError,
    error_for_status,
)
from dragoman.http.transport import Response, Timeouts, Transport
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.store.hosts.hosts import HostRecord, HostRepository

KEEP_ALIVE = 2.0  # seconds without output after which a host sends an empty line in a streamed response
TIMEOUTS = Timeouts(connect=5.0, first_byte=30.0, idle=15.0)
MAX_RESPONSE = 64_000_000  # bytes
MAX_ERROR = 65_536
ANY_VALUE = msgspec.json.Decoder(Any)
T = TypeVar("T")
URL_HINT = "hosts call each other over HTTP: set `hosts.listen` or `hosts.url` in its dragoman.yaml"


class HostClient:
    """Sends requests to other hosts, by their ids. Use it in the event loop that made it."""

    def __init__(self, hosts: HostRepository, *, timeouts: Timeouts = TIMEOUTS) -> None:
        self._hosts = hosts
        self._timeouts = timeouts
        self._transport = Transport(timeouts=timeouts)
        self._records: dict[str, HostRecord] = {}

    async def stream(
        self, host: str, path: str, *, body: Any = None, timeouts: Timeouts | None = None
    ) -> Response:
        """Send a request and return its response before its body has arrived; the caller reads or aborts it.

        Without `body` it is a GET, else a POST with the body as JSON. Raises HostGone when the host has ended
        or was declared dead, HostUnreachable when it does not answer, and the error in an error response.
        """
        response = await self._send(
            host, path, method="GET" if body is None else "POST", body=body, timeouts=timeouts
        )
        if response.status != HTTPStatus.OK:
            raise await self._refusal(host, response)
        return response

    async def post(self, host: str, path: str, *, body: Any = None, timeouts: Timeouts | None = None) -> Any:
        """POST a value as JSON; return the value of the response. Raises the errors of `stream`."""
        response = await self._send(host, path, method="POST", body=body, timeouts=timeouts)
        if response.status != HTTPStatus.OK:
            raise await self._refusal(host, response)
        return await self.read(host, response, decoder=ANY_VALUE)

    async def read(self, host: str, response: Response, *, decoder: msgspec.json.Decoder[T]) -> T:
        """Return the value in a response. Raises HostUnreachable if it is cut short or not such a value."""
        try:
            raw = await response.read(MAX_RESPONSE)
            return await offload(weigh(raw), lambda: decode_json(raw or b"null", decoder))
        except ProviderError as error:
            raise self.unreachable(host, error) from None
        except DECODE_ERRORS as error:
            raise self.unreachable(host, WireError(f"its response cannot be read ({error})")) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    def forget(self, host: str) -> None:
        """Read the host's row again at the next request."""
        self._records.pop(host, None)

    def unreachable(self, host: str, error: DragomanError) -> HostUnreachable:
        """Return the error for a host whose connection failed; its row is read again at the next request."""
        self.forget(host)
        return HostUnreachable(f"the host {host!r} does not answer: {error.message}", hint=URL_HINT)

    async def _send(
        self, host: str, path: str, *, method: str, body: Any, timeouts: Timeouts | None
    ) -> Response:
        """Send a request, and repeat it once if the host has a new address.

        The response may have an error status. Raises the errors of `stream`.
        """
        record = await self._find(host)
        try:
            response = await self._send_to(record, path, method=method, body=body, timeouts=timeouts)
            if response.status != HTTPStatus.UNAUTHORIZED:
                return response
            failure = await self._refusal(host, response)
        except ProviderError as error:
            failure = self.unreachable(host, error)
        with suppress(StoreError):
            moved = await self._find(host)
            if (moved.url, moved.token) != (record.url, record.token):
                try:
                    return await self._send_to(moved, path, method=method, body=body, timeouts=timeouts)
                except ProviderError as error:
                    failure = self.unreachable(host, error)
        self.forget(host)
        raise failure

    async def _send_to(
        self, record: HostRecord, path: str, *, method: str, body: Any, timeouts: Timeouts | None
    ) -> Response:
        headers = {"authorization": f"Bearer {record.token}"}
        payload = b""
        if body is not None:
            headers["content-type"] = "application/json"
            payload = msgspec.json.encode(body)
        url = f"{record.url}{path}"
        return await self._transport.send(
            method, url, headers=headers, body=payload, timeouts=timeouts or self._timeouts
        )

    async def _find(self, host: str) -> HostRecord:
        record = self._records.get(host)
        if record is None:
            record = await self._hosts.get(host)
            if record is None or record.fenced_at is not None:
                raise HostGone(f"the host {host!r} has ended")
            if record.url is None or record.token is None:
                raise HostUnreachable(f"the host {host!r} has not published its address yet", hint=URL_HINT)
            self._records[host] = record
        return record

    async def _refusal(self, host: str, response: Response) -> DragomanError:
        """Return the error in a response; HostUnreachable if another server answers at this address."""
        stranger = WireError(f"the response with status {response.status} is not from a host of this hub")
        if response.status < HTTPStatus.BAD_REQUEST:  # a redirect is not followed: it would get the token
            response.abort()
            return self.unreachable(host, stranger)
        try:
            error = decode_json(await response.read(MAX_ERROR))["error"]
            message, hint = str(error["message"]), error.get("hint") and str(error["hint"])
        except ProviderError as error:
            return self.unreachable(host, error)
        except (KeyError, TypeError, AttributeError, *DECODE_ERRORS):
            return self.unreachable(host, stranger)
        refusal = error_for_status(response.status, message, hint=hint)
        return self.unreachable(host, refusal) if response.status == HTTPStatus.UNAUTHORIZED else refusal
