"""Paths of the web console: its pages, and signing in to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from dragoman.http.asgi_exchange import Handler
from dragoman.server.app.routing.shared_routes import Routes
from dragoman.server.app.services import HubServices
from dragoman.server.auth import Auth
from dragoman.server.browser_sessions import BrowserSessions
from dragoman.server.console.pages import ConsolePages
from dragoman.server.console.sign_in import SignInHandlers


class ConsoleApi(msgspec.Struct, frozen=True, kw_only=True):
    """The handlers of the console, and the sessions of its browsers."""

    browsers: BrowserSessions
    sign_in: SignInHandlers
    pages: ConsolePages


def build_console_api(services: HubServices, auth: Auth, *, keep_alive: float) -> ConsoleApi:
    """Build the handlers of the console; `keep_alive` in seconds."""
    store, teams = services.store, services.teams.registry
    browsers = BrowserSessions(store.browser_sessions, store.keys)
    sign_in = SignInHandlers(
        auth,
        browsers,
        has_teams=lambda: bool(teams.names()),
        has_hosts=store.host_id is not None,
        keep_alive=keep_alive,
    )
    return ConsoleApi(browsers=browsers, sign_in=sign_in, pages=ConsolePages())


def console_routes(console: ConsoleApi) -> Routes:
    """Yield the paths that need a key, of any scope."""
    yield "/api/console/links", {"POST": console.sign_in.create_link}, None


def public_console_routes(console: ConsoleApi) -> Iterator[tuple[str, Mapping[str, Handler]]]:
    """Yield the paths that need no key."""
    sign_in, pages = console.sign_in, console.pages
    methods = {"GET": sign_in.get, "POST": sign_in.create, "DELETE": sign_in.delete}
    yield "/api/console/session", methods
    yield "/console", {"GET": pages.redirect}
    yield "/console/assets/{name}", {"GET": pages.asset}
    yield "/console/{path:path}", {"GET": pages.page}
