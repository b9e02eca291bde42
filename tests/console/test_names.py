"""Names and titles that turn the direction of a text lie about nothing, and move nothing beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.clients.hub import Hub
from tests.clients.upstream import Upstream
from tests.console.browsing import Console, begin_run, open_database, wait_for_run
from tests.console.full_hub import start_full

TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
LIE = "invoice\u202efdp.exe\u2066\u2069"
SHOWN = "invoice\\u202efdp.exe\\u2066\\u2069"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # its joiner belongs to the word


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Hub]:
    """A hub with teams and a little of everything."""
    hub = start_full(tmp_path_factory.mktemp("names") / "hub", upstream.url)
    yield hub
    hub.stop()


def test_directions_are_spelt_in_titles_tasks_and_names_of_runs_and_keys(
    console: Console, hub: Hub, upstream: Upstream
) -> None:
    run = begin_run(hub, "lie", upstream.teach([{"text": "Done."}]))
    wait_for_run(hub, run)
    assert hub.request("PATCH", "/api/sessions/lie", {"title": LIE})[0] == 200
    with open_database(hub) as database:  # as versions before stored it
        database.execute("UPDATE keys SET name = ? WHERE name = 'laptop'", [LIE])
    assert hub.request("POST", "/api/tasks", {"team": "press", "task": LIE})[0] == 202
    calls = {"calls": [{"tool": LIE, "input": {}}]}
    batch = hub.request("POST", "/api/operations/hub.call/call", calls)[1]["callId"]
    begin_run(hub, "persian", upstream.teach([{"text": "Done."}]))
    assert hub.request("PATCH", "/api/sessions/persian", {"title": PERSIAN})[0] == 200
    runs = ("/runs", f"/runs/{run}", f"/runs/{batch}")
    for path in ("/chat", "/chat/lie", *runs, "/keys", "/teams?tab=tasks"):
        page = console.open(path)
        expect(page.locator("main")).to_contain_text(SHOWN)
        assert not set(TURNS) & set(page.locator("body").inner_text()), path
    page = console.open("/chat")
    expect(page.get_by_role("complementary")).to_contain_text(PERSIAN)
    page.keyboard.press("Control+k")
    page.keyboard.type("invoice")
    expect(page.get_by_role("option", name=SHOWN).first).to_be_visible()
