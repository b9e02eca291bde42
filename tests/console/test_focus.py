"""The keyboard focus: it is never lost, whatever leaves the page under it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import Console
from tests.console.conftest import StartConsole

INPUT = {"time": "2026-01-01T10:00:00Z", "to_timezone": "Europe/Berlin"}
MOST_TABS = 30
QUESTION = {"name": "user_question", "arguments": {"text": "Which first?", "options": ["Nordwind", "Halm"]}}
BATCH = {"calls": [{"name": "hub_call", "arguments": {"calls": [{"tool": "time.convert", "input": INPUT}]}}]}


@pytest.fixture(scope="module")
def hub(start_hub: Callable[..., Hub]) -> Hub:
    return start_hub(policy=[{"ask": "time.convert"}], pinned=["user.question"])


def expect_focus(page: Page, name: str) -> None:
    """Something whose name has these words takes the focus and shows it."""
    expect(page.locator(":focus-visible")).to_have_accessible_name(re.compile(name))


def tab_to(page: Page, name: str) -> None:
    """Press Tab until something that has this word takes the focus and shows it."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.locator(":focus-visible").filter(has_text=re.compile(f"^{name}")).count():
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def press(page: Page, button: Locator) -> None:
    """Press a button as the keyboard does, once it can be pressed."""
    expect(button).to_be_enabled()
    button.focus()
    page.keyboard.press("Enter")


@pytest.mark.promise("console-keyboard")
def test_what_takes_its_place_has_the_focus_when_a_button_of_the_chat_goes(
    console: Console, upstream: Upstream, gate: str
) -> None:
    page = console.open("/chat")
    message = page.get_by_label("Message", exact=True)
    mark = upstream.teach([{"text": "One."}], [{"text": "Two."}, {"gate": gate}], in_order=True)
    message.fill(f"{mark} count")
    press(page, page.get_by_role("button", name="Send"))  # it goes while the answer is made
    expect(message).to_be_focused()
    press(page, page.get_by_role("button", name="Regenerate"))  # its answer goes
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Two.")
    expect_focus(page, "Copy")
    press(page, page.get_by_role("button", name="Stop"))
    expect(message).to_be_focused()
    upstream.open(gate)
    press(page, page.get_by_role("button", name="Earlier version"))
    expect(page.get_by_role("article", name="Answer")).to_contain_text("One.")
    expect(page.get_by_role("button", name="Later version")).to_be_focused()

    message.fill(f"{upstream.teach([BATCH], [{'text': 'Denied.'}])} convert")
    press(page, page.get_by_role("button", name="Send"))
    press(page, page.get_by_role("button", name="Deny…"))
    press(page, page.get_by_role("dialog").get_by_role("button", name="Deny"))
    expect(page.get_by_role("article", name="Answer").last).to_contain_text("Denied.")
    expect_focus(page, "Answer")
    message.focus()
    page.keyboard.press("Escape")
    expect_focus(page, "Messages")


@pytest.mark.promise("console-keyboard")
def test_dialogs_and_screens_give_the_focus_back_or_to_a_title(console: Console, hub: Hub) -> None:
    for city in ("Paris", "Rome"):
        body = {**INPUT, "to_timezone": f"Europe/{city}"}
        assert hub.request("POST", "/api/operations/time.convert/call", body)[1]["status"] == "pending"
    page = console.open("/inbox")
    expect(page.get_by_role("article")).to_have_count(2)
    page.keyboard.press("j")
    expect_focus(page, "Approval of time.convert")
    page.keyboard.press("a")
    expect(page.get_by_role("article")).to_have_count(1)
    expect_focus(page, "Approval of time.convert")
    press(page, page.get_by_role("button", name="Approve", exact=True))
    expect(page.get_by_role("article")).to_have_count(0)
    expect(page.get_by_role("heading", name="Inbox")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Runs")).to_be_focused()
    expect(page.get_by_role("row").nth(2)).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("grid", name="Runs")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tree")).to_be_visible()
    expect_focus(page, "call_")
    page.keyboard.press("u")
    expect(page.get_by_role("row", selected=True)).to_have_attribute("aria-rowindex", "3")  # where it was
    page.get_by_role("button", name="More").click()
    page.get_by_label("Operation").fill("no.such")
    page.keyboard.press("Enter")
    press(page, page.get_by_role("button", name="Clear filters"))
    expect(page.get_by_label("Operation")).to_have_value("")
    expect_focus(page, "Runs")
    page.keyboard.press("g")
    page.keyboard.press("k")
    expect(page.get_by_role("heading", name="Keys")).to_be_focused()
    page.keyboard.press("n")
    page.get_by_label("Label", exact=True).fill("short-lived")
    page.keyboard.press("Enter")
    press(page, page.get_by_role("button", name="Done"))
    expect(page.get_by_role("heading", name="Keys")).to_be_focused()
    page.get_by_role("row", name="short-lived").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="short-lived")).to_be_focused()
    press(page, page.get_by_role("button", name="Revoke"))
    press(page, page.get_by_role("button", name="Revoke", exact=True).last)
    expect_focus(page, "View its usage")  # the button is gone with what it did


@pytest.mark.promise("console-keyboard")
def test_questions_are_answered_by_keyboard_alone(console: Console, hub: Hub, upstream: Upstream) -> None:
    page = console.open("/chat")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type(upstream.teach([{"calls": [QUESTION]}], [{"text": "Halm it is."}]))
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Nordwind")).to_be_visible()
    page.keyboard.press("Escape")  # out of the message
    page.keyboard.press("a")
    expect_focus(page, "Nordwind")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Halm it is.")
    expect_focus(page, "Answer")

    for answer in ("Good.", "So be it."):
        text = upstream.teach([{"calls": [QUESTION]}], [{"text": answer}])
        message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": text}]}
        body = {"id": f"asked {answer}", "messages": [message], "background": True}
        assert hub.request("POST", "/api/chat", body)[0] in (200, 202)
    expect(page.get_by_label("2 waiting").first).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.get_by_role("heading", name="Inbox")).to_be_focused()
    questions = page.get_by_role("article", name="Question")
    expect(questions).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect_focus(page, "Nordwind")
    page.keyboard.press("Enter")
    expect(questions).to_have_count(1)
    expect_focus(page, "Question of user.question")
    page.keyboard.press("d")
    expect(page.get_by_role("dialog", name="Decline")).to_be_visible()
    page.keyboard.type("not now")
    page.keyboard.press("Enter")
    expect(questions).to_have_count(0)
    expect(page.get_by_role("heading", name="Inbox")).to_be_focused()


@pytest.mark.thorough
@pytest.mark.promise("console-keyboard")
def test_a_key_is_rotated_and_a_host_drained_by_keyboard_alone(
    start_hub: Callable[..., Hub], start_console: StartConsole
) -> None:
    console = start_console(start_hub())
    page = console.open("/keys")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    tab_to(page, "Rotate")
    page.keyboard.press("Enter")
    expect_focus(page, "The old secret ends")
    tab_to(page, "Give it a new secret")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Secret", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Rotate")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("grid", name="Keys")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("button", name="Drain")).to_be_visible()
    tab_to(page, "Drain")
    page.keyboard.press("Enter")
    expect_focus(page, "Keep it")  # not the button that does it
    tab_to(page, "Drain")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Hosts")).to_contain_text("draining")
    expect(page.locator("main :focus-visible")).to_have_count(1)
