"""The screens of runs: the list, and the page of one run with its tree."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import Console, begin_run, intercept, open_database, wait_for_run
from tests.console.conftest import StartConsole

SHOP = '''
from dragoman import operation


@operation("shop", effect="read")
async def price(item: str) -> float:
    """Look up a price."""
    return {"tea": 3.5}[item]


@operation("shop", effect="read")
async def wait() -> None:
    """Wait until it is stopped."""
    import asyncio

    await asyncio.Event().wait()


@operation("shop", effect="once")
async def order(item: str) -> str:
    """Order an item."""
    return f"ordered {item}"
'''
ITEMS = ("tea", "gold")
CALLS: dict[str, Any] = {"calls": [{"tool": "shop.price", "input": {"item": item}} for item in ITEMS]}
MANY = 100_000
WAIT_FOR_EVER = """() => {
    const call = ({ csrf }) => fetch("/api/operations/shop.wait/call", { method: "POST", body: "{}",
        headers: { "content-type": "application/json", "x-dragoman-csrf": csrf } });
    fetch("/api/console/session").then((answer) => answer.json()).then(call);
}"""  # nobody waits for its answer


@pytest.fixture(scope="module")
def hub(start_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory) -> Hub:
    shop = tmp_path_factory.mktemp("shop") / "shop.py"
    shop.write_text(SHOP, encoding="utf-8")
    return start_hub(operations=[str(shop)], policy=[{"ask": "shop.order"}], pinned=["user.question"])


@pytest.fixture(scope="module")
def run(hub: Hub, upstream: Upstream) -> str:
    """A run with two calls of an operation, one of which failed; its id."""
    mark = upstream.teach([{"calls": [{"name": "hub_call", "arguments": CALLS}]}], [{"text": "It is 3.5."}])
    return ask(hub, "shopping", f"What is tea? {mark}")


def ask(hub: Hub, session: str, text: str) -> str:
    """Send a message; the id of its run, which has ended."""
    id = begin_run(hub, session, text)
    wait_for_run(hub, id)
    return id


def answer_request(hub: Hub, body: dict[str, Any]) -> None:
    """Answer the one request that is open."""
    [request] = hub.request("GET", "/api/approvals?status=pending")[1]["approvals"]
    assert hub.request("POST", f"/api/approvals/{request['id']}", body)[0] == 200


def open_run(console: Console, run: str, query: str = "") -> Page:
    page = console.open(f"/runs/{run}{query}")
    expect(page.get_by_role("tree")).to_be_visible()
    return page


def test_a_person_finds_what_failed_by_keyboard_and_reads_why(console: Console, run: str) -> None:
    page = console.open("/runs")
    expect(page.get_by_role("row").nth(1)).to_contain_text("chat")
    page.keyboard.press("e")  # only what has errors
    expect(page).to_have_url(f"{console.hub.url}/console/runs?error=1")
    expect(page.get_by_role("row")).to_have_count(2)
    assert console.find_accessibility_problems() == []
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tree")).to_be_visible()
    expect(page.get_by_role("treeitem")).to_have_count(6)
    page.keyboard.press(".")  # the next error
    failed = page.get_by_role("treeitem", selected=True)
    expect(failed).to_contain_text("shop.price")
    expect(failed).to_be_focused()
    assert failed.get_attribute("aria-level") == "4"
    details = page.get_by_role("complementary", name="Details")
    expect(details).to_contain_text("gold")
    expect(details).to_contain_text("failed")
    page.keyboard.press("f")  # only what failed
    expect(page.get_by_role("treeitem")).to_have_count(4)
    assert console.find_accessibility_problems() == []
    assert console.requests.count(f"GET /api/calls/{run}/nodes") == 1


def test_a_call_is_made_again_with_another_input(console: Console, run: str) -> None:
    page = open_run(console, run)
    page.keyboard.press(".")
    page.get_by_role("button", name="Call again").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("item")).to_have_value("gold")  # the form of its schema, filled in
    dialog.get_by_role("tab", name="JSON").click()
    dialog.get_by_label("Input as JSON").fill('{"item": "tea"')
    expect(dialog.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    dialog.get_by_label("Input as JSON").fill('{"item": "te"}')
    dialog.get_by_role("tab", name="Form").click()
    dialog.get_by_label("item").fill("tea")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("3.5")
    assert console.find_accessibility_problems() == []
    dialog.get_by_role("link", name="Open the call").click()
    expect(page.get_by_role("heading", name="call_")).to_be_visible()


@pytest.mark.thorough
def test_what_was_left_out_of_a_large_tree_is_loaded_when_asked_for(console: Console, run: str) -> None:
    intercept(
        console.page,
        "**/nodes?limit=200000",
        answer=lambda route: route.continue_(url=route.request.url.replace("200000", "1")),
    )
    page = open_run(console, run)
    calls = page.get_by_role("treeitem").locator("b", has_text="shop.price")
    expect(page.get_by_role("note")).to_contain_text("of 3 calls are loaded")
    expect(calls).to_have_count(0)
    page.unroute("**/nodes?limit=200000")
    page.get_by_role("treeitem").filter(has_text="hub.call").click()
    page.get_by_role("button", name="Load what is below").click()
    expect(calls).to_have_count(2)
    assert console.find_accessibility_problems() == []
    page.get_by_role("button", name="Load more calls").click()
    expect(page.get_by_role("note")).to_have_count(0)
    expect(calls).to_have_count(2)


@pytest.mark.promise("console")
def test_a_run_that_waits_says_what_for_until_it_continues(
    console: Console, hub: Hub, upstream: Upstream
) -> None:
    question = {"name": "user_question", "arguments": {"text": "Which supplier?", "options": ["Halm"]}}
    order = {"calls": [{"tool": "shop.order", "input": {"item": "tea"}}]}
    mark = upstream.teach(
        [{"calls": [question]}], [{"calls": [{"name": "hub_call", "arguments": order}]}], [{"text": "Done."}]
    )
    page = console.open_list("/runs")
    first = ask(hub, "waiting", mark)
    page.get_by_role("button", name="1 new").click()
    row = page.locator(f"#row-{first}")
    expect(row).to_contain_text("waiting")
    expect(row).to_contain_text("waits for an answer to “Which supplier?”")
    row.click()
    header = page.locator(".screen-header")
    line = page.get_by_role("status").filter(has_text="Waits")
    expect(header).to_contain_text("waiting")
    expect(line).to_contain_text("for an answer to “Which supplier?”. Answer in the inbox")
    expect(header.get_by_role("button", name="Abort")).to_have_count(0)  # nothing is under way
    assert console.find_accessibility_problems() == []
    with page.expect_response("**/api/calls?*counts=1*"):  # the list is read anew
        page.keyboard.press("u")
    expect(row).to_contain_text("waiting")
    answer_request(hub, {"answer": "Halm"})
    expect(row).to_contain_text("done")  # the answer continues in another run
    expect(row).not_to_contain_text("waits")
    page.get_by_role("button", name="new", exact=False).first.click()
    page.get_by_role("row").filter(has_text="approval of shop.order").click()
    expect(line).to_contain_text("Waits for approval of shop.order.")
    console.go("/chat/waiting")
    expect(header).to_contain_text("waiting for approval of shop.order")
    expect(page.locator(".chat-session[aria-current=true]")).to_contain_text("waits for you")
    page.go_back()
    expect(line).to_be_visible()
    answer_request(hub, {"approved": True})
    expect(header).to_contain_text("done")
    expect(line).to_have_count(0)


@pytest.mark.usefixtures("run")
def test_what_begins_elsewhere_is_counted_and_does_not_move_the_rows(console: Console) -> None:
    page = console.open_list("/runs")
    rows = page.get_by_role("row")
    expect(rows.nth(1)).to_be_visible()
    before = rows.count()
    console.hub.request("POST", "/api/operations/shop.price/call", {"item": "tea"})
    page.get_by_role("button", name="1 new").click()
    expect(rows).to_have_count(before + 1)


@pytest.mark.usefixtures("run")
def test_the_next_page_is_loaded_by_who_came_to_the_end_while_the_list_was_read_anew(
    console: Console, hub: Hub
) -> None:
    first = hub.request("GET", "/api/calls?roots=1&limit=1&counts=1")[1]
    waiting: list[Route] = []

    def answer(route: Route) -> None:
        start = int(parse_qs(urlsplit(route.request.url).query).get("before", ["0"])[0])
        rows = [{**first["calls"][0], "id": f"run_{start + number}"} for number in range(100)]
        route.fulfill(json={**first, "calls": rows, "next": str(start + 100)})

    def hold(route: Route) -> None:
        waiting.append(route)

    intercept(console.page, "**/api/calls?*", answer=answer)
    page = console.open_list("/runs")
    grid = page.get_by_role("grid", name="Runs")
    expect(grid).to_have_attribute("aria-rowcount", "101")
    intercept(page, "**/api/calls?*", answer=hold, times=1)
    page.keyboard.press("r")  # read anew
    page.keyboard.press("G")
    expect(page.locator("#row-run_99")).to_be_visible()
    while not waiting:
        page.evaluate("0")  # Playwright handles what has happened meanwhile
    answer(waiting[0])
    expect(grid).to_have_attribute("aria-rowcount", "201")


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1360])
def test_each_view_of_a_run_is_accessible_at_each_width(
    hub: Hub, run: str, start_console: StartConsole, *, width: int, theme: str
) -> None:
    console = start_console(hub, width=width, theme=theme)
    for path in ("/runs", *(f"/runs/{run}?tab={tab}" for tab in ("tree", "messages", "events", "prompt"))):
        page = console.open(path)
        expect(page.locator(".table, .runs-tree, .runs-talk, .runs-events")).to_be_visible()
        assert console.find_accessibility_problems() == [], path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


@pytest.mark.thorough
@pytest.mark.usefixtures("run")
def test_a_call_that_runs_is_shown_live_and_aborted(console: Console) -> None:
    page = console.open_list("/runs")
    page.evaluate(WAIT_FOR_EVER)
    page.get_by_role("button", name="1 new").click()
    page.get_by_role("row").filter(has_text="shop.wait").click()
    page.get_by_role("button", name="Abort").click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    expect(page.get_by_role("treeitem")).to_contain_text("aborted")


@pytest.mark.thorough
def test_ten_thousand_calls_are_listed_page_by_page(
    start_hub: Callable[..., Hub], start_console: StartConsole
) -> None:
    hub = start_hub()
    now = time.time()
    with open_database(hub) as database:
        database.executemany(
            "INSERT INTO calls"
            " (id, owner, operation, effect, input, input_hash, status, started_at, ended_at)"
            " VALUES (?, 'ann', 'shop.price', 'read', '{}', 'h', 'done', ?, ?)",
            ((f"call_{at:05}", now - 20_000 + at, now - 20_000 + at + 0.5) for at in range(10_000)),
        )
    console = start_console(hub)
    page = console.open_list("/runs")
    expect(page.locator(".screen-header")).to_contain_text("10,000")
    expect(page.get_by_role("row").nth(5)).to_be_visible()
    assert page.get_by_role("row").count() < 100
    with console.page.expect_response("**/api/calls?*before=*"):
        page.keyboard.press("G")  # the last one that is loaded: the next page is loaded then
    expect(page.locator("#row-call_09899")).to_be_visible()  # the first one of that page
    expect(page.locator("[role=row]:not(:visible)")).to_have_count(0)  # rows that are not measured yet
    assert console.find_accessibility_problems() == []


@pytest.mark.thorough
def test_a_tree_of_100_000_calls_opens_and_is_moved_through(
    start_hub: Callable[..., Hub], start_console: StartConsole
) -> None:
    hub = start_hub()
    with open_database(hub) as database:
        fill(database, time.time() - 600.0)
    console = start_console(hub)
    page = open_run(console, "run_big")
    expect(page.get_by_role("treeitem").nth(3)).to_be_visible()
    expect(page.get_by_role("definition").filter(has_text="100,000")).to_be_visible()
    expect(page.locator(".runs-filter [role=status]")).to_have_text("")  # everything has arrived
    page.keyboard.press("0")
    page.get_by_role("treeitem").first.focus()
    page.keyboard.press("End")
    last = page.get_by_role("treeitem", selected=True)
    expect(last).to_be_focused()
    expect(last).to_have_attribute("id", f"node-call_{MANY - 1:06}")
    assert page.get_by_role("treeitem").count() < 200  # rows that are looked at, not all
    page.keyboard.press("f")
    expect(page.get_by_role("treeitem").nth(2)).to_be_visible()
    assert console.requests.count("GET /api/calls/run_big/nodes") == 1


def fill(database: sqlite3.Connection, began: float) -> None:
    """A run with very many calls, each hundredth the parent of those behind it."""
    owner = "ann"
    database.execute(
        "INSERT INTO sessions (id, owner, title, created_at, updated_at) VALUES ('big', ?, 'Big', ?, ?)",
        (owner, began, began),
    )
    database.execute(
        "INSERT INTO runs (id, session_id, message_id, owner, status, started_at, finished_at, steps)"
        " VALUES ('run_big', 'big', 'm', ?, 'finished', ?, ?, 1)",
        (owner, began, began + 110.0),
    )
    rows = (
        (
            f"call_{at:06}",
            None if at % 100 == 0 else f"call_{at - at % 100:06}",
            owner,
            "failed" if at % 997 == 1 else "done",
            began + at * 1e-3,
            began + at * 1e-3 + 5e-4,
        )
        for at in range(MANY)
    )
    database.executemany(
        "INSERT INTO calls (id, parent_id, run_id, operation, effect, owner, input, input_hash, status,"
        " started_at, ended_at, step)"
        " VALUES (?, ?, 'run_big', 'shop.price', 'read', ?, '{}', 'h', ?, ?, ?, 1)",
        rows,
    )
