"""HTTP handlers of signing in to the console: with a key or with a link that is valid once, and out again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.errors import BadRequest, Unauthorized
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.server.auth import Auth
from dragoman.server.browser_sessions import (
    BrowserSessions,
    check_csrf,
    check_same_origin,
    csrf_token,
    session_cookie,
    session_token,
)
from dragoman.store.accounts.keys import SCOPES
from dragoman.version import version

MAX_BODY = 4_096
NO_STORE = {"cache-control": "no-store"}
BODY_HINT = 'send {"key": "dgm_…"}, or {"link": "…"} with the token of a link'


class SignInBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key, or the token of a link."""

    key: str | None = None
    link: str | None = None


class SignInHandlers:
    """Handlers of `/api/console/session`, which needs no key, and of `/api/console/links`."""

    def __init__(
        self,
        auth: Auth,
        browsers: BrowserSessions,
        *,
        has_teams: Callable[[], bool],
        has_hosts: bool,
        keep_alive: float,
    ) -> None:
        """`has_hosts`: several hosts share the database, so that this host does not see all events of calls.

        `keep_alive`: seconds after which a stream that is idle gets a comment.
        """
        self._auth = auth
        self._browsers = browsers
        self._has_teams = has_teams
        self._has_hosts = has_hosts
        self._keep_alive = keep_alive

    async def get(self, exchange: Exchange) -> None:
        """Respond with the signed-in identity, its scopes, and the token that changes need."""
        if not self._auth.is_required:
            identity = await self._auth.identify(exchange.headers, at=exchange.local_address)
            await exchange.respond(200, self._signed_in(identity), headers=NO_STORE)
            return
        token = session_token(exchange)
        found = None if token is None else await self._browsers.find(token)
        if token is None or found is None:
            await exchange.respond(200, self._signed_out(), headers=NO_STORE)
            return
        check_same_origin(exchange)
        body = self._signed_in(found.identity, csrf=csrf_token(token), expires_at=found.expires_at)
        await exchange.respond(200, body, headers=NO_STORE)

    async def create(self, exchange: Exchange) -> None:
        """Exchange a key or a link for a cookie. Unauthorized."""
        check_same_origin(exchange)
        if not self._auth.is_required:
            await self.get(exchange)
            return
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), SignInBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}", hint=BODY_HINT) from None
        if (body.key is None) == (body.link is None):
            raise BadRequest("the body needs either a key or a link", hint=BODY_HINT)
        if body.link is not None:
            session, token = await self._browsers.redeem(body.link)
        else:
            headers = {"authorization": f"Bearer {body.key}"}
            identity = await self._auth.identify(headers, at=exchange.local_address)
            session, token = await self._browsers.create(identity)
        found = await self._browsers.find(token)
        if found is None:
            raise Unauthorized("the key of this link is no longer valid")
        cookie = session_cookie(exchange, token, seconds=session.expires_at - time.time())
        answer = self._signed_in(found.identity, csrf=csrf_token(token), expires_at=found.expires_at)
        await exchange.respond(201, answer, headers={**NO_STORE, "set-cookie": cookie})

    async def delete(self, exchange: Exchange) -> None:
        """Sign out; without a sign-in nothing happens."""
        token = session_token(exchange)
        headers = {"set-cookie": session_cookie(exchange, "", seconds=0)}
        if token is not None and await self._browsers.find(token) is not None:
            check_same_origin(exchange)
            check_csrf(exchange, token)
            await self._browsers.sign_out(token)
        await exchange.respond(204, headers=headers)

    async def create_link(self, exchange: Exchange) -> None:
        """Create a link that opens the console signed in as the caller, once, within two minutes."""
        host = exchange.headers.get("host", "")
        url = f"{exchange.scheme}://{host}{exchange.root_path}/console/"
        if exchange.identity.key_id is None:
            await exchange.respond(201, {"url": url, "expiresAt": None}, headers=NO_STORE)
            return
        link, token = await self._browsers.create_link(exchange.identity)
        # In the fragment: browsers do not send it, so that no log and no proxy sees it.
        body = {"url": f"{url}#link={token}", "expiresAt": link.expires_at}
        await exchange.respond(201, body, headers=NO_STORE)

    def _signed_in(
        self, identity: Identity, *, csrf: str | None = None, expires_at: float | None = None
    ) -> dict[str, Any]:
        return {
            **self._signed_out(),
            "signedIn": True,
            "owner": identity.owner,
            "keyId": identity.key_id,
            "scopes": [scope for scope in SCOPES if identity.may(scope)],
            "csrf": csrf,
            "expiresAt": expires_at,
        }

    def _signed_out(self) -> dict[str, Any]:
        return {
            "signedIn": False,
            "keysRequired": self._auth.is_required,
            "version": version(),
            "teams": self._has_teams(),
            "hosts": self._has_hosts,
            "keepAlive": self._keep_alive,
        }
