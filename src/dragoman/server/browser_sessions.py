"""Sign-ins of browsers: a cookie instead of a key, for the paths under `/api`.

The cookie is HttpOnly and SameSite=Strict, so that scripts cannot read it and other sites cannot make
browsers send it. Pages of the same site (another port of this machine) are recognized by `Sec-Fetch-Site` and
`Origin`. A request that changes something must also carry a token in a header, which only a page of this
origin can read.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping

import msgspec

from dragoman.errors import Forbidden, Unauthorized
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.host_origin import DEFAULT_PORTS, Authority, Origin, parse_authority, parse_origin
from dragoman.identity import Identity
from dragoman.server.auth import RECHECK_INTERVAL, Auth
from dragoman.store.accounts.browser_sessions import BrowserSessionRepository, BrowserSignIn
from dragoman.store.accounts.keys import ApiKeyRepository

COOKIE_NAME = "dragoman_console"
CSRF_HEADER = "x-dragoman-csrf"
SAFE_METHODS = ("GET", "HEAD")
OWN_SITES = ("same-origin", "none")
MAX_RECENT = 10_000
CSRF_HINT = f"send the `csrf` of GET /api/console/session in the header {CSRF_HEADER}"


class SignedIn(msgspec.Struct, frozen=True):
    """The caller behind a cookie. `expires_at` is when the sign-in ends."""

    identity: Identity
    expires_at: float


class BrowserSessions:
    """Finds the caller behind a cookie. Like a key, a cookie is trusted for RECHECK_INTERVAL seconds."""

    def __init__(
        self,
        sessions: BrowserSessionRepository,
        keys: ApiKeyRepository,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        self._keys = keys
        self._clock = clock
        self._now = now
        self._recent: dict[str, tuple[float, SignedIn]] = {}

    async def identify(self, exchange: Exchange) -> Identity | None:
        """Return the caller behind the cookie; None without a valid one, or when a key was sent.

        Raises Forbidden for a request of another page, and for a change without the token of its session.
        """
        token = session_token(exchange)
        if token is None or "authorization" in exchange.headers or "x-api-key" in exchange.headers:
            return None
        found = await self.find(token)
        if found is None:
            return None
        check_same_origin(exchange)
        if exchange.method not in SAFE_METHODS:
            check_csrf(exchange, token)
        return found.identity

    async def find(self, token: str) -> SignedIn | None:
        """Return who is signed in with a token; None when the sign-in, or its key, is no longer valid."""
        recent = self._recent.get(token)
        if recent is not None and recent[0] > self._clock():
            return recent[1]
        self._recent.pop(token, None)
        session = await self._sessions.find(token)
        found = None if session is None else await self._sign_in(session)
        if found is not None:
            if len(self._recent) >= MAX_RECENT:
                self._recent.clear()
            left = min(RECHECK_INTERVAL, found.expires_at - self._now())
            self._recent[token] = (self._clock() + left, found)
        return found

    async def sign_out(self, token: str) -> None:
        """End a sign-in; other hosts notice within seconds."""
        self._recent.pop(token, None)
        await self._sessions.delete(token)

    async def create(self, caller: Identity) -> tuple[BrowserSignIn, str]:
        """Sign in a caller that has a key."""
        return await self._sessions.create(key_of(caller), secret_id=caller.secret_id)

    async def create_link(self, caller: Identity) -> tuple[BrowserSignIn, str]:
        """Create a link that signs in as a caller that has a key, once."""
        return await self._sessions.create_link(key_of(caller), secret_id=caller.secret_id)

    async def redeem(self, link: str) -> tuple[BrowserSignIn, str]:
        """Sign in with a link. Raises Unauthorized."""
        found = await self._sessions.redeem(link)
        if found is None:
            raise Unauthorized(
                "this link was used before, or has expired", hint="`dragoman open` makes another"
            )
        return found

    async def _sign_in(self, session: BrowserSignIn) -> SignedIn | None:
        (valid,) = await self._keys.check_uses([(session.key_id, session.secret_id)])
        key = None if isinstance(valid, str) else await self._keys.get(session.key_id)
        if key is None:
            return None
        expires_at = session.expires_at if valid is None else min(session.expires_at, float(valid))
        return SignedIn(msgspec.structs.replace(key.identity, secret_id=session.secret_id), expires_at)


class BrowserAuth:
    """Authenticates callers as `Auth` does, and browsers by the cookie of their sign-in."""

    def __init__(self, auth: Auth, browsers: BrowserSessions) -> None:
        self.work = auth.work
        self._auth = auth
        self._browsers = browsers

    async def identify_request(self, exchange: Exchange, *, admits_tokens: bool) -> Identity:
        """Return the identity of an HTTP request. Unauthorized, Forbidden; Unavailable."""
        found = await self._browsers.identify(exchange)
        return found or await self._auth.identify_request(exchange, admits_tokens=admits_tokens)


def key_of(caller: Identity) -> str:
    """Return the id of the caller's key. Raises Forbidden on a hub without keys."""
    if caller.key_id is None:
        raise Forbidden("this hub has no keys, so no sign-in is needed")
    return caller.key_id


def cookie_name(headers: Mapping[str, str]) -> str:
    """Return the name of the cookie: with the port, since browsers share cookies between ports of a host."""
    host = parse_authority(headers.get("host", ""))
    return COOKIE_NAME if host is None or host.port is None else f"{COOKIE_NAME}_{host.port}"


def session_token(exchange: Exchange) -> str | None:
    """Return the token in the request's cookie."""
    if "cookie" not in exchange.headers:
        return None
    wanted = cookie_name(exchange.headers)
    # The values of a repeated header are joined with a comma.
    for pair in exchange.headers["cookie"].replace(",", ";").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted and value:
            return value
    return None


def session_cookie(exchange: Exchange, token: str, *, seconds: float) -> str:
    """Return the value of `Set-Cookie`; with 0 seconds it deletes the cookie."""
    secure = "; Secure" if exchange.scheme == "https" else ""
    name = cookie_name(exchange.headers)
    return f"{name}={token}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Strict{secure}"


def csrf_token(token: str) -> str:
    """Return the token that a page sends with changes. The session's token cannot be derived from it."""
    return hashlib.sha256(f"csrf:{token}".encode(errors="replace")).hexdigest()


def check_csrf(exchange: Exchange, token: str) -> None:
    """Raise Forbidden unless the request carries the token that belongs to its cookie."""
    sent = exchange.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(sent.encode(errors="replace"), csrf_token(token).encode()):
        raise Forbidden(f"a signed-in browser must send {CSRF_HEADER} with every change", hint=CSRF_HINT)


def check_same_origin(exchange: Exchange) -> None:
    """Raise Forbidden when a page of another origin caused the request.

    Where a browser sends `Sec-Fetch-Site` it decides, since a proxy may have replaced `Host`.
    """
    headers = exchange.headers
    site = headers.get("sec-fetch-site")
    is_own = site in OWN_SITES
    if site is None:
        page, host = parse_origin(headers.get("origin", "")), parse_authority(headers.get("host", ""))
        is_own = "origin" not in headers or (page is not None and host is not None and is_same(page, host))
    if not is_own:
        raise Forbidden("a console sign-in is valid for the pages of the console only", hint="send a key")


def is_same(page: Origin, host: Authority) -> bool:
    """Return whether a page was loaded from this host."""
    return (page.host, page.port) == (host.host, host.port or DEFAULT_PORTS.get(page.scheme))
