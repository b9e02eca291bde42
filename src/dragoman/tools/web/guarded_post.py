"""Post to a URL that a client has chosen, without reaching addresses that only the hub can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dragoman.errors import BadRequest, CallError, CallTimeout
from dragoman.http.connection import HttpRequest, Timeouts
from dragoman.http.dialer import describe_error
from dragoman.tools.web.connector import CheckedConnector, OpenSocket
from dragoman.tools.web.host_policy import HostPolicy
from dragoman.tools.web.url import Url, parse_url

NO_TIMEOUTS = Timeouts(connect=None, first_byte=None, idle=None)  # the request as a whole has a timeout


class GuardedPost:
    """Posts to addresses that a host policy allows. It follows no redirects and reads no response body."""

    def __init__(
        self, host_policy: HostPolicy, *, timeout: float, open_socket: OpenSocket | None = None
    ) -> None:
        self._host_policy = host_policy
        self._timeout = timeout
        self._connector = CheckedConnector(open_socket)

    def check(self, text: str) -> None:
        """Raise BadRequest or Forbidden for a URL that `post` would refuse, without resolving its name."""
        url = parse_url(text)
        self._host_policy.check_host(url)
        if url.address is not None:
            self._host_policy.check_address(url, url.address)

    async def post(self, text: str, *, headers: Mapping[str, str], body: bytes) -> int:
        """Post a body; return the status.

        Raises BadRequest, Forbidden, CallTimeout, CallError, and ProviderError for a broken connection.
        """
        url = parse_url(text)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._post(url, headers=headers, body=body)
        except TimeoutError:
            raise CallTimeout(f"{url.host!r} did not respond within {self._timeout:g} seconds.") from None

    async def _post(self, url: Url, *, headers: Mapping[str, str], body: bytes) -> int:
        addresses = await self._host_policy.resolve_allowed(url)
        try:
            connection = await self._connector.connect(url, addresses)
        except OSError as error:
            raise CallError(f"Cannot connect to {url.host!r}: {describe_error(error)}") from None
        try:
            head = request_head(url, headers, length=len(body))
            return (await connection.send(HttpRequest(head, body, NO_TIMEOUTS))).status
        finally:
            connection.abort()


def request_head(url: Url, headers: Mapping[str, str], *, length: int) -> bytes:
    """Return the head of a request. Raises BadRequest for a header that cannot be sent."""
    fields = {"host": url.authority, **headers, "content-length": str(length), "connection": "close"}
    for name, value in fields.items():
        if not (value.isascii() and value.isprintable()):
            raise BadRequest(f"the header {name} cannot be sent")
    lines = [f"POST {url.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
