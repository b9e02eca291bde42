"""HTTP handlers of session tokens, which an app's server gives to the browsers of its users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgspec

from dragoman.errors import BadRequest, Conflict, Forbidden
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity, SessionBounds
from dragoman.server.http.query_parameters import parse_limit
from dragoman.session_ids import client_session_id, is_session_id
from dragoman.store.accounts.session_tokens import (
    FIRST_PAGE,
    SessionToken,
    SessionTokenRepository,
    TokenCursor,
    models_within,
)

MAX_BODY = 16_384
DEFAULT_MINUTES, MAX_MINUTES = 15.0, 120.0
MAX_MODELS = 100
MAX_OWNER = 100  # characters, once escaped: half of an id
DEFAULT_PAGE, MAX_PAGE = 100, 1000


class TokenBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a token; one of `session`, `prefix` and `owner`."""

    owner: str | None = None
    session: str | None = None
    prefix: str | None = None
    minutes: float = DEFAULT_MINUTES
    role: Literal["read", "write"] = "write"
    scopes: tuple[str, ...] = ("chat",)
    models: tuple[str, ...] | None = None


class TokenHandlers:
    """Handlers of `/api/tokens`. A token is shown once, in the answer that makes it.

    `forget` drops the tokens that match a predicate from this process's cache; other hosts take seconds.
    """

    def __init__(
        self, tokens: SessionTokenRepository, *, forget: Callable[[Callable[[SessionBounds], bool]], None]
    ) -> None:
        self._tokens = tokens
        self._forget = forget

    async def create(self, exchange: Exchange) -> None:
        """Create a token that acts for the caller's key, in one session or in those of a prefix."""
        caller = exchange.identity
        require_key(caller)
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), TokenBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}", hint='{"session": "ID"}') from None
        if body.owner is not None:
            body = bounded_to_owner(body, body.owner)
        check_sessions(body)
        check_rights(body, caller)
        token, secret = await self._tokens.create(
            caller,
            seconds=body.minutes * 60,
            session=body.session,
            prefix=body.prefix,
            role=body.role,
            models=body.models,
        )
        await exchange.respond(201, {**token_to_json(token), "owner": body.owner, "token": secret})

    async def list(self, exchange: Exchange) -> None:
        """List the tokens of the caller's key that have not expired; those of all keys for administrators."""
        query = exchange.query
        limit = parse_limit(query.get("limit", str(DEFAULT_PAGE)), maximum=MAX_PAGE)
        before = parse_cursor(query["before"]) if "before" in query else FIRST_PAGE
        found = await self._tokens.list(reachable_key(exchange.identity), before=before, limit=limit)
        shown = [{**token_to_json(token), "owner": owner_of(token), "keyId": token.key_id} for token in found]
        last = found[-1] if len(found) == limit else None
        cursor = None if last is None else f"{last.created_at!r}_{last.id}"
        await exchange.respond(200, {"tokens": shown, "next": cursor})

    async def revoke(self, exchange: Exchange) -> None:
        """Revoke one token: of the caller's key, or of any key for administrators. NotFound."""
        id = exchange.path_params["id"]
        await self._tokens.revoke(id, key_id=reachable_key(exchange.identity))
        self._forget(lambda bounds: bounds.token_id == id)
        await exchange.respond(204)

    async def revoke_owner(self, exchange: Exchange) -> None:
        """Revoke all tokens that the caller's key made for one of the app's users, `?owner`."""
        key_id, owner = require_key(exchange.identity), exchange.query.get("owner")
        if not owner:
            raise BadRequest("owner is missing", field="owner", hint="DELETE /api/tokens?owner=USER")
        prefix = owner_sessions(owner)
        count = await self._tokens.revoke_prefix(prefix, key_id=key_id)
        self._forget(lambda bounds: bounds.prefix == prefix)
        await exchange.respond(200, {"revoked": count})


def require_key(caller: Identity) -> str:
    """Return the id of the caller's key. Conflict on a hub without keys."""
    if caller.key_id is None:
        raise Conflict("this hub requires no keys, so session tokens have no effect", hint="serve with keys")
    return caller.key_id


