"""Signed webhooks: post a JSON body, read the JSON response; sign and verify.

Source: Standard Webhooks 1.0 (headers `webhook-id`, `webhook-timestamp`, `webhook-signature`). Interoperates
with `standardwebhooks` (Python 1.1.0, npm 1.1.1) and `svix` in both directions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence

from dragoman.errors import ConfigError, ProviderError, Unauthorized
from dragoman.http.transport import Sender, Timeouts
from dragoman.http.url_and_proxy import parse_url
from dragoman.ids import new_id
from dragoman.json_decoding import parse_digits

WEBHOOK_PREFIX = "whsec_"
RESPONSE_LIMIT = 1_000_000  # bytes
REQUEST_LIMIT = 8_000_000  # bytes
TOLERANCE = 300.0  # seconds between signing and verifying


class Webhook:
    """A webhook URL. `secret` signs requests; `timeout` is in seconds and covers the whole exchange.

    `secret` may hold several `whsec_` secrets separated by spaces; each adds a signature, so that a secret
    can be rotated. Raises ConfigError for an invalid URL or secret. The caller closes the transport.
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
            hint = "write it like https://host/path, without a user name or password"
            raise ConfigError("the URL of an HTTP hook is not valid", hint=hint) from None
        self._url = url
        self._transport = transport
        self._keys = () if secret is None else signing_keys(secret)
        self._timeouts = Timeouts(connect=timeout, first_byte=timeout, idle=timeout, total=timeout)
        self._limit = limit

    def __repr__(self) -> str:
        return f"Webhook({self.host!r})"

    async def ask(self, body: bytes, *, now: Callable[[], float] = time.time) -> bytes | None:
        """Post a body; return the response body, None for a 204.

        Raises ProviderError for a failed request, and for a status other than 200, 201 and 204.
        """
        if len(body) > REQUEST_LIMIT:
            raise ProviderError(
                f"the event is larger than {REQUEST_LIMIT} bytes and was not sent to {self.host}",
                category="bad_request",
            )
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
    """Return the signing keys of a secret: several `whsec_` keys in base64, or one text used as it is.

    Raises ConfigError for an invalid secret.
    """
    if not secret.startswith(WEBHOOK_PREFIX):
        if not secret:
            raise ConfigError("the secret of an HTTP hook is empty")
        return (secret.encode(),)
    return tuple(_decode_key(part) for part in secret.split())


def _decode_key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(WEBHOOK_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not key or not secret.startswith(WEBHOOK_PREFIX):
        raise ConfigError(f"the secret of an HTTP hook is not valid base64 after {WEBHOOK_PREFIX!r}")
    return key


def signature_headers(keys: Sequence[bytes], body: bytes, *, id: str, now: float) -> dict[str, str]:
    """Return the signature headers of a body."""
    timestamp = str(int(now))
    return {
        "webhook-id": id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(
            f"v1,{signature(key, body, id=id, timestamp=timestamp)}" for key in keys
        ),
    }


def signature(key: bytes, body: bytes, *, id: str, timestamp: str) -> str:
    signed_content = b".".join((id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.new(key, signed_content, hashlib.sha256).digest()).decode()


def verify_webhook(
    headers: Mapping[str, str], body: bytes, *, secret: str, now: float, tolerance: float = TOLERANCE
) -> None:
    """Verify that the hub signed a request within `tolerance` seconds of `now`. For servers of HTTP hooks.

    Header names are lower-case, `now` is in Unix seconds. One of several secrets and signatures has to match.
    Raises Unauthorized if none does, ConfigError for an invalid secret.
    """
    id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    time = parse_digits(timestamp)
    if not id or time is None or abs(now - time) > tolerance:
        raise Unauthorized("the request is not signed, or its timestamp is too old")
    expected = [
        f"v1,{signature(key, body, id=id, timestamp=timestamp)}".encode() for key in signing_keys(secret)
    ]
    received = headers.get("webhook-signature", "").encode(errors="replace").split(b" ")
    if not any(hmac.compare_digest(ours, theirs) for ours in expected for theirs in received):
        raise Unauthorized("the signature of the request is not valid")
