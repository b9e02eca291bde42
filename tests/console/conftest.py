"""A hub with a model server behind it, and a browser that is signed in to its console."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Playwright, sync_playwright

from tests.clients import hub as hubs
from tests.clients.driver import require
from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import FLAGS, Console, sign_in

StartConsole = Callable[..., Console]
SCOPES = ("gateway", "chat", "operations", "admin")


FOLDER = Path(__file__).parent


class SharedBrowser:
    """Debian's Chromium, one for all modules of this folder that a process runs after each other.

    Playwright has a running event loop in this thread until it ends: asynchronous tests of other folders need
    the thread for their own.
    """

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def get(self) -> Browser:
        """Return the browser, started by the first test that needs it."""
        if self._playwright is None or self._browser is None:
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(executable_path=require("chromium"), args=FLAGS)
        return self._browser

    def close(self) -> None:
        """End the browser and Playwright, if they run."""
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        self._playwright = self._browser = None


SHARED_BROWSER = SharedBrowser()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """End the browser behind the last test of this folder, after its fixtures."""
    try:
        yield
    finally:
        if nextitem is None or FOLDER not in nextitem.path.parents:
            SHARED_BROWSER.close()


@pytest.fixture(scope="module")
def browser() -> Browser:
    """The browser that all modules of this folder share."""
    return SHARED_BROWSER.get()


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """The model server: `upstream.teach([{"text": "Hi"}], …)` returns the mark for these answers."""
    server = Upstream()
    yield server
    server.close()


@pytest.fixture
def gate(upstream: Upstream) -> Iterator[str]:
    """A gate that the model waits at, opened at last."""
    name = uuid.uuid4().hex
    yield name
    upstream.open(name)


@pytest.fixture(scope="module")
def start_hub(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Hub]]:
    """Starts hubs that ask the model server: `start_hub(keyless=False, **configuration)`."""
    running: list[Hub] = []

    def begin(*, keyless: bool = False, **more: Any) -> Hub:
        folder: Path = tmp_path_factory.mktemp("hub")
        up = {"type": "openai", "base_url": upstream.url, "api_key_env": "UP_KEY"}
        config = {"providers": {"up": up}, "model": "up/any-model", **more}
        key = "" if keyless else hubs.create_key(folder / "data", "ann", scopes=SCOPES)
        running.append(hubs.start(folder, config, key=key))
        return running[-1]

    yield begin
    for hub in running:
        hub.stop()


@pytest.fixture(scope="module")
def hub(start_hub: Callable[..., Hub]) -> Hub:
    """The hub of a module; its key has an administrator's scopes. Override it for another configuration."""
    return start_hub()


@pytest.fixture
def start_console(browser: Browser) -> Iterator[StartConsole]:
    """Opens browser windows: `start_console(hub, width=360, theme="dark")`. None of them may complain."""
    consoles: list[tuple[BrowserContext, Console]] = []

    def begin(hub: Hub, *, width: int = 1360, height: int = 900, theme: str = "light") -> Console:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        sign_in(context, hub)
        console = Console(hub, context.new_page())
        consoles.append((context, console))
        return console

    yield begin
    problems = [problem for _, console in consoles for problem in console.problems]
    for context, _ in consoles:
        context.close()
    assert problems == []


@pytest.fixture
def console(hub: Hub, start_console: StartConsole) -> Console:
    """A window that is signed in as the administrator: `console.open("/runs")`."""
    return start_console(hub)
