"""HTTP handlers of API keys: create, list, change, rotate and revoke them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from dragoman.errors import BadRequest, NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.operations.sanitize import sanitize_text
from dragoman.store.accounts.keys import ApiKey, ApiKeyRepository
from dragoman.usage_limits import Limits

log = logging.getLogger(__name__)
MAX_BODY = 65_536
MAX_NAME = 200  # characters of an owner or a label
BLANK = "\u2800"  # Braille without dots: printable and not whitespace, but invisible
MAX_GRACE = 30 * 86_400.0
DEFAULT_GRACE = 86_400.0
FIELDS = ("name", "scopes", "models", "limits", "expires_at")
API_NAMES = {"expires_at": "expiresAt"}


class KeyBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The body of a key. `expires_at` is a unix time; a field that is null has no restriction."""

    owner: str | None = None
    name: str | None = None
    scopes: list[str] | None = None
    models: list[str] | None = None
    limits: Limits | None = None
    expires_at: float | None = None


class RotationBody(msgspec.Struct, forbid_unknown_fields=True):
    """For how many seconds the replaced secret stays valid."""

    grace: float = DEFAULT_GRACE


class KeyHandlers:
    """Handlers of `/api/keys`, for administrators. A secret is shown once, in the answer that makes it."""

    def __init__(self, keys: ApiKeyRepository) -> None:
        self._keys = keys

    async def list(self, exchange: Exchange) -> None:
        """List all keys, the oldest first, without their secrets; revoked ones too."""
        await exchange.respond(200, {"keys": [key_to_json(key) for key in await self._keys.list()]})

    async def get(self, exchange: Exchange) -> None:
        """Return one key."""
        await exchange.respond(200, key_to_json(await self._find(exchange)))

    async def create(self, exchange: Exchange) -> None:
        """Create a key; the answer has its secret."""
        payload = await exchange.read_json(MAX_BODY)
        body = parse_key_body(payload)
        if not body.owner:
            raise BadRequest("a key needs an owner", field="owner", hint='send {"owner": "NAME"}')
        key, secret = await self._keys.create(body.owner, **fields_of(body, payload))
        log.info("key %s of %s was created by %s", key.id, key.owner, exchange.identity.owner)
        await exchange.respond(201, {**key_to_json(key), "key": secret})

    async def update(self, exchange: Exchange) -> None:
        """Change the fields that the body has; `limits` replaces all limits of the key."""
        payload = await exchange.read_json(MAX_BODY)
        body = parse_key_body(payload)
        if "owner" in payload:
            raise BadRequest("the owner of a key cannot be changed", field="owner", hint="create another key")
        key = await self._keys.update(exchange.path_params["id"], **fields_of(body, payload))
        log.info("key %s of %s was changed by %s", key.id, key.owner, exchange.identity.owner)
        await exchange.respond(200, key_to_json(key))

    async def rotate(self, exchange: Exchange) -> None:
        """Give a key a new secret; the old one stays valid for `grace` seconds."""
        payload = await exchange.read_json(MAX_BODY)
        try:
            grace = msgspec.convert(payload, RotationBody).grace
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}") from None
        if not 0 <= grace <= MAX_GRACE:
            raise BadRequest(f"grace must be 0 to {MAX_GRACE:.0f} seconds", field="grace")
        key, secret = await self._keys.rotate(exchange.path_params["id"], grace)
        log.info("key %s of %s was rotated by %s", key.id, key.owner, exchange.identity.owner)
        await exchange.respond(200, {**key_to_json(key), "key": secret})

    async def revoke(self, exchange: Exchange) -> None:
        """Revoke a key. What it has running ends within seconds."""
        id = exchange.path_params["id"]
        if not await self._keys.revoke(id):
            raise no_such_key(id)
        log.info("key %s was revoked by %s", id, exchange.identity.owner)
        await exchange.respond(204)

    async def _find(self, exchange: Exchange) -> ApiKey:
        id = exchange.path_params["id"]
        key = await self._keys.get(id)
        if key is None:
            raise no_such_key(id)
        return key


def parse_key_body(payload: Any) -> KeyBody:
    """Return the fields of a key in a request. BadRequest."""
    try:
        body = msgspec.convert(payload, KeyBody)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body is invalid: {error}") from None
    for field, text in (("owner", body.owner), ("name", body.name)):
        if text is None:
            continue
        if not text.isprintable() or not sanitize_text(text, MAX_NAME).strip(BLANK) or len(text) > MAX_NAME:
            message = f"{field} must be 1 to {MAX_NAME} printable characters, one of them visible"
            raise BadRequest(message, field=field)
    return body


def fields_of(body: KeyBody, payload: Any) -> dict[str, Any]:
    """Return the fields that a request sets, as the store names them."""
    fields: dict[str, Any] = {
        field: getattr(body, field) for field in FIELDS if API_NAMES.get(field, field) in payload
    }
    if "scopes" in fields:
        fields["scopes"] = frozenset(fields["scopes"] or ())
    if fields.get("models") is not None:
        fields["models"] = tuple(fields["models"])
    return fields


def key_to_json(key: ApiKey) -> dict[str, Any]:
    """Return a key as the API shows it; `prefix` is the start of its secret."""
    return {
        "id": key.id,
        "owner": key.owner,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": sorted(key.scopes),
        "models": key.models,
        "limits": key.limits or {},
        "createdAt": key.created_at,
        "expiresAt": key.expires_at,
        "revokedAt": key.revoked_at,
        "lastUsedAt": key.last_used_at,
    }


def no_such_key(id: str) -> NotFound:
    """Return the error of an id that no valid key has."""
    return NotFound(f"there is no valid key with the id {id[:100]!r}", hint="`dragoman keys list` shows them")
