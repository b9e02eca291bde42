"""The HTTP handler of session tokens: what an app's server gives to the browsers of its users."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dragoman.errors import BadRequest, Conflict, Forbidden
from dragoman.http.exchange import Exchange
from dragoman.identity import Identity
from dragoman.session_ids import client_session_id, is_session_id
from dragoman.store.accounts.session_tokens import SessionToken, SessionTokenRepository, models_within

MAX_BODY = 16_384
DEFAULT_MINUTES, MAX_MINUTES = 15.0, 120.0
MAX_MODELS = 100


class TokenBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a token; one of `session` and `prefix`."""

    session: str | None = None
    prefix: str | None = None
    minutes: float = DEFAULT_MINUTES
    role: Literal["read", "write"] = "write"
    scopes: tuple[str, ...] = ("chat",)
    models: tuple[str, ...] | None = None


class TokenHandlers:
    """Handler of `/api/tokens`. A token is shown once, in the answer that makes it."""

    def __init__(self, tokens: SessionTokenRepository) -> None:
        self._tokens = tokens

    async def create(self, exchange: Exchange) -> None:
        """Make a token that stands for the caller's key, in one session or in those of a prefix."""
        caller = exchange.identity
        if caller.key_id is None:
            raise Conflict("this hub wants no keys, so a token would bound nothing", hint="serve with keys")
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), TokenBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body does not fit: {error}", hint='{"session": "ID"}') from None
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
        await exchange.respond(201, {**token_to_json(token), "token": secret})


def check_sessions(body: TokenBody) -> None:
    """Check for which sessions a token is, and for how long. BadRequest."""
    if (body.session is None) == (body.prefix is None):
        raise BadRequest("a token is for a `session`, or for a `prefix` of ids", field="session")
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
            hint="what else a key may do is not bounded to a session: do it in the app's server",
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
