"""A browser window on a console, with what it asked for and what it complained about."""

from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from playwright.sync_api import APIResponse, BrowserContext, ConsoleMessage, Page, Request, Route, expect

from tests.clients.hub import Hub

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
AXE = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"
WATCH_POLICY = """addEventListener("securitypolicyviolation",
    (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"""
KEYS_OF_ONE_MOMENT = "Object.defineProperty(KeyboardEvent.prototype, 'timeStamp', { get: () => 0 })"
PROBE = "**/healthz"
UNTIL_INTERCEPTED = "async (url) => { while ((await fetch(url).catch(() => ({}))).status !== 204) {} }"
STREAM_LIMIT = 1_000  # ms that the first screen waits for the stream of events
TOAST_TIME = 5_000  # ms
WAIT = 60_000  # ms for what has to appear: a machine under load is slow, but does not fail
expect.set_options(timeout=WAIT)
NOT_RULES = ["region"]  # the page has landmarks; toasts and skip links are outside of them


class Console:
    """A window. `requests` are "GET /api/…" in their order; `problems` what its log has of errors."""

    def __init__(self, hub: Hub, page: Page) -> None:
        self.hub = hub
        self.page = page
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.expected_errors: set[int] = set()
        """Statuses of failed requests that a test means to cause."""
        self._has_stream_limit = True
        page.context.set_default_timeout(WAIT)
        page.add_init_script(WATCH_POLICY)
        page.add_init_script(KEYS_OF_ONE_MOMENT)  # a slow machine takes longer than `g r` may
        page.on("request", self._note_request)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note_message)

    def open(self, path: str = "/", *, waits_for_stream: bool = True) -> Page:
        """Open an address of the console, such as `/runs`.

        Screens are shown once the stream of events has begun, however long that takes here: all that happens
        from then on comes by events. With `waits_for_stream=False` they wait for a second, as for a person.
        """
        if waits_for_stream and self._has_stream_limit:
            self._has_stream_limit = False
            self.page.add_init_script(without_timers(STREAM_LIMIT))
        self.page.goto(f"{self.hub.url}/console{path}")
        return self.page

    def keep_toasts(self) -> None:
        """Let toasts stay on the pages that are opened from now on: a slow machine may look too late."""
        self.page.add_init_script(without_timers(TOAST_TIME))

    def open_list(self, path: str, *, waits_for_stream: bool = True) -> Page:
        """Open a screen, and wait until its list has been read: what happens then comes by events."""
        page = self.open(path, waits_for_stream=waits_for_stream)
        expect(page.locator(".table, .empty").first).to_be_visible()
        return page

    def go(self, path: str) -> Page:
        """Go to an address as a link does, without loading the page anew."""
        address = f"{self.hub.url}/console{path}"
        self.page.evaluate(
            "(to) => (history.pushState(null, '', to), dispatchEvent(new PopStateEvent('popstate')))", address
        )
        return self.page

    def find_accessibility_problems(self, *, excluded: Sequence[str] = ()) -> list[str]:
        """What axe finds on the page as it is now, a line for each element."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        rules = {name: {"enabled": False} for name in NOT_RULES}
        found: dict[str, Any] = self.page.evaluate(
            "([rules, exclude]) => axe.run({ exclude }, { rules, resultTypes: ['violations'] })",
            [rules, [[each] for each in excluded]],
        )
        return [
            f"{violation['id']}: {node['target']} {node['failureSummary']}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]

    def renderer_seconds(self) -> float:
        """The CPU time that the browser's renderers have taken: those of closed pages are gone."""
        browser = self.page.context.browser
        assert browser is not None
        session = browser.new_browser_cdp_session()
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        session.detach()
        return sum(float(each["cpuTime"]) for each in processes if each["type"] == "renderer")

    def _note_request(self, request: Request) -> None:
        path = urlsplit(request.url).path
        if path.startswith("/api/"):
            self.requests.append(f"{request.method} {path}")

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type != "error":
            return
        status = "".join(filter(str.isdigit, message.text.partition("status of ")[2][:3]))
        if not (status and int(status) in self.expected_errors):
            self.problems.append(f"{message.text} {message.location.get('url', '')}")


def without_timers(ms: int) -> str:
    """Return a script that keeps timers of this time from firing."""
    return f"""{{
        const start = setTimeout;
        window.setTimeout = (run, ms, ...rest) => start(run, ms === {ms} ? 2 ** 30 : ms, ...rest);
    }}"""


def intercept(
    page: Page, pattern: str | re.Pattern[str], *, answer: Callable[[Route], None], times: int | None = None
) -> None:
    """Answer the requests of a page from now on, as `page.route` does, which returns too early.

    A busy page handles keys and clicks that come later before it hears that it is intercepted.
    """
    page.route(pattern, answer, times=times)
    if page.url == "about:blank":
        return
    page.route(PROBE, lambda route: route.fulfill(status=204))
    page.evaluate(UNTIL_INTERCEPTED, PROBE[2:])
    page.unroute(PROBE)


class HeldRequest:
    """The first request with a pattern from now on waits in the browser; the end of `with` waits for it."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page = page
        self._pattern = pattern
        self._routes: list[Route] = []

    def __enter__(self) -> HeldRequest:
        intercept(self._page, self._pattern, answer=self._hold)
        return self

    def _hold(self, route: Route) -> None:
        if self._routes:
            route.fallback()
        else:
            self._routes.append(route)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        deadline = time.monotonic() + WAIT / 1000
        while error is None and not self._routes:
            self._page.evaluate("0")  # Playwright handles what has happened meanwhile
            assert time.monotonic() < deadline, f"no request to {self._pattern}"

    def read(self) -> APIResponse:
        """The answer of the hub as it is now; the browser gets it later."""
        return self._routes[0].fetch()

    def answer(self, response: APIResponse) -> None:
        """Answer the request with what the hub answered before."""
        self._routes[0].fulfill(response=response)

    def find_nothing(self) -> None:
        """Answer that there is nothing."""
        self._routes[0].fulfill(status=204)

    def let_go(self) -> None:
        """Send the request to the hub now."""
        self._routes[0].continue_()


@contextmanager
def open_database(hub: Hub) -> Iterator[sqlite3.Connection]:
    """Open the database of a hub, for rows that would take too long to make over HTTP."""
    arguments = list(map(str, cast(Sequence[Any], hub.process.args)))
    file = Path(arguments[arguments.index("--data") + 1]) / "hub.db"
    with closing(sqlite3.connect(file, timeout=60.0)) as database, database:
        yield database


def sign_in(context: BrowserContext, hub: Hub) -> None:
    """Give the cookie of a sign-in to all pages of a context."""
    context.set_default_timeout(WAIT)
    if hub.key:
        response = context.request.post(f"{hub.url}/api/console/session", data={"key": hub.key})
        assert response.status == 201, response.text()


def begin_run(hub: Hub, session: str, text: str) -> str:
    """Send a message that is answered in the background; the id of its run."""
    message = {"id": uuid.uuid4().hex, "role": "user", "parts": [{"type": "text", "text": text}]}
    body = {"id": session, "messages": [message], "background": True}
    status, started = hub.request("POST", "/api/chat", body)
    assert status in (200, 202), started
    id: str = started["runId"]
    return id


def wait_for_run(hub: Hub, id: str) -> None:
    """Wait until a run has ended."""
    deadline = time.monotonic() + 120
    while hub.request("GET", f"/api/runs/{id}")[1]["state"] == "running":
        assert time.monotonic() < deadline, "the run does not end"
        time.sleep(0.05)  # nothing tells this process of the end
