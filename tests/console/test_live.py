"""What is shown stays true while the hub goes on: hidden tabs, broken streams, answers out of order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import Console, HeldRequest, begin_run, intercept, wait_for_run
from tests.console.conftest import StartConsole

SHOP = '''
import asyncio

from dragoman import operation

opened = asyncio.Event()


@operation("shop", effect="read")
async def price(item: str) -> float:
    """Look up a price."""
    return 3.5


@operation("shop", effect="read")
async def wait() -> None:
    """Wait until the shop opens."""
    opened.clear()
    await opened.wait()


@operation("shop", effect="idempotent")
async def open() -> None:
    """Open the shop."""
    opened.set()


@operation("shop", effect="once")
async def order(item: str) -> str:
    """Order an item."""
    return f"ordered {item}"
'''
SET_VISIBILITY = """(state) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
RESET = 'data: {"id":null,"name":"reset","data":{}}\n\n'
TOO_MANY = {"error": {"code": "rate_limited", "message": "2000 streams are open"}}


@pytest.fixture(scope="module")
def hub(start_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory) -> Hub:
    shop = tmp_path_factory.mktemp("shop") / "shop.py"
    shop.write_text(SHOP, encoding="utf-8")
    return start_hub(operations=[str(shop)], policy=[{"ask": "shop.order"}])


def show_tab(page: Page) -> None:
    page.evaluate(SET_VISIBILITY, "visible")


def hide_tab(page: Page) -> None:
    """Hide the tab, which ends its stream of events."""
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/api/events")):
        page.evaluate(SET_VISIBILITY, "hidden")


def new_rows(page: Page) -> Locator:
    return page.get_by_role("button", name="new", exact=False).filter(has_text="new")


def call(hub: Hub, operation: str, **arguments: str) -> None:
    assert hub.request("POST", f"/api/operations/{operation}/call", arguments)[0] == 200


@contextmanager
def waiting_call(hub: Hub) -> Iterator[None]:
    """A call that has begun, and ends when the shop opens."""
    thread = threading.Thread(target=call, args=(hub, "shop.wait"))
    thread.start()
    while not hub.request("GET", "/api/calls?operation=shop.wait&status=running")[1]["calls"]:
        time.sleep(0.05)  # nothing tells this process of its start
    try:
        yield
    finally:
        call(hub, "shop.open")
        thread.join()


def test_a_hidden_tab_shows_what_began_and_ended_meanwhile_once_it_is_shown(
    hub: Hub, start_console: StartConsole
) -> None:
    with waiting_call(hub):
        console = start_console(hub)
        page = console.open_list("/runs")
        row = page.get_by_role("row").filter(has_text="shop.wait")
        expect(row).to_contain_text("running")
        hide_tab(page)
        with page.expect_response("**/api/calls?*"):
            show_tab(page)
        expect(new_rows(page)).to_have_count(0)
        hide_tab(page)
    before = page.get_by_role("row").count()
    call(hub, "shop.price", item="tea")
    show_tab(page)
    expect(row).to_contain_text("done")
    expect(new_rows(page)).to_have_text(["2 new"])  # the call that opened the shop, and the price
    assert page.get_by_role("row").count() == before
    assert console.requests.count("GET /api/events") == 3


@pytest.mark.thorough
def test_the_operations_and_the_log_of_a_tab_that_was_hidden_are_read_anew(
    console: Console, hub: Hub
) -> None:
    page = console.open("/inbox")
    call(hub, "shop.order", item="an event to go on behind")
    expect(page.get_by_role("article")).to_have_count(1)
    for path, request in (
        ("/operations?tab=servers", "**/api/mcp/servers*"),
        ("/system?tab=log", "**/api/logs?*"),
    ):
        with page.expect_response(request):
            console.go(path)
        hide_tab(page)
        with page.expect_response(request):
            show_tab(page)
    deny_all(hub)


@pytest.mark.thorough
def test_a_tab_that_is_opened_in_the_background_is_true_when_it_is_shown(console: Console) -> None:
    console.page.add_init_script(f"({SET_VISIBILITY})('hidden')")
    page = console.open_list("/runs")
    call(console.hub, "shop.price", item="tea")
    show_tab(page)
    expect(new_rows(page)).to_have_text(["1 new"])


def test_a_list_that_is_read_after_a_run_began_does_not_count_it(
    console: Console, hub: Hub, upstream: Upstream
) -> None:
    page = console.page
    with HeldRequest(page, "**/api/calls?*") as request:
        console.open("/runs")
    run = begin_run(hub, "counted", upstream.teach([{"text": "Counted."}]))
    wait_for_run(hub, run)
    request.let_go()
    expect(page.locator(f"#row-{run}")).to_contain_text("done")
    call(hub, "shop.price", item="tea")
    expect(new_rows(page)).to_have_text(["1 new"])  # the call alone