def reachable_key(caller: Identity) -> str | None:
    """Return the key whose tokens a caller may see and revoke; None, for all, for admins. Conflict."""
    return None if caller.may("admin") else require_key(caller)


def parse_cursor(text: str) -> TokenCursor:
    """Return the cursor in `?before`, which is `next` of the previous page. Raises BadRequest."""
    moment, _, id = text.partition("_")
    try:
        return float(moment), id
    except ValueError:
        hint = "use `next` of the page before"
        raise BadRequest(f"before does not name a page: {text!r:.100}", field="before", hint=hint) from None


def owner_of(token: SessionToken) -> str | None:
    """Return the app's user whose sessions a token is for; None where it is for others."""
    if token.prefix is None or not token.prefix.endswith("/"):
        return None
    owner = unquote(token.prefix[:-1])
    try:
        return owner if owner_sessions(owner) == token.prefix else None
    except BadRequest:
        return None


def owner_sessions(owner: str) -> str:
    """Return the prefix of the session ids of an app's user, unique for each user. Raises BadRequest.

    Every character but letters, digits and `@._-` is escaped, so that a name cannot contain the separator.
    """
    escaped = quote(owner, safe="@").replace("~", "%7E") if owner.isprintable() else ""
    if not 1 <= len(escaped) <= MAX_OWNER:
        raise BadRequest(
            f"owner must have 1 to {MAX_OWNER} printable characters; all but A-Z 0-9 @._- count as three",
            field="owner",
            hint="use the user's id",
        )
    return f"{escaped}/"


def bounded_to_owner(body: TokenBody, owner: str) -> TokenBody:
    """Return the body of a token for the sessions of an app's user. BadRequest."""
    if body.session is not None or body.prefix is not None:
        raise BadRequest("a token is for an `owner`, or for a `session` or a `prefix`", field="owner")
    return msgspec.structs.replace(body, prefix=owner_sessions(owner))


def check_sessions(body: TokenBody) -> None:
    """Check the sessions and the lifetime of a token. Raises BadRequest."""
    if (body.session is None) == (body.prefix is None):
        raise BadRequest("a token is for a `session`, a `prefix` of ids, or an `owner`", field="session")
    id = body.session if body.session is not None else body.prefix or ""
    if not is_session_id(id):
        field = "prefix" if body.session is None else "session"
        raise BadRequest(f"{id!r:.100} is not the id of a session", field=field)
    if body.prefix is not None and (
        body.prefix[-1].isalnum() or client_session_id(body.prefix) != body.prefix
    ):
        raise BadRequest(
            f"the prefix {body.prefix!r:.100} does not end with a separator",
            field="prefix",
            hint='end it with one, such as "user-42/": "user-4" would be a prefix of "user-42" too',
        )
    if not 0 < body.minutes <= MAX_MINUTES:
        raise BadRequest(f"minutes must be more than 0, and {MAX_MINUTES:g} at most", field="minutes")


def check_rights(body: TokenBody, caller: Identity) -> None:
    """Check that a token may do no more than the caller's key. BadRequest, Forbidden."""
    wrong = [scope for scope in body.scopes if scope != "chat"]
    if wrong or not body.scopes:
        raise Forbidden(
            f"a session token is for the scope chat alone, not {', '.join(wrong) or 'none'}",
            hint="other scopes cannot be limited to a session: use them in the app's server",
        )
    models = body.models or ()
    if len(models) > MAX_MODELS:
        raise BadRequest(f"models lists more than {MAX_MODELS}", field="models")
    beyond = sorted(set(models) - set(models_within(models, caller.models)))
    if beyond:
        raise Forbidden(f"this key may not use the models {', '.join(beyond):.500}, so no token of it may")


def token_to_json(token: SessionToken) -> dict[str, Any]:
    """Return a token as the API shows it, without its secret."""
    return {
        "id": token.id,
        "session": token.session,
        "prefix": token.prefix,
        "role": token.role,
        "scopes": ["chat"],
        "models": None if token.models is None else list(token.models),
        "createdAt": token.created_at,
        "expiresAt": token.expires_at,
    }
