"""An answer that another client began is followed, however late a page hears of it."""

from __future__ import annotations

import uuid

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.clients.upstream import Upstream
from tests.console.browsing import Console, HeldRequest, begin_run, wait_for_run


@pytest.fixture
def session(console: Console, upstream: Upstream) -> str:
    """A session with one answer."""
    session = f"chat_{uuid.uuid4().hex}"
    wait_for_run(console.hub, begin_run(console.hub, session, upstream.teach([{"text": "First."}])))
    return session


def last_answer(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer").last


def test_an_answer_that_begins_before_a_page_hears_of_events_is_shown_as_it_comes(
    console: Console, upstream: Upstream, session: str, gate: str
) -> None:
    first = uuid.uuid4().hex
    with HeldRequest(console.page, "**/api/events") as stream:
        page = console.open(f"/chat/{session}", waits_for_stream=False)
    expect(last_answer(page)).to_contain_text("First.")
    begin_run(console.hub, session, upstream.teach([{"gate": first}, {"text": "Long work "}, {"gate": gate}]))
    with page.expect_response("**/messages"):
        stream.let_go()
    upstream.open(first)
    expect(last_answer(page)).to_contain_text("Long work")


def test_an_answer_that_begins_while_a_page_asks_for_the_one_before_is_shown_as_it_comes(
    console: Console, upstream: Upstream, session: str, gate: str
) -> None:
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    run = begin_run(console.hub, session, upstream.teach([{"gate": first}, {"text": "Second."}]))
    with HeldRequest(console.page, "**/stream?*") as stream:
        page = console.open(f"/chat/{session}")
    upstream.open(first)
    wait_for_run(console.hub, run)
    expect(last_answer(page)).to_contain_text("Second.")
    mark = upstream.teach([{"gate": second}, {"text": "Long work "}, {"gate": gate}])
    with page.expect_response("**/api/sessions?*"):  # which the event of the beginning asks for
        begin_run(console.hub, session, mark)
    with page.expect_response("**/messages"):
        stream.find_nothing()  # as the hub does between the two
    upstream.open(second)
    expect(last_answer(page)).to_contain_text("Long work")


def rename(console: Console, session: str, title: str) -> None:
    """Rename a session, and wait until the page shows it: what the hub has told before is shown as well."""
    assert console.hub.request("PATCH", f"/api/sessions/{session}", {"title": title})[0] == 200
    expect(console.page.get_by_role("heading", name=title)).to_be_visible()


def test_what_the_model_refused_is_still_told_when_the_page_hears_of_events_late(
    console: Console, session: str
) -> None:
    page, alert = console.page, console.page.get_by_role("alert")
    with HeldRequest(page, "**/api/events") as stream:
        console.open(f"/chat/{session}", waits_for_stream=False)
    page.get_by_label("Message", exact=True).fill("#refuse please")
    page.keyboard.press("Enter")
    expect(alert).to_contain_text("does not like this question")
    with page.expect_response("**/messages"):  # read anew
        stream.let_go()
    rename(console, session, "Refused")
    expect(alert).to_contain_text("does not like this question")
    expect(page.get_by_role("button", name="Try again")).to_be_enabled()


def test_a_message_that_has_been_answered_waits_no_longer_whatever_is_answered_last(
    console: Console, upstream: Upstream, session: str, gate: str
) -> None:
    page = console.open(f"/chat/{session}")
    waiting = page.get_by_role("list", name="Messages that wait")
    message = page.get_by_label("Message", exact=True)
    message.fill(upstream.teach([{"text": "Long work "}, {"gate": gate}]))
    page.keyboard.press("Enter")
    expect(last_answer(page)).to_contain_text("Long work")
    with HeldRequest(page, "**/queue") as queue:
        message.fill(upstream.teach([{"text": "Steered."}]))
        page.keyboard.press("Enter")
    expect(waiting).to_be_visible()
    early = queue.read()
    upstream.open(gate)
    expect(last_answer(page)).to_contain_text("Steered.")
    expect(last_answer(page).get_by_role("button", name="Regenerate")).to_be_enabled()
    expect(waiting).to_be_hidden()
    queue.answer(early)
    rename(console, session, "Answered")
    expect(waiting).to_be_hidden()