@pytest.mark.thorough
def test_what_begins_before_the_stream_is_live_is_counted(
    console: Console, hub: Hub, upstream: Upstream
) -> None:
    page = console.page
    with HeldRequest(page, "**/api/events") as request:
        console.open_list("/runs", waits_for_stream=False)
    wait_for_run(hub, begin_run(hub, "early", upstream.teach([{"text": "Early."}])))
    request.let_go()
    expect(new_rows(page)).to_have_text(["1 new"])


@pytest.mark.thorough
def test_only_what_the_filters_let_through_is_counted(console: Console, hub: Hub, upstream: Upstream) -> None:
    page = console.open_list("/runs?kind=call")
    wait_for_run(hub, begin_run(hub, "filtered", upstream.teach([{"text": "No call."}])))
    call(hub, "shop.price", item="tea")
    expect(new_rows(page)).to_have_text(["1 new"])


@pytest.mark.thorough
def test_a_run_that_ends_in_the_list_shows_what_it_took(
    console: Console, hub: Hub, upstream: Upstream, gate: str
) -> None:
    run = begin_run(hub, "figures", upstream.teach([{"text": "Half "}, {"gate": gate}, {"text": "whole."}]))
    page = console.open_list("/runs")
    row = page.locator(f"#row-{run}")
    expect(row).to_contain_text("running")
    upstream.open(gate)
    expect(row).to_contain_text("done")
    expect(row).to_contain_text("11 / 7")  # tokens


def test_a_tree_that_is_read_while_its_run_ends_shows_the_end(
    console: Console, hub: Hub, upstream: Upstream, gate: str
) -> None:
    run = begin_run(hub, "ending", upstream.teach([{"text": "Half "}, {"gate": gate}, {"text": "whole."}]))
    page = console.page
    with HeldRequest(page, "**/nodes?limit=*") as request:
        console.open(f"/runs/{run}")
    early = request.read()
    upstream.open(gate)
    wait_for_run(hub, run)
    request.answer(early)
    expect(page.locator(".screen-header")).to_contain_text("done")


def test_a_run_that_has_ended_is_not_shown_as_running_by_an_answer_from_before(
    console: Console, hub: Hub, upstream: Upstream, gate: str
) -> None:
    run = begin_run(hub, "overtaken", upstream.teach([{"text": "Half "}, {"gate": gate}, {"text": "whole."}]))
    page = console.open_list("/runs")
    row = page.locator(f"#row-{run}")
    expect(row).to_contain_text("running")
    hide_tab(page)
    with HeldRequest(page, "**/api/calls?*") as request:
        show_tab(page)
    early = request.read()
    upstream.open(gate)
    expect(row).to_contain_text("11 / 7")  # it was read once more
    request.answer(early)
    call(hub, "shop.price", item="tea")
    expect(new_rows(page)).to_have_text(["1 new"])
    expect(row).to_contain_text("done")
    expect(row).to_contain_text("11 / 7")


def test_a_call_that_ends_while_its_tab_is_hidden_has_ended_when_it_is_shown(
    console: Console, hub: Hub
) -> None:
    page = console.page
    with waiting_call(hub):
        [found] = hub.request("GET", "/api/calls?operation=shop.wait&status=running")[1]["calls"]
        console.open(f"/runs/{found['id']}")
        expect(page.locator(".screen-header")).to_contain_text("running")
        call(hub, "shop.order", item="an event to go on behind")
        expect(page.get_by_label("1 waiting").first).to_be_visible()
        hide_tab(page)
    show_tab(page)
    expect(page.locator(".screen-header")).to_contain_text("done")
    deny_all(hub)


def test_a_tree_shows_the_end_of_its_run_whatever_is_answered_last(
    console: Console, hub: Hub, upstream: Upstream, gate: str
) -> None:
    script = [{"text": "Half "}, {"gate": gate}, {"text": "whole."}]
    run = begin_run(hub, "looked at", upstream.teach(script))
    page, header = console.page, console.page.locator(".screen-header")
    page.clock.install()
    console.open(f"/runs/{run}")
    expect(header).to_contain_text("running")
    hide_tab(page)
    intercept(page, "**/api/events", answer=lambda route: route.fulfill(body=RESET), times=1)
    with HeldRequest(page, "**/nodes?since=*") as request:
        show_tab(page)
    early = request.read()
    upstream.open(gate)
    expect(header).to_contain_text("done")
    with page.expect_response("**/nodes?since=*"):
        request.answer(early)
    for _ in range(5):
        page.clock.run_for(300)  # it would be drawn by now
    expect(header).to_contain_text("done")


def deny_all(hub: Hub) -> None:
    for approval in hub.request("GET", "/api/approvals?status=pending")[1]["approvals"]:
        hub.request("POST", f"/api/approvals/{approval['id']}", {"approved": False})


