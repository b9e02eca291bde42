"""The screens of administrators: operations, usage, keys, system and teams."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.clients import hub as hubs
from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import WAIT, Console, intercept
from tests.console.conftest import StartConsole
from tests.console.full_hub import start_empty, start_full

expect.set_options(timeout=WAIT)
SCREENS = {
    "/operations": "agents.clerk",
    "/operations?tab=servers": "docs",
    "/operations?tab=spokes": "No spoke is connected",
    "/operations/shop.order": "asks a person",
    "/usage?range=7d": "600 requests",
    "/usage?range=7d&show=duration&by=owner": "p95",
    f"/usage?owner={'long-' * 20}": "long-long",
    "/keys": "laptop",
    "/keys?tab=tokens": "user user-42",
    "/system": "Hosts",
    "/system?tab=providers": "First token",
    "/system?tab=log&q=token": "token is ***",
    "/system?tab=configuration": "Providers",
    "/system?tab=storage": "usage",
    "/teams": "research",
    "/teams?tab=tasks": "task",
    "/teams?tab=triggers": "nightly",
    "/teams?tab=memory": "Never on Fridays",
    "/teams?tab=vault": "dragoman vault set github --team main",
    "/teams?tab=skills": "has no skills",
    "/teams?tab=plugins": "has no plugins",
}
"""What each address shows."""
CLOSE_AND_OPEN = """async (question, opener) => {
    question.requestClose();
    for (let turns = 0; turns < 1000 && question.open; turns++) await null;
    opener.click();  // before the browser tells that the dialog was closed
    await new Promise((resolve) => setTimeout(resolve));
}"""
NOTE_REQUESTS = """{
    const send = fetch;
    window.sent = [];
    window.answered = [];
    window.fetch = async (url, ...rest) => {
        sent.push([url, Date.now()]);
        const answer = await send(url, ...rest);
        answered.push(url);
        return answer;
    };
}"""
FIRST_SENT = "(path) => sent.find(([url]) => url.includes(path))[1]"
STOCK = '''
from dragoman import operation


@operation("aisle", effect="read")
async def count(item: str) -> int:
    """Count an item of the stock."""
    return 3
'''


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Hub]:
    """A hub with a little of everything."""
    hub = start_full(tmp_path_factory.mktemp("full") / "hub", upstream.url)
    trigger = {"team": "research", "name": "nightly", "type": "schedule", "config": {"cron": "30 2 * * *"}}
    assert hub.request("POST", "/api/triggers", {**trigger, "task": "What is new?"})[0] == 201
    memory = {"team": "main", "key": "deploy-day", "content": "Never on Fridays."}
    assert hub.request("POST", "/api/memory", memory)[0] == 200
    assert hub.request("POST", "/api/tokens", {"owner": "user-42", "minutes": 120})[0] == 201
    yield hub
    hub.stop()


def run_form(page: Page, item: str) -> None:
    page.get_by_label("item").fill(item)
    page.get_by_role("button", name="Run", exact=True).click()


@pytest.mark.promise("console-operations")
def test_an_operation_is_found_explained_run_from_a_form_and_its_calls_are_listed(console: Console) -> None:
    page = console.open("/operations")
    expect(page.get_by_role("row").nth(3)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("look up price")
    row = page.get_by_role("row", name="shop.price")
    expect(row).to_contain_text("100 %")
    expect(page).to_have_url(re.compile("q=look"))
    row.click()
    expect(page.get_by_role("region", name="Policy")).to_contain_text("allowed")
    page.get_by_label("Who calls it").select_option("clerk")
    expect(page.get_by_role("region", name="Policy")).to_contain_text("asks a person")
    expect(page.get_by_role("region", name="Policy")).to_contain_text("ask: shop.*")
    page.get_by_label("currency").select_option("USD")
    run_form(page, "gold")
    result = page.get_by_role("region", name="Result")
    expect(result).to_contain_text("failed")
    run_form(page, "tea")
    expect(result).to_contain_text('"currency": "USD"')
    expect(page.get_by_role("region", name="Last calls")).to_contain_text("2 calls · 1 failed")
    page.get_by_role("tab", name="JSON").click()
    page.get_by_label("Input as JSON").fill('{"item": 3}')
    page.get_by_role("button", name="Run", exact=True).click()
    expect(result).to_contain_text("expected")
    assert console.find_accessibility_problems() == []
    console.open("/operations/draw.dot")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("img", name="Picture 1")).to_be_visible()


def test_a_definition_of_an_mcp_server_is_read_as_a_diff_before_it_is_approved(console: Console) -> None:
    console.keep_toasts()
    page = console.open("/operations?tab=servers&server=docs")
    change = page.locator(".operations-change").first
    expect(change).to_contain_text("new")
    approve = change.get_by_role("button", name="Approve")
    expect(approve).to_be_disabled()  # nobody has looked at it
    name = change.locator("b").inner_text()
    change.get_by_role("button", name=name).click()
    expect(page.get_by_role("region", name=f"Definition of {name}")).to_contain_text('"description"')
    approve.click()
    expect(page.get_by_role("status").filter(has_text="is approved")).to_be_visible()
    expect(page.get_by_role("region", name=f"Definition of {name}")).to_have_count(0)
    expect(page.get_by_label("Last lines of docs")).to_contain_text("token is ***")
    page.get_by_role("tab", name="Operations", exact=True).click()
    expect(page.get_by_role("row", name=f"docs.{name}")).to_be_visible()


def test_operations_of_a_spoke_come_and_go_without_a_reload(
    console: Console, hub: Hub, tmp_path: Path
) -> None:
    (tmp_path / "stock.py").write_text(STOCK, encoding="utf-8")
    page = console.open("/operations")
    expect(page.get_by_role("row", name="agents.clerk")).to_be_visible()
    before = console.requests.count("GET /api/operations")
    command = [*hubs.COMMAND, "spoke", str(tmp_path / "stock.py"), "--hub", hub.url]
    with subprocess.Popen(command, env={**os.environ, "DRAGOMAN_KEY": hub.key}) as spoke:
        try:
            expect(page.get_by_role("row", name="aisle.count")).to_be_visible()
            page.get_by_role("tab", name="Spokes").click()
            expect(page.get_by_text("connected", exact=True)).to_be_visible()
            spoke.terminate()
            expect(page.get_by_text("No spoke is connected")).to_be_visible()
        finally:
            spoke.terminate()
    page.get_by_role("tab", name="Operations", exact=True).click()
    expect(page.get_by_role("row", name="agents.clerk")).to_be_visible()
    expect(page.get_by_role("row", name="aisle.count")).to_have_count(0)
    assert console.requests.count("GET /api/operations") <= before + 4


@pytest.mark.promise("console-keys")
def test_a_key_is_created_shown_once_rotated_and_revoked_by_keyboard(console: Console) -> None:
    console.keep_toasts()
    page = console.open("/keys")
    expect(page.get_by_role("row", name="laptop").first).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_label("Owner", exact=True)).to_be_focused()
    page.get_by_label("Owner", exact=True).fill("dora")
    page.get_by_label("Label", exact=True).fill("robot")
    page.get_by_label("Budget a day").fill("2.5")
    page.keyboard.press("Enter")
    secret = page.get_by_label("Secret", exact=True)
    expect(secret).to_have_value(re.compile("^dgm_"))
    first = secret.input_value()
    page.get_by_role("button", name="Done").click()
    assert first not in page.content()
    page.get_by_role("row", name="robot").click()
    details = page.get_by_role("dialog")
    expect(details).to_contain_text("$2.5 / day")
    expect(details.get_by_role("meter")).to_be_visible()
    assert console.find_accessibility_problems() == []
    details.get_by_role("button", name="Rotate").click()
    page.get_by_role("button", name="Give it a new secret").click()
    expect(secret).not_to_have_value(first)
    page.get_by_role("button", name="Done").click()
    details.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Revoke", exact=True).last.click()
    expect(page.get_by_role("status").filter(has_text="is revoked")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_label("State", exact=True).select_option("revoked")
    expect(page.get_by_role("row", name="robot")).to_be_visible()
    assert console.hub.request("POST", "/api/tokens", {"session": "only-this"})[0] == 201
    page.keyboard.press("/")
    page.keyboard.type("robot")
    page.keyboard.press("Enter")
    expect(page.get_by_role("grid", name="Keys")).to_be_focused()
    page.keyboard.press("]")
    page.get_by_role("row", name="session only-this").focus()
    page.keyboard.press("Enter")
    details.get_by_role("button", name="Revoke").press("Enter")
    question = page.get_by_role("dialog", name="Revoke this token?", exact=True)
    expect(question.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Escape")  # closes the question and not what is below it
    expect(question).to_be_hidden()
    expect(details.get_by_role("button", name="Revoke")).to_be_focused()
    page.keyboard.press("Enter")
    expect(question).to_be_visible()
    question.evaluate(CLOSE_AND_OPEN, details.get_by_role("button", name="Revoke").first.element_handle())
    question.get_by_role("button", name="Revoke").press("Enter")
    expect(page.get_by_role("status").filter(has_text="token is revoked")).to_be_visible()
    expect(page.get_by_role("row", name="user user-42")).to_be_visible()
    expect(page.get_by_role("row", name="session only-this")).to_have_count(0)


@pytest.mark.promise("console-usage")
def test_usage_shows_what_was_spent_by_whom_and_the_log_no_secret(console: Console) -> None:
    page = console.open("/usage?range=7d")
    expect(page.get_by_role("region", name="Cost")).to_contain_text("171 (29 %) have no price")
    expect(page.get_by_role("meter", name="ann / month")).to_be_visible()
    expect(page.locator("canvas")).to_be_visible()
    page.get_by_text("Numbers of this chart").click()
    expect(page.get_by_role("region", name="Numbers of this chart").get_by_role("row")).to_have_count(170)
    page.get_by_label("Group by").select_option("owner")
    page.get_by_role("button", name="Only bob", exact=True).click()
    expect(page).to_have_url(re.compile("owner=bob"))
    expect(page.get_by_role("region", name="Cost")).to_contain_text("120 requests")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert text.startswith("hour,model_served,calls")
    console.open("/system?tab=log")
    expect(page.get_by_role("log")).to_contain_text("token is ***")
    assert "quite-secret-value" not in page.content()
    earlier = console.requests.count("GET /api/logs")
    console.hub.request("POST", "/api/keys", {"owner": "zoe"})
    expect(page.get_by_role("log")).to_contain_text("of zoe was created")  # told by an event
    assert console.requests.count("GET /api/logs") == earlier + 1
    page.set_viewport_size({"width": 3840, "height": 2160})
    console.go("/system")
    for name in ("Hosts", "Queue", "Providers", "Tables"):  # all of it side by side
        expect(page.get_by_role("region", name=name, exact=True)).to_be_in_viewport()
    console.go("/keys")
    expect(page.get_by_role("columnheader", name="Models")).to_be_visible()


def test_a_skill_that_waits_is_shown_with_all_that_would_be_written(console: Console) -> None:
    proposal = {
        "name": "tidy",
        "state": "proposed",
        "approval": "apr_1",
        "text": "Tidy up.\u202e",
        "operations": ["shell.run"],
        "files": [{"path": "away.md", "hash": "h", "text": "To whom it goes."}],
        "leftOut": ["picture.png"],
    }
    long = {"name": "ledger" * 20, "state": "active", "text": "Book. ", "size": 9_000}
    intercept(
        console.page,
        "**/api/teams/main/skills",
        answer=lambda route: route.fulfill(json={"skills": [proposal, long]}),
    )
    page = console.open("/teams?tab=skills")
    for text in ("Tidy up.\\u202e", "shell.run", "To whom it goes.", "picture.png"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    expect(page.get_by_text("the first 6 of 9,000 characters")).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 800})
    pane = page.locator(".pad")
    assert pane.evaluate("(pane) => pane.scrollWidth <= pane.clientWidth")
    assert console.find_accessibility_problems() == []


@pytest.mark.thorough
def test_a_trigger_is_activated_as_it_is_shown_whatever_its_texts_are(console: Console, hub: Hub) -> None:
    config = {"sessions": ["<b>" * 66] * 50, "channels": ["mail" * 50] * 50}
    trigger = {"team": "press", "name": "w" * 60, "type": "message", "config": config}
    made = hub.request("POST", "/api/triggers", {**trigger, "task": f"{'W' * 200} pay\u202elap"})[1]
    console.page.set_viewport_size({"width": 360, "height": 800})
    page = console.open(f"/teams?tab=triggers&trigger={made['id']}")
    sheet = page.get_by_role("dialog")
    expect(sheet.get_by_role("heading", name="wwww")).to_be_visible()
    assert sheet.evaluate("(sheet) => sheet.scrollWidth <= sheet.clientWidth")
    expect(sheet.get_by_text("pay\\u202elap")).to_be_visible()
    activate = sheet.get_by_role("button", name="Activate as shown")
    expect(activate).to_be_disabled()
    sheet.get_by_role("button", name="Show all").click()
    expect(activate).to_be_enabled()
    assert hub.request("DELETE", f"/api/triggers/{made['id']}")[0] == 204


def test_a_trigger_is_activated_and_paused_and_the_tree_moves_by_arrows(console: Console) -> None:
    page = console.open("/teams")
    page.get_by_role("treeitem", name="main").click()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("treeitem", name="press")).to_be_focused()
    expect(page).to_have_url(re.compile("team=press"))
    page.get_by_role("tab", name="Triggers").click()
    page.get_by_role("row", name="nightly").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Activate as shown").click()
    expect(dialog).to_contain_text("active")
    dialog.get_by_role("button", name="Pause").click()
    expect(dialog).to_contain_text("paused")


@pytest.mark.thorough
def test_the_more_pages_a_list_shows_the_less_often_it_is_read_anew(console: Console) -> None:
    page, reads, streams = console.page, list[str](), list[Route]()
    task: dict[str, Any] = {"team": "main", "state": "done", "task": "W" * 400, "owner": "ann"}
    task |= {"source": "api", "createdAt": time.time()}
    task |= dict.fromkeys(("startedAt", "endedAt", "error", "result"))

    def answer(route: Route) -> None:
        reads.append(route.request.url)
        start = int(parse_qs(urlsplit(route.request.url).query).get("before", ["0"])[0])
        rows = [{**task, "id": str(start + number)} for number in range(100)]
        route.fulfill(json={"tasks": rows, "next": str(start + 100) if start < 500 else None})

    def hold(route: Route) -> None:
        streams.append(route)

    intercept(page, "**/api/tasks?*", answer=answer)
    intercept(page, "**/api/events", answer=hold)
    page.clock.install()
    page.add_init_script(NOTE_REQUESTS)
    console.open("/teams?tab=tasks", waits_for_stream=False)
    grid = page.get_by_role("grid", name="Tasks")
    for count in range(1, 7):
        expect(grid).to_have_attribute("aria-rowcount", f"{count * 100 + 1}")
        page.keyboard.press("G")
    page.clock.pause_at(time.time() + 3_600)
    page.evaluate("sent.length = 0")
    streams[0].fulfill(body='data: {"id":null,"name":"reset","data":{}}\n\n')
    while not page.evaluate("answered.some((url) => url.endsWith('/api/events'))"):
        pass  # the clock stands until the page has the answer
    while len(reads) == 6:
        page.clock.run_for(100)
    counts, tasks = (page.evaluate(FIRST_SENT, f"/api/{name}?") for name in ("approvals", "tasks"))
    assert tasks - counts >= 1_200  # ms, for six pages are read anew after 1,800, and the count after 300


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1360, "light")])
@pytest.mark.thorough
def test_each_of_these_screens_fits_is_accessible_and_asks_little(
    hub: Hub, start_console: StartConsole, *, width: int, theme: str
) -> None:
    console = start_console(hub, width=width, theme=theme)
    for path, text in SCREENS.items():
        console.requests.clear()
        page = console.open(path)
        expect(page.locator("main")).to_contain_text(text)
        assert console.find_accessibility_problems() == [], path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert len(console.requests) <= 10, console.requests


@pytest.mark.thorough
def test_a_new_hub_teaches_on_each_screen(
    start_console: StartConsole, tmp_path: Path, upstream: Upstream
) -> None:
    hub = start_empty(tmp_path / "hub", upstream.url)
    try:
        console = start_console(hub)
        for path, text in {
            "/usage": "Nothing was used in this time",
            "/keys": "ann",
            "/operations?q=zebra": "A model would find nothing here",
            "/operations?tab=servers": "uses no MCP servers yet",
            "/system": "Nothing waits",
        }.items():
            page = console.open(path)
            expect(page.locator("main")).to_contain_text(text)
            assert console.find_accessibility_problems() == [], path
    finally:
        hub.stop()


@pytest.mark.thorough
def test_ten_thousand_keys_and_requests_are_drawn_where_they_are_looked_at(
    start_console: StartConsole, tmp_path: Path, upstream: Upstream
) -> None:
    hub = start_full(tmp_path / "hub", upstream.url, requests=10_000, keys=2_000)
    try:
        console = start_console(hub)
        page = console.open("/usage?range=7d&by=session")
        expect(page.get_by_role("region", name="Cost")).to_contain_text("10,000 requests")
        expect(page.get_by_role("region", name="Usage by session").get_by_role("row")).to_have_count(41)
        console.open("/keys")
        expect(page.get_by_role("row").nth(5)).to_be_visible()
        assert page.get_by_role("row").count() < 100
        page.keyboard.press("G")
        expect(page.get_by_role("row", name="laptop").last).to_be_visible()
        assert console.find_accessibility_problems() == []
    finally:
        hub.stop()


MANY_OPERATIONS = '''
from dragoman import operation
from dragoman.operations.registry import Registry

registry = Registry()
for number in range(10_000):

    @operation(f"area_{number % 50}", name=f"act_{number}", effect="read")
    async def act() -> str:
        """Act on a thing."""
        return "acted"

    registry.add(act)
'''


@pytest.mark.thorough
def test_ten_thousand_operations_are_drawn_where_they_are_looked_at(
    start_console: StartConsole, tmp_path: Path, upstream: Upstream
) -> None:
    (tmp_path / "many.py").write_text(MANY_OPERATIONS, encoding="utf-8")
    hub = start_full(tmp_path / "hub", upstream.url, operations=[f"{tmp_path / 'many.py'}:registry"])
    try:
        console = start_console(hub)
        began = time.monotonic()
        page = console.open("/operations")
        expect(page.get_by_role("row").nth(5)).to_be_visible()
        print("operations, first rows", round(time.monotonic() - began, 2))
        assert page.get_by_role("row").count() < 100
        grid = page.get_by_role("grid", name="Operations")
        expect(grid).to_have_attribute("aria-rowcount", "201")  # a page of them, and the head
        page.keyboard.press("G")
        expect(grid).to_have_attribute("aria-rowcount", "401")
        page.get_by_label("Namespace").select_option("area_7")
        expect(page.get_by_role("row", name="area_7.act_1007 ")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("act 4207")
        expect(page.get_by_role("row", name="act_4207")).to_be_visible()
        assert console.find_accessibility_problems() == []
        assert len([each for each in console.requests if "/api/operations" in each]) <= 12, console.requests
    finally:
        hub.stop()
