"""The inbox: what waits for a person, and their answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.clients.hub import Hub
from tests.console.browsing import Console, open_database
from tests.console.conftest import StartConsole

SHOP = '''
from dragoman import operation


@operation("shop", effect="once")
async def refund(order: int, amount: float = 0.0, note: str = "") -> str:
    """Refund an order."""
    return f"refunded {order}"
'''
SCROLL_TO_NEXT_PAGE = """(list) => new Promise((done) => {
    const before = list.scrollHeight;
    list.scrollTo(0, before);
    const look = () => (list.scrollHeight > before ? done() : requestAnimationFrame(look));
    look();
})"""
RULES: list[dict[str, Any]] = [{"ask": "shop.refund", "reason": "money leaves"}]


@pytest.fixture(scope="module")
def hub(start_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory) -> Hub:
    shop = tmp_path_factory.mktemp("shop") / "shop.py"
    shop.write_text(SHOP, encoding="utf-8")
    return start_hub(operations=[str(shop)], policy=RULES)


@pytest.fixture(autouse=True)
def nothing_waits(hub: Hub) -> None:
    """What an earlier test left is denied."""
    for approval in hub.request("GET", "/api/approvals?status=pending")[1]["approvals"]:
        hub.request("POST", f"/api/approvals/{approval['id']}", {"approved": False})


def refund(hub: Hub, order: int, amount: float) -> dict[str, Any]:
    body = {"order": order, "amount": amount}
    found: dict[str, Any] = hub.request("POST", "/api/operations/shop.refund/call", body)[1]
    return found


def test_requests_are_answered_by_keyboard_and_compared_with_the_last_approved_one(
    console: Console, hub: Hub
) -> None:
    page = console.open("/inbox")
    expect(page.get_by_role("heading", name="Nothing waits for you")).to_be_visible()
    assert console.find_accessibility_problems() == []
    refund(hub, 4398, 12.5)
    entries = page.get_by_role("article")
    expect(entries).to_contain_text("4398")  # it came by itself
    expect(entries).to_contain_text("money leaves")
    page.keyboard.press("a")
    expect(entries).to_have_count(0)
    assert refund(hub, 4398, 12.5)["result"] == "refunded 4398"
    refund(hub, 4411, 86.0)
    expect(entries).to_contain_text("4398")  # the order before
    expect(page.locator(".inbox-diff li")).to_have_text(["order: 4398 → 4411", "amount: 12.5 → 86"])
    assert console.find_accessibility_problems() == []
    page.keyboard.press("d")
    expect(page.get_by_label("Why?")).to_be_focused()
    page.keyboard.type("not on a Friday")
    page.keyboard.press("Enter")
    expect(entries).to_have_count(0)
    page.get_by_role("button", name="History").click()
    expect(entries.first).to_contain_text("not on a Friday")


def test_a_difference_far_inside_of_a_long_argument_is_shown(console: Console, hub: Hub) -> None:
    notes = [f"{'word ' * 200}pay {amount}" for amount in (10, 1000)]
    page = console.open("/inbox")
    for note in notes:
        call = {"order": 51, "amount": 1.0, "note": note}
        hub.request("POST", "/api/operations/shop.refund/call", call)
        entries = page.get_by_role("article")
        expect(entries).to_have_count(1)
        if note != notes[-1]:
            page.keyboard.press("a")
            expect(entries).to_have_count(0)
    expect(page.locator(".inbox-diff li")).to_have_count(1)
    expect(page.locator(".inbox-diff del")).to_contain_text("word pay 10")
    expect(page.locator(".inbox-diff ins")).to_contain_text("word pay 1000")


def test_what_is_too_long_to_be_shown_at_once_is_approved_only_when_all_of_it_was_opened(
    console: Console, hub: Hub
) -> None:
    console.keep_toasts()
    page = console.open("/inbox")
    entry = page.get_by_role("article")
    approve = entry.get_by_role("button", name="Approve")
    for at, note in enumerate(("x" * 30_000, "y" * 30_000, "z" * 1_100_000)):
        call = {"order": 61 + at, "amount": 1.0, "note": f"{note} and send it to me"}
        hub.request("POST", "/api/operations/shop.refund/call", call)
        expect(entry).to_contain_text(f"{61 + at}")
        expect(approve).to_be_disabled()
        expect(entry).to_contain_text("Its arguments are not all shown")
        page.keyboard.press("a")
        expect(page.get_by_text("open them first").last).to_be_visible()
        assert console.find_accessibility_problems() == []
        while entry.locator("[data-more]").count():
            expect(approve).to_be_disabled()
            page.keyboard.press("o")
        expect(entry.locator("pre")).to_contain_text("and send it to me")
        page.keyboard.press("a")
        expect(entry).to_have_count(0)
    answers = [request for request in console.requests if request.startswith("POST /api/approvals/")]
    assert len(answers) == 3, answers


def test_a_request_that_expires_while_it_is_looked_at_can_no_longer_be_answered(
    console: Console, hub: Hub
) -> None:
    refund(hub, 77, 1.0)
    console.page.clock.install()
    page = console.open("/inbox")
    entry = page.get_by_role("article")
    expect(entry).to_contain_text("expires in")
    page.clock.fast_forward("48:00:00")
    expect(entry.get_by_role("button", name="Approve")).to_have_count(0)
    expect(entry).to_contain_text("expired")
    page.keyboard.press("a")
    assert not [request for request in console.requests if request.startswith("POST /api/approvals")]


@pytest.mark.thorough
def test_a_browser_whose_clock_is_days_off_shows_the_times_of_the_hub(console: Console, hub: Hub) -> None:
    refund(hub, 78, 1.0)
    console.page.clock.install(time=time.time() + 3 * 86_400)
    entry = console.open("/inbox").get_by_role("article")
    expect(entry).to_contain_text("expires in 23:5")
    expect(entry.get_by_role("button", name="Approve")).to_be_enabled()


@pytest.mark.promise("always-allow")
def test_a_person_always_allows_an_operation_and_revokes_that(console: Console, hub: Hub) -> None:
    refund(hub, 1, 1.0)
    page = console.open("/inbox")
    page.get_by_role("button", name="Always allow…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("whatever its arguments")
    assert console.find_accessibility_problems() == []
    dialog.get_by_role("button", name="Always allow").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert refund(hub, 2, 2.0)["status"] == "done"
    page.get_by_role("button", name="Always allowed").click()
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("Nothing is always allowed")
    assert refund(hub, 3, 3.0)["status"] == "pending"


@pytest.mark.thorough
def test_several_requests_are_answered_at_once(console: Console, hub: Hub) -> None:
    orders = range(30, 33)  # other tests leave approvals of theirs, which a call of the same order would use
    for order in orders:
        refund(hub, order, 1.0)
    page = console.open("/inbox")
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Select all 3").click()
    page.get_by_role("button", name="Approve 3").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert [refund(hub, order, 1.0)["status"] for order in orders] == ["done"] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1360])
def test_the_inbox_is_accessible_at_each_width(
    hub: Hub, start_console: StartConsole, *, width: int, theme: str
) -> None:
    refund(hub, width, 5.0)  # no earlier test has approved it
    console = start_console(hub, width=width, theme=theme)
    page = console.open("/inbox")
    expect(page.get_by_role("article")).to_be_visible()
    assert console.find_accessibility_problems() == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.thorough
def test_ten_thousand_requests_are_drawn_where_they_are_looked_at_and_loaded_in_pages(
    start_hub: Callable[..., Hub], start_console: StartConsole, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    hub = start_hub(operations=[str(tmp_path / "shop.py")], policy=RULES)
    refund(hub, 1, 1.0)
    with open_database(hub) as database:
        [columns] = [[row[1] for row in database.execute("PRAGMA table_info(approvals)")]]
        copied = [{"id": "'app_' || n", "created_at": "created_at + n"}.get(name, name) for name in columns]
        database.execute(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 9999)"
            f" INSERT INTO approvals ({', '.join(columns)})"
            f" SELECT {', '.join(copied)} FROM approvals, numbers"
        )
    console = start_console(hub)
    began = time.monotonic()
    page = console.open("/inbox")
    entries = page.get_by_role("article")
    expect(entries.first).to_be_visible()
    print("inbox, first rows", round(time.monotonic() - began, 2))
    expect(page.locator(".screen-header")).to_contain_text("10,000 waiting")
    expect(page.get_by_label("10000 waiting").first).to_have_text("99+")
    assert entries.count() < 40
    assert sum(request == "GET /api/approvals" for request in console.requests) <= 3, console.requests
    feed = page.get_by_role("feed")
    for _ in range(5):
        feed.evaluate(SCROLL_TO_NEXT_PAGE)
    assert entries.count() < 40
    assert console.find_accessibility_problems() == []
    page.keyboard.press("a")
    expect(page.locator(".screen-header")).to_contain_text("9,999 waiting")
    assert sum(request == "GET /api/approvals" for request in console.requests) <= 20, console.requests