def test_what_happens_while_something_is_read_is_read_behind_it(console: Console, hub: Hub) -> None:
    page, counts = console.page, "**/api/approvals?*limit=1&*"
    page.clock.install()
    with HeldRequest(page, counts) as request:
        console.open("/inbox")
    early = request.read()
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    call(hub, "shop.order", item="tea")
    expect(page.get_by_role("article")).to_have_count(1)  # the event has come
    page.clock.run_for(1_000)
    request.answer(early)
    expect(page.get_by_label("1 waiting").first).to_be_visible()
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    with HeldRequest(page, counts) as request:
        call(hub, "shop.order", item="gold")
        expect(new_rows(page)).to_have_text(["1 new"])
        page.clock.run_for(1_000)
    early = request.read()
    call(hub, "shop.order", item="salt")
    expect(new_rows(page)).to_have_text(["2 new"])
    page.clock.run_for(1_000)
    request.answer(early)
    expect(page.get_by_label("3 waiting").first).to_be_visible()
    assert failed == []  # where something happens all the time, each request is answered still
    deny_all(hub)


def test_the_inbox_counts_as_new_only_what_is_new(console: Console, hub: Hub) -> None:
    call(hub, "shop.order", item="one")
    page = console.open("/inbox")
    entries = page.get_by_role("article")
    expect(entries).to_have_count(1)
    call(hub, "shop.order", item="two")
    expect(new_rows(page)).to_have_text(["1 new"])
    new_rows(page).click()
    expect(entries).to_have_count(2)
    hide_tab(page)
    intercept(page, "**/api/events", answer=lambda route: route.fulfill(body=RESET), times=1)
    with page.expect_response("**/api/approvals?*compare=1*"):  # events may be missing: it is read anew
        show_tab(page)
    expect(new_rows(page)).to_have_count(0)
    deny_all(hub)
    expect(entries).to_have_count(0)
    page.get_by_role("button", name="History").click()
    expect(entries.first).to_contain_text("denied")
    call(hub, "shop.order", item="three")
    deny_all(hub)
    expect(new_rows(page)).to_have_text(["1 new"])  # the answer, not the request


def test_an_answer_that_is_made_anew_at_once_takes_the_place_of_the_one_before(
    console: Console, upstream: Upstream, gate: str
) -> None:
    mark = upstream.teach([{"text": "One."}], [{"text": "Two."}, {"gate": gate}], in_order=True)
    page = console.open("/chat")
    answers = page.get_by_role("article", name="Answer")
    with HeldRequest(page, "**/messages*") as stored:  # read when the answer has ended
        page.get_by_label("Message", exact=True).fill(mark)
        page.keyboard.press("Enter")
        expect(answers).to_contain_text("One.")
    with HeldRequest(page, "**/api/chat") as sent:
        page.get_by_role("button", name="Regenerate").click()
    with page.expect_response("**/messages*"):
        stored.let_go()
    sent.let_go()
    expect(answers.last).to_contain_text("Two.")
    expect(answers).to_have_count(1)


def test_the_tab_that_comes_second_says_so_loses_nothing_and_follows_the_answer(
    hub: Hub, start_console: StartConsole, upstream: Upstream, gate: str
) -> None:
    mark = upstream.teach([{"text": "One."}], [{"text": "Two."}, {"gate": gate}], in_order=True)
    pages = [start_console(hub).open("/chat")]
    pages[0].get_by_label("Message", exact=True).fill(mark)
    pages[0].keyboard.press("Enter")
    second = start_console(hub)
    second.expected_errors = {409}
    pages.append(second.open(urlsplit(pages[0].url).path.removeprefix("/console")))
    for page in pages:
        expect(page.get_by_role("button", name="Regenerate")).to_be_enabled()
    pages[1].get_by_role("button", name="Edit").click()
    pages[1].get_by_role("textbox", name="Message").first.fill("in other words")
    with HeldRequest(pages[1], "**/api/chat") as sent:
        pages[1].keyboard.press("Enter")
    pages[0].get_by_role("button", name="Regenerate").click()
    expect(pages[0].get_by_role("article", name="Answer")).to_contain_text("Two.")
    sent.let_go()
    expect(pages[1].get_by_role("alert")).to_contain_text("Another tab began an answer in this session first")
    expect(pages[1].get_by_role("article", name="Answer")).to_contain_text("Two.")
    expect(pages[1].get_by_role("textbox", name="Message").first).to_have_value("in other words")
    upstream.open(gate)
    expect(pages[1].get_by_role("button", name="Regenerate")).to_be_enabled()
    expect(pages[1].get_by_role("alert")).to_have_count(0)


