"""The shell of the console: signing in, moving between screens, keys, themes and narrow windows."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.clients import hub as hubs
from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import Console, HeldRequest, intercept, sign_in
from tests.console.conftest import StartConsole
from tests.console.full_hub import start_empty

SEARCH = re.compile(r"/api/operations\?q=")
SCREENS = ("Chat", "Runs", "Inbox", "Operations", "Usage", "Keys", "System")


@pytest.mark.promise("console")
def test_a_person_signs_in_with_a_key_goes_to_each_screen_and_signs_out(hub: Hub, browser: Browser) -> None:
    context = browser.new_context()
    console = Console(hub, context.new_page())
    console.expected_errors = {401}
    page = console.open("/usage")
    page.get_by_label("Key").fill("dgm_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown to this hub")
    assert console.find_accessibility_problems() == []
    page.get_by_label("Key").fill(hub.key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Usage")).to_be_visible()  # where the address leads
    for name in SCREENS:
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        expect(page).to_have_title(f"{name} · Dragoman")
    page.reload()
    expect(page).to_have_title("System · Dragoman")
    other = context.new_page()
    other.goto(f"{hub.url}/console/runs")
    expect(other).to_have_title("Runs · Dragoman")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Key")).to_be_visible()
    expect(other.get_by_label("Key")).to_be_visible()  # the cookie was theirs together
    page.reload()
    expect(page.get_by_label("Key")).to_be_visible()
    assert console.problems == []
    context.close()


def test_who_signs_out_is_not_asked_to_sign_in_again(console: Console) -> None:
    """Requests are refused before the answer to the sign-out is there."""
    console.expected_errors = {401}
    page = console.open_list("/runs")
    with HeldRequest(page, "**/api/console/session") as sign_out:
        page.get_by_role("button", name="Sign out").click()
    answer = sign_out.read()
    with page.expect_response(lambda response: response.status == 401):
        console.go("/keys")
    expect(page.get_by_role("dialog")).to_have_count(0)
    sign_out.answer(answer)
    expect(page.get_by_role("navigation")).to_have_count(0)
    page.get_by_label("Key").fill(console.hub.key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    expect(page.get_by_role("row", name="ann").first).to_be_visible()


def test_who_cannot_sign_out_reads_why(console: Console) -> None:
    console.expected_errors = {503}
    console.keep_toasts()
    page = console.open_list("/runs")
    refusal = {"error": {"code": "unavailable", "message": "The database is down."}}
    intercept(page, "**/api/console/session", answer=lambda route: route.fulfill(status=503, json=refusal))
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status").filter(has_text="The database is down.")).to_be_visible()
    expect(page.get_by_role("navigation").first).to_be_visible()


def test_a_link_opens_the_console_signed_in_once(hub: Hub, browser: Browser) -> None:
    url = hub.request("POST", "/api/console/links")[1]["url"]
    for signed_in in (True, False):
        context = browser.new_context()
        console = Console(hub, context.new_page())
        console.page.goto(url)
        if signed_in:
            expect(console.page.get_by_role("navigation")).to_be_visible()
        else:
            expect(console.page.get_by_role("alert")).to_contain_text("used before")
        assert "link=" not in console.page.url
        context.close()


def test_a_key_that_may_not_follow_events_is_told_nothing_of_a_hub_that_is_away(
    hub: Hub, browser: Browser
) -> None:
    secret = hub.request("POST", "/api/keys", {"owner": "ann", "scopes": ["operations"]})[1]["key"]
    context = browser.new_context()
    context.request.post(f"{hub.url}/api/console/session", data={"key": secret})
    console = Console(hub, context.new_page())
    console.expected_errors = {403}
    console.page.clock.install()
    page = console.open("/operations")
    expect(page.get_by_role("row").nth(3)).to_be_visible()
    page.clock.run_for(60_000)
    expect(page.get_by_role("status").filter(has_text="does not answer")).to_have_count(0)
    assert console.requests.count("GET /api/events") == 1, console.requests
    context.close()


@pytest.mark.thorough
def test_a_screen_that_is_opened_while_the_hub_is_away_is_there_when_it_is_back(
    upstream: Upstream, browser: Browser, tmp_path: Path
) -> None:
    hub = start_empty(tmp_path, upstream.url)
    context = browser.new_context()
    sign_in(context, hub)
    page = Console(hub, context.new_page()).open("/runs")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    hub.stop(signal.SIGKILL)
    page.get_by_role("navigation").get_by_role("link", name="Usage").click()
    expect(page.get_by_text("The screen is loaded as soon as it does")).to_be_visible()
    port = urlsplit(hub.url).port
    again = hubs.start(
        tmp_path, json.loads((tmp_path / "dragoman.yaml").read_text()), key=hub.key, port=port or 0
    )
    expect(page.get_by_role("heading", name="Usage")).to_be_visible()
    context.close()
    again.stop()


def replace_script(page: Page, name: str, body: str) -> None:
    """Answer requests for a script of the console with another text."""
    headers = {"content-type": "text/javascript"}
    intercept(page, f"**/assets/{name}-*.js", answer=lambda route: route.fulfill(body=body, headers=headers))


def test_a_screen_whose_script_is_missing_or_of_another_version_offers_to_load_the_page_again(
    hub: Hub, browser: Browser
) -> None:
    context = browser.new_context()
    sign_in(context, hub)
    page = Console(hub, context.new_page()).open("/runs")
    for script in ("", "export const", 'export { none as default } from "./none.js"'):
        replace_script(page, "keys", script)
        page.get_by_role("navigation").get_by_role("link", name="Keys").click()
        expect(page.get_by_role("heading", name="This screen cannot be loaded")).to_be_visible()
        page.unroute_all()
        page.get_by_role("button", name="Load it again").click()
        expect(page.get_by_role("heading", name="Keys")).to_be_visible()
        page.goto(f"{hub.url}/console/runs")
    context.close()


def test_a_screen_that_is_missing_before_the_stream_of_events_is_there_is_not_loaded_by_itself(
    hub: Hub, browser: Browser
) -> None:
    """It would be loaded again and again where the stream takes its time each time."""
    context = browser.new_context()
    sign_in(context, hub)
    console = Console(hub, context.new_page())
    page = console.page
    replace_script(page, "keys", "")
    with HeldRequest(page, "**/api/events") as stream:
        console.open("/keys", waits_for_stream=False)
    expect(page.get_by_role("button", name="Load it again")).to_be_visible()
    page.evaluate("window.isSamePage = true")
    with page.expect_response("**/api/approvals?*"):  # read anew, as the stream has begun
        stream.let_go()
    expect(page.get_by_role("button", name="Load it again")).to_be_visible()
    assert page.evaluate("window.isSamePage")
    context.close()


@pytest.mark.promise("console-keyboard")
def test_the_palette_and_the_keys_lead_everywhere_without_a_mouse(console: Console) -> None:
    page = console.open("/usage")
    expect(page.get_by_role("heading", name="Usage")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page).to_have_title("System · Dragoman")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("inb")
    page.keyboard.press("Enter")
    expect(page).to_have_title("Inbox · Dragoman")
    page.keyboard.press("Control+k")
    page.keyboard.type("calculate an expression")
    expect(page.get_by_role("option", name="math.calculate")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{console.hub.url}/console/operations/math.calculate")
    assert console.hub.request("GET", "/api/calls?operation=hub.search")[1]["calls"] == []
    page.keyboard.press("Control+k")
    console.expected_errors.add(404)  # there is no such run
    page.keyboard.type("run_5hTx")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{console.hub.url}/console/runs/run_5hTx")
    expect(page.get_by_role("heading", name="There is no such run or call")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    page.keyboard.press("?")
    keys = page.get_by_role("dialog")
    expect(keys).to_contain_text("go to a screen")
    assert console.find_accessibility_problems() == []
    page.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.keyboard.press("?")
    expect(page).to_have_title("Runs · Dragoman")  # single keys are off
    expect(keys).to_be_hidden()


def test_enter_in_the_palette_waits_for_the_operations_that_fit_what_was_typed(console: Console) -> None:
    page = console.open("/usage")
    searches: list[Route] = []

    def hold(route: Route) -> None:
        searches.append(route)

    intercept(page, SEARCH, answer=hold)
    expect(page.get_by_role("heading", name="Usage")).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Go to a screen")).to_be_focused()
    with page.expect_request(SEARCH):
        page.keyboard.type("calculate an expression")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Searching…")
    for search in searches:
        search.continue_()
    page.unroute(SEARCH, hold)
    expect(page).to_have_url(f"{console.hub.url}/console/operations/math.calculate")
    expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.parametrize(
    ("width", "theme"), [(360, "dark"), pytest.param(3840, "light", marks=pytest.mark.thorough)]
)
def test_every_screen_fits_its_window_and_is_accessible(
    hub: Hub, start_console: StartConsole, *, width: int, theme: str
) -> None:
    console = start_console(hub, width=width, theme=theme)
    page = console.open("/chat")
    for name in SCREENS:
        expect(page.get_by_role("navigation").first).to_be_visible()
        console.go(f"/{name.lower()}")
        expect(page).to_have_title(f"{name} · Dragoman")
        expect(page.get_by_text("Loading…")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    if width < 720:
        page.get_by_role("button", name="More").click()
        expect(page.get_by_role("dialog").get_by_role("link", name="System")).to_be_visible()
        page.get_by_role("dialog").get_by_role("link", name="Usage").click()
        expect(page).to_have_title("Usage · Dragoman")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.get_by_role("button", name="More")).to_have_attribute("aria-current", "true")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert console.find_accessibility_problems() == []
