"""A connection that died without an end, as while a laptop sleeps, is noticed by its silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import Console, begin_run, wait_for_run

KEEP_ALIVE = 3_600  # seconds: this hub is silent while nothing happens, as a dead connection is
SLEEP = "02:00:01"  # twice that, and a second
LOOK = 10_000  # ms between two looks at a stream


@pytest.fixture(scope="module")
def hub(start_hub: Callable[..., Hub]) -> Hub:
    return start_hub(keep_alive=KEEP_ALIVE)


def wake(page: Page) -> None:
    """Let two hours pass as in a sleep, where no timer fires, and then the time of a look."""
    page.clock.fast_forward(SLEEP)
    page.clock.run_for(LOOK)


def test_a_stream_of_events_that_is_silent_for_too_long_is_opened_again(
    console: Console, upstream: Upstream
) -> None:
    page = console.page
    page.clock.install()
    console.open_list("/runs")
    page.clock.run_for(60_000)  # not silent for long, as this hub goes
    assert console.requests.count("GET /api/events") == 1
    with page.expect_response("**/api/events"), page.expect_response("**/api/calls?*"):
        wake(page)  # and the list is read anew
    run = begin_run(console.hub, "woken", upstream.teach([{"text": "Good morning."}]))
    wait_for_run(console.hub, run)
    expect(page.get_by_role("button", name="1 new")).to_be_visible()
    assert console.requests.count("GET /api/events") == 2


def test_streams_are_opened_again_when_the_network_is_back(
    console: Console, upstream: Upstream, gate: str
) -> None:
    page = console.open("/chat")
    page.get_by_label("Message", exact=True).fill(upstream.teach([{"text": "Half "}, {"gate": gate}]))
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Half")
    with page.expect_response("**/api/events"), page.expect_response("**/stream?*"):
        page.evaluate("dispatchEvent(new Event('online'))")


@pytest.mark.parametrize("shown", [False, True], ids=["in its time", "when the tab is shown"])
def test_an_answer_whose_stream_is_silent_for_too_long_is_followed_to_its_end(
    console: Console, upstream: Upstream, gate: str, *, shown: bool
) -> None:
    page = console.page
    page.clock.install()
    console.open("/chat")
    script = [{"text": "Half "}, {"gate": gate}, {"text": "whole."}]
    page.get_by_label("Message", exact=True).fill(upstream.teach(script))
    page.keyboard.press("Enter")
    answer = page.get_by_role("article", name="Answer")
    expect(answer).to_contain_text("Half")
    streams = [request for request in console.requests if request.endswith("/stream")]
    with page.expect_response("**/stream?*") as again:
        if shown:
            page.clock.fast_forward(SLEEP)
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        else:
            wake(page)
    assert (len(streams), again.value.status) == (1, 200)
    upstream.open(gate)
    expect(answer).to_contain_text("Half whole.")
    expect(page.get_by_role("alert")).to_have_count(0)