def test_a_sign_in_that_ends_while_somebody_works_leaves_all_that_was_typed(
    hub: Hub, start_console: StartConsole, upstream: Upstream, gate: str
) -> None:
    console = start_console(hub)
    console.expected_errors = {401}
    page = console.open("/chat")
    message = page.get_by_label("Message", exact=True)
    key = page.get_by_role("textbox", name="Key")
    message.fill(upstream.teach([{"text": "Half "}, {"gate": gate}, {"text": "whole."}]))
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Half")
    message.fill("not to be lost")
    page.context.clear_cookies()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Your sign-in has ended")
    assert console.find_accessibility_problems() == []
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(key).to_be_focused()
    upstream.open(gate)
    page.keyboard.type("dgm_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("unknown to this hub")
    key.fill(hub.key)
    page.keyboard.press("Enter")
    expect(key).to_have_count(0)
    expect(message).to_be_focused()
    expect(message).to_have_value("not to be lost")
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Half whole.")
    console.go("/keys")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("n")
    page.get_by_label("Label", exact=True).fill("half filled in")
    page.context.clear_cookies()
    page.keyboard.press("Enter")
    key.fill(hub.key)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Label", exact=True)).to_have_value("half filled in")
    expect(page.get_by_label("Label", exact=True)).to_be_focused()
    call(hub, "shop.price", item="tea")
    console.go("/runs")
    expect(page.get_by_role("row").filter(has_text="shop.price").first).to_be_visible()


@pytest.mark.thorough
def test_somebody_else_who_signs_in_again_gets_a_new_page(hub: Hub, start_console: StartConsole) -> None:
    secret = hub.request("POST", "/api/keys", {"owner": "bob", "scopes": ["chat"]})[1]["key"]
    console = start_console(hub)
    console.expected_errors = {401, 404}  # the session of the draft was never made
    page = console.open("/chat")
    page.get_by_label("Message", exact=True).fill("a secret")
    page.context.clear_cookies()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Key").fill(secret)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


@pytest.mark.thorough
def test_leaving_the_chat_ends_the_stream_of_its_answer(
    console: Console, upstream: Upstream, gate: str
) -> None:
    page = console.open("/chat")
    page.get_by_label("Message", exact=True).fill(upstream.teach([{"text": "Half "}, {"gate": gate}]))
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Half")
    with page.expect_event("requestfailed", lambda request: "/stream" in request.url):
        console.go("/runs")


def test_whoever_signs_in_next_sees_nothing_of_the_one_before(hub: Hub, browser: Browser) -> None:
    body = {"owner": "bob", "scopes": ["chat", "operations"]}
    secret = hub.request("POST", "/api/keys", body)[1]["key"]
    call(hub, "shop.price", item="tea")
    context = browser.new_context()
    context.request.post(f"{hub.url}/api/console/session", data={"key": hub.key})
    page = Console(hub, context.new_page()).open_list("/runs")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("navigation")).to_have_count(0)  # the list is gone, and reads nothing more
    with HeldRequest(page, "**/api/calls?*") as request:
        page.get_by_label("Key").fill(secret)
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(0)
    request.let_go()
    expect(page.get_by_text("No runs yet")).to_be_visible()
    context.close()


@pytest.mark.thorough
def test_a_hub_that_refuses_the_stream_is_not_said_to_be_away(console: Console) -> None:
    console.expected_errors = {429}
    page = console.page
    intercept(page, "**/api/events", answer=lambda route: route.fulfill(status=429, json=TOO_MANY))
    console.open_list("/runs")
    notice = page.get_by_role("status").filter(has_text="What you see may be old")
    expect(notice).to_contain_text("The hub sends no events: 2000 streams are open.")


@pytest.mark.thorough
def test_a_browser_without_a_network_reads_from_a_hub_on_its_machine(console: Console) -> None:
    page = console.open_list("/runs")
    page.evaluate("dispatchEvent(new Event('offline'))")
    console.go("/keys")
    expect(page.get_by_role("row", name="ann").first).to_be_visible()


def test_a_page_that_was_opened_before_an_upgrade_says_so(console: Console) -> None:
    page = console.open_list("/runs")
    version = page.request.get(f"{console.hub.url}/api/console/session").json()["version"]
    notice = page.get_by_role("status").filter(has_text="this page is from")
    hide_tab(page)
    with page.expect_response("**/api/console/session"):
        show_tab(page)
    expect(notice).to_have_count(0)

    def upgrade(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "version": "99.0.0"})

    intercept(page, "**/api/console/session", answer=upgrade)
    hide_tab(page)
    show_tab(page)
    expect(notice).to_contain_text(f"The hub now runs version 99.0.0; this page is from version {version}.")
    assert console.find_accessibility_problems() == []
    with page.expect_navigation():
        notice.get_by_role("button", name="Load it again").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(notice).to_have_count(0)
