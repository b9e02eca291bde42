"""Pictures for README and docs: the console in Chromium, and the demonstration in a terminal.

Starts `dragoman demo --scripted --keep`, whose answers are the same each time, signs a browser in by its
link, and writes docs/images/. Run it with `make shots`.
"""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tools.terminal_recording import draw, record

IMAGES = Path("docs/images")
LINK = re.compile(r"http://127\.0\.0\.1:\d+/console/\S*#link=\S+")
WIDTH, HEIGHT = 1360, 900
COLUMNS, ROWS = 100, 44
FOLDER = re.compile(rb"data in \S+")
LAST = b"Stored in the data folder"
SETTLE_MS = 1_500
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
SCREENS = {
    "chat": "chat/example",
    "runs": "runs",
    "operations": "operations/math.calculate",
    "usage": "usage?show=tokens",
}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    record_demonstration(IMAGES / "demo.svg")
    with demonstration() as link, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = sign_in(browser, link)
        base = link.partition("console/")[0] + "console/"
        for name, path in SCREENS.items():
            take(page, base + path, IMAGES / f"{name}.png")
        page.emulate_media(color_scheme="dark")
        take(page, open_last_run(page, base), IMAGES / "run-dark.png")
        browser.close()


@contextmanager
def demonstration() -> Iterator[str]:
    """A hub of the demonstration: its sign-in link."""
    command = [sys.executable, "-m", "dragoman", "demo", "--scripted", "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                if match := LINK.search(line):
                    yield match[0]
                    break
            else:
                raise SystemExit("shots: the demonstration ended without a link to the console")
        finally:
            process.send_signal(signal.SIGINT)


def record_demonstration(path: Path) -> None:
    """Draw the demonstration as a terminal shows it, as an animation."""
    command = [sys.executable, "-m", "dragoman", "demo", "--scripted"]
    pieces = record(command, columns=COLUMNS, rows=ROWS, until=LAST.decode())
    shown = [(at, FOLDER.sub(b"data in a temporary folder", piece)) for at, piece in pieces]
    shown = [(at, piece.partition(LAST)[0]) for at, piece in shown]  # the heading of what is not recorded
    svg = draw(shown, columns=COLUMNS, rows=ROWS, title="dragoman demo --scripted")
    path.write_text(svg, encoding="utf-8")


def sign_in(browser: Browser, link: str) -> Page:
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.goto(link)
    page.get_by_role("navigation").first.wait_for()
    return page


def take(page: Page, address: str, path: Path) -> None:
    page.goto(address)
    page.locator("main h1").first.wait_for()
    page.wait_for_timeout(
        SETTLE_MS
    )  # charts and lists; the page's event stream never ends, so no network is idle
    page.screenshot(path=path)


def open_last_run(page: Page, base: str) -> str:
    page.goto(f"{base}runs")
    page.get_by_role("row").nth(1).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    return page.url


if __name__ == "__main__":
    main()
