"""HTTP hooks: a JSON body is sent to somebody's address, signed, and the JSON answer is read within bounds.

Source: Standard Webhooks 1.0 (headers `webhook-id`, `webhook-timestamp`, `webhook-signature`). The libraries
`standardwebhooks` (Python 1.1.0, npm 1.1.1) and `svix` take what is signed here, and the other way round.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence

from dragoman.errors import ConfigError, ProviderError, Unauthorized
from dragoman.http.address import parse_url
from dragoman.http.transport import Sender, Timeouts
from dragoman.ids import new_id

WEBHOOK_PREFIX = "whsec_"
RESPONSE_LIMIT = 1_000_000
REQUEST_LIMIT = 8_000_000
TOLERANCE = 300.0
MAX_TIMESTAMP_DIGITS = 15  # digits of a time at most


class Webhook:
    """An address that is asked. `secret` signs what is sent; `timeout` is in seconds for all of it.

    Several secrets with spaces between them, which all begin with `whsec_`, all sign: to change a secret.

    ConfigError for an address or a secret that cannot be used. The transport is the caller's to close.
    """

    def __init__(
        self,
        url: str,
        transport: Sender,
        *,
        secret: str | None = None,
        timeout: float = 10.0,
        limit: int = RESPONSE_LIMIT,
    ) -> None:
        try:
            self.host = parse_url(url)[0].authority
        except ProviderError:
            hint = "it should read like https://host/path, and hold no user name or password"
            raise ConfigError("the address of an HTTP hook cannot be used", hint=hint) from None
        self._url = url
        self._transport = transport
        self._keys = () if secret is None else signing_keys(secret)
        self._timeouts = Timeouts(connect=timeout, first_byte=timeout, idle=timeout, total=timeout)
        self._limit = limit

    def __repr__(self) -> str:
        return f"Webhook({self.host!r})"

    async def ask(self, body: bytes, *, now: Callable[[], float] = time.time) -> bytes | None:
        """What is answered; None for a 204. ProviderError when it is not answered properly."""
        if len(body) > REQUEST_LIMIT:
            raise ProviderError(f"the event is too big to be sent to {self.host}", category="bad_request")
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._keys:
            headers |= signature_headers(self._keys, body, id=new_id("msg"), now=now())
        response = await self._transport.send(
            "POST", self._url, headers=headers, body=body, timeouts=self._timeouts
        )
        async with response:
            if response.status not in (200, 201, 204):
                message = f"the hook at {self.host} answered with status {response.status}"
                raise ProviderError(message, category="api_error", upstream_status=response.status)
            answer = await response.read(self._limit)
        return None if response.status == 204 else answer


def signing_keys(secret: str) -> tuple[bytes, ...]:
    """The bytes that sign: of each `whsec_` and base64, or one text as it is. ConfigError otherwise."""
    if not secret.startswith(WEBHOOK_PREFIX):
        if not secret:
            raise ConfigError("the secret of an HTTP hook is empty")
        return (secret.encode(),)
    return tuple(_decode_key(each) for each in secret.split())


def _decode_key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(WEBHOOK_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not key or not secret.startswith(WEBHOOK_PREFIX):
        raise ConfigError(f"the secret of an HTTP hook is no base64 behind {WEBHOOK_PREFIX!r}")
    return key


def signature_headers(keys: Sequence[bytes], body: bytes, *, id: str, now: float) -> dict[str, str]:
    """The headers that say who sent a body, and when."""
    moment = str(int(now))
    return {
        "webhook-id": id,
        "webhook-timestamp": moment,
        "webhook-signature": " ".join(f"v1,{signature(key, body, id=id, timestamp=moment)}" for key in keys),
    }


def signature(key: bytes, body: bytes, *, id: str, timestamp: str) -> str:
    said = b".".join((id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()


def verify_webhook(
    headers: Mapping[str, str], body: bytes, *, secret: str, now: float, tolerance: float = TOLERANCE
) -> None:
    """For whoever serves an HTTP hook: whether the hub sent this, in the last `tolerance` seconds.

    The names of `headers` are in small letters, `now` in unix seconds; of several secrets any will do, and of
    several signatures. Unauthorized when not.
    """
    id, moment = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    timed = moment.isascii() and moment.isdigit() and len(moment) <= MAX_TIMESTAMP_DIGITS
    if not (id and timed) or abs(now - int(moment)) > tolerance:
        raise Unauthorized("the request is not signed, or too old")
    wanted = [f"v1,{signature(key, body, id=id, timestamp=moment)}".encode() for key in signing_keys(secret)]
    given = headers.get("webhook-signature", "").encode(errors="replace").split(b" ")
    if not any(hmac.compare_digest(one, other) for one in wanted for other in given):
        raise Unauthorized("the signature of the request is wrong")
