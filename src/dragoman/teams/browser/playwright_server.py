"""One browser: a Playwright MCP server in a process of its own, with a profile in memory and a proxy."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman.errors import CallError
from dragoman.mcp.client.client import McpClient
from dragoman.mcp.server_spec import ServerSpec
from dragoman.operations.context import Context
from dragoman.operations.registry import Registry
from dragoman.teams.browser.guard_proxy import GuardProxy
from dragoman.tools.web.host_policy import HostPolicy

SERVER = "playwright"
SERVER_PROGRAM = "playwright-mcp"
OFFLINE = ("npx", "--offline", "--no-install", "@playwright/mcp")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TOOLS = (
    "browser_navigate", "browser_navigate_back", "browser_evaluate", "browser_click", "browser_type",
    "browser_snapshot", "browser_take_screenshot",
)  # fmt: skip
FOLDER_PREFIX = "dragoman-browser-"
LOGS = "Browser logs:"
NAVIGATES = "Execution context was destroyed"  # Playwright's error when the page changes under a script
MAX_ERROR = 1_000  # characters
START_SECONDS = 40.0
VIEWPORT = {"width": 1280, "height": 800}
# What Chromium would request on its own. Its flag counts once, so the first lines are Playwright's own list.
FEATURES_OFF = (
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "DialMediaRouteProvider",
    "GlobalMediaControls", "HttpsUpgrades", "LensOverlay", "MediaRouter", "PaintHolding",
    "ThirdPartyStoragePartitioning", "BlockOriginHeaderModificationOnRedirect", "Translate", "AutoDeElevate",
    "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled",
    "AutofillServerCommunication", "PreconnectToSearch",
)  # fmt: skip
NOWHERE = "http://127.0.0.1:1/"  # in place of the services of Chromium's maker
ARGUMENTS = (
    "--disable-features=" + ",".join(FEATURES_OFF),
    f"--google-url={NOWHERE}",
    f"--gaia-url={NOWHERE}",
    f"--gcm-checkin-url={NOWHERE}",
    f"--autofill-server-url={NOWHERE}",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # the proxy resolves names
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
)
INSTALL_HINT = (
    "install it: npm install -g @playwright/mcp, or name it with `browser.command` in dragoman.yaml"
)


class BrowserSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How browsers are started: the MCP server's command, the browser, and whether it has its own sandbox."""

    command: tuple[str, ...] = ()
    executable: str | None = None
    sandbox: bool = True


class BrowserSession:
    """A browser with its server and its proxy. `start` it, `close` it."""

    def __init__(self, settings: BrowserSettings, policy: HostPolicy, *, seconds: float) -> None:
        self._settings = settings
        self._seconds = seconds
        self._proxy = GuardProxy(policy)
        self._registry = Registry()
        self._folder: Path | None = None
        self._client: McpClient | None = None
        self.lock = asyncio.Lock()
        """Held during a call: calls share a page."""

    async def start(self, environ: Mapping[str, str]) -> None:
        """Start the server. The browser itself starts with the first call. Raises CallError."""
        command, executable = find_command(self._settings), find_browser(self._settings)
        address = await self._proxy.start()
        self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=FOLDER_PREFIX))
        config = self._folder / "config.json"
        config.write_bytes(msgspec.json.encode(self._config(executable, address)))
        spec = ServerSpec(
            name=SERVER,
            command=(*command, "--config", str(config)),
            env={"HOME": str(self._folder), "TMPDIR": str(self._folder)},
            cwd=str(self._folder),
            tools=TOOLS,
            timeout=self._seconds + START_SECONDS,
            connect_timeout=START_SECONDS,
            message_limit=16_000_000,
        )
        self._client = McpClient(self._registry, [spec], environ=environ)
        await self._client.__aenter__()
        [status] = await self._client.wait_until_started()
        if status.state != "ready":
            raise CallError(f"The browser's server did not start: {status.error or status.state}.")

    async def call(self, tool: str, *, input: Mapping[str, Any], context: Context) -> Any:
        """Call a tool of the server. Raises CallError; what the proxy refused is in its text.

        The error is transient when the page changed meanwhile; a later call then reports what was refused.
        """
        operation = self._registry.get(f"{SERVER}.{tool}")
        try:
            return await operation.run(operation.parse(dict(input)), context)
        except CallError as error:
            text = error.message.partition(LOGS)[0].strip()[:MAX_ERROR]
            if NAVIGATES in error.message:
                changed = CallError(text)
                changed.transient = True
                raise changed from error
            refusals = self.take_refusals()
            raise CallError(f"Not opened: {' '.join(refusals)}\n{text}" if refusals else text) from error

    def take_refusals(self) -> list[str]:
        """Return why requests of the page were refused since the last call, each reason once."""
        return self._proxy.take_refusals()

    async def close(self) -> None:
        """End the browser, its server and its proxy, and delete its files."""
        if self._client is not None:
            await self._client.close()
        await self._proxy.close()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _config(self, executable: str, proxy: str) -> dict[str, Any]:
        """Return the configuration of the MCP server."""
        milliseconds = int(self._seconds * 1_000)
        launch = {
            "headless": True,
            "executablePath": executable,
            "chromiumSandbox": self._settings.sandbox,
            "args": [*ARGUMENTS, *(() if self._settings.sandbox else ("--no-sandbox",))],
            "proxy": {"server": proxy},
        }
        context = {"viewport": VIEWPORT, "serviceWorkers": "block", "acceptDownloads": False}
        return {
            "browser": {
                "browserName": "chromium",
                "isolated": True,
                "launchOptions": launch,
                "contextOptions": context,
            },
            "outputDir": str(self._folder),
            "outputMaxSize": 20_000_000,
            "timeouts": {"action": milliseconds, "navigation": milliseconds},
            "codegen": "none",
            "webmcp": False,
            "console": {"level": "error"},
        }


def find_command(settings: BrowserSettings) -> tuple[str, ...]:
    """Return the command of the MCP server: as configured, else as installed. Raises CallError."""
    if settings.command:
        return settings.command
    if found := shutil.which(SERVER_PROGRAM):
        return (found,)
    if shutil.which(OFFLINE[0]):
        return OFFLINE
    raise CallError("The Playwright MCP server is not installed here.", hint=INSTALL_HINT)


def find_browser(settings: BrowserSettings) -> str:
    """Return the path of the browser. Raises CallError."""
    names = (settings.executable,) if settings.executable else BROWSERS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise CallError(
            "There is no Chromium here.",
            hint="install the package chromium, or name it with `browser.executable` in dragoman.yaml",
        )
    return found
