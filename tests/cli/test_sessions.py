"""`dragoman sessions` over a data folder and at a running hub."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.session_ids import hub_session_id
from dragoman.store.sessions import message_index, message_search
from dragoman.store.store import Store
from tests.cli.conftest import Run
from tests.cli.program import Hub
from tests.cli.program import run as run_apart
from tests.store.samples import converse


@pytest.fixture(scope="session")
def collect(hub: Hub) -> str:
    """A session with a tool turn."""
    result = run_apart("chat", "Calculate!", "--model", "tools/x", "--session", "told", "--hub", hub.url)
    assert result.code == 0
    return "told"


@pytest.fixture(params=["folder", "hub"])
def where(request: pytest.FixtureRequest, hub: Hub) -> tuple[str, ...]:
    """Where the sessions are read from."""
    return ("--data", str(hub.data)) if request.param == "folder" else ("--hub", hub.url)


def test_sessions_are_listed(run: Run, collect: str, where: tuple[str, ...]) -> None:
    assert collect in run("sessions", "list", *where).out
    listed = run("sessions", "list", "--json", *where).json["sessions"]
    assert collect in [session["id"] for session in listed]


def test_a_session_reads_like_a_talk(run: Run, collect: str, where: tuple[str, ...]) -> None:
    result = run("sessions", "show", collect, *where)
    lines = result.out.splitlines()
    assert lines[3:7] == ["You", "Calculate!", "", "Assistant"]
    assert lines[7] == "I calculate."
    assert lines[8].startswith('→ math.calculate {"expression"')
    assert '"result":42' in lines[9]
    assert lines[10] == "It is 42."
    assert lines[11].startswith("5 parts · tools/x · 2 steps")


def test_what_was_said_is_found(run: Run, collect: str, where: tuple[str, ...]) -> None:
    result = run("sessions", "search", "calculat", "6 * 7", "--session", collect, *where)
    assert (result.code, result.err) == (0, "")
    head, snippet = result.out.splitlines()[:2]
    assert head.startswith("told · ")
    assert head.endswith(" · just now · Assistant")
    assert "math.calculate" in snippet
    requests = ("calculate!", "--session", collect, "--json")
    answer = run("sessions", "search", *requests, *where).json
    assert answer["matched"] == "all"
    found = {each["role"]: each for each in answer["found"]}
    assert (found["user"]["sessionId"], found["user"]["title"]) == ("told", "Calculate!")
    assert found["user"]["snippet"][0] == {"text": "Calculate", "hit": True}


def test_a_search_goes_on_until_all_is_looked_at_and_says_how_far_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say() -> None:
        async with await Store.open(tmp_path) as store:
            await store.keys.create("ann")
            for at in ("one", "two", "three"):
                await converse(store, f"Hotel {at}?", session_id=at)

    asyncio.run(say())
    monkeypatch.setattr(message_search, "INDEXING_SECONDS", 0)
    monkeypatch.setattr(message_index, "MAX_BATCH_SECONDS", 60)  # a session is one batch, however slow it is
    found = run("sessions", "search", "hotel", "--data", tmp_path, "--session", "one")
    assert (found.code, found.err) == (0, "")
    found = run("sessions", "search", "hotel", "--data", tmp_path, "--json")
    assert len(found.json["found"]) == 3
    assert found.err.count(" of 6 messages are indexed") == 1


def test_a_search_that_finds_nothing_or_only_some_says_so(
    run: Run, collect: str, where: tuple[str, ...]
) -> None:
    nothing = run("sessions", "search", "qqqqqq", *where)
    assert (nothing.code, nothing.out) == (0, "")
    assert "nothing holds 'qqqqqq'" in nothing.err
    some = run("sessions", "search", "calculate", "qqqqqq", "--session", collect, *where)
    assert "told" in some.out
    assert "some of them" in some.err
    for bad in (("search", " "), ("search", "x", "--session", "nowhere")):
        assert run("sessions", *bad, *where).code == 1


def test_a_session_is_exported_as_ui_messages(
    run: Run, collect: str, where: tuple[str, ...], tmp_path: Path
) -> None:
    exported = run("sessions", "export", collect, *where).json
    assert exported == run("sessions", "show", collect, "--json", *where).json
    assert [message["role"] for message in exported["messages"]] == ["user", "assistant"]
    types = [part["type"] for part in exported["messages"][1]["parts"]]
    assert types == ["step-start", "reasoning", "tool-hub_call", "step-start", "text"]
    written = run("sessions", "export", collect, "--output", tmp_path / "told.json", *where)
    assert (written.code, written.out) == (0, "")
    assert '"hub_call' not in written.err


def test_a_session_is_exported_as_markdown(run: Run, collect: str, where: tuple[str, ...]) -> None:
    text = run("sessions", "export", collect, "--format", "markdown", *where).out
    markdown = "## You\n\nCalculate!\n\n## Assistant\n\n> I calculate.\n\n**math.calculate, no.such**"
    assert text.startswith(f"# Calculate!\n\n{markdown}")
    assert text.endswith("```\n\nIt is 42.\n")


def test_an_exported_file_is_imported_as_a_session_of_its_own(
    run: Run, hub: Hub, collect: str, tmp_path: Path
) -> None:
    file, there = tmp_path / "told.jsonl", ("--hub", hub.url)
    assert run("sessions", "export", collect, "--format", "jsonl", "--output", file, *there).code == 0
    assert run("sessions", "import", file, "--id", "again", *there).out == "again\n"
    first, second = (run("sessions", "export", id, *there).json["messages"] for id in (collect, "again"))
    assert [each["parts"] for each in first] == [each["parts"] for each in second]
    assert run("sessions", "import", file, "--id", "again", *there).code == 1
    assert "<html" in run("sessions", "export", collect, "--format", "html", *there).out
    offline = run("sessions", "export", collect, "--output", file, "--format", "html", "--data", hub.data)
    assert (offline.code, offline.out) == (1, "")
    assert file.read_text().count("\n") == 3


def test_sessions_are_listed_by_label_and_when_archived(
    run: Run, collect: str, where: tuple[str, ...]
) -> None:
    assert "no session matches" in run("sessions", "list", "--label", "none", *where).err
    assert collect not in run("sessions", "list", "--archived", *where).out


def test_a_session_gets_labels_loses_them_and_is_archived(run: Run, hub: Hub) -> None:
    at = ("--hub", hub.url)
    assert run("chat", "Hi", "--model", "tools/x", "--session", "labelled", *at).code == 0
    assert run("sessions", "label", "labelled", "travel", "family", "travel", *at).out == "travel\nfamily\n"
    assert run("sessions", "label", "labelled", "work", "--remove", "travel", *at).out == "family\nwork\n"
    assert run("sessions", "label", "labelled", "--json", *at).json["labels"] == ["family", "work"]
    listed = run("sessions", "list", "--label", "work", "--json", *at).json["sessions"]
    assert [session["id"] for session in listed] == ["labelled"]
    assert run("sessions", "archive", "labelled", *at).out == "labelled is archived\n"
    assert run("sessions", "archive", "labelled", "--json", *at).json["archived"] is True
    assert "labelled" in run("sessions", "list", "--archived", *at).out
    assert "labelled" not in run("sessions", "list", *at).out
    assert run("sessions", "archive", "labelled", "--undo", *at).out == "labelled is listed again\n"
    assert "labelled" in run("sessions", "list", *at).out
    cleared = run("sessions", "label", "labelled", "--remove", "family", "--remove", "work", *at)
    assert (cleared.out, cleared.err) == ("", "dragoman: labelled has no labels\n")
    missing = run("sessions", "archive", "no-such-session", *at)
    assert missing.code != 0
    assert "no-such-session" in missing.err


def test_the_last_changed_session_needs_no_name(run: Run, hub: Hub, where: tuple[str, ...]) -> None:
    run_apart("chat", "hello", "--session", "latest", "--hub", hub.url)
    assert run("sessions", "show", "--json", *where).json["id"] == "latest"


def test_a_session_that_is_not_there_is_said_to_be_missing(run: Run, where: tuple[str, ...]) -> None:
    result = run("sessions", "show", "nothing", *where)
    assert (result.code, result.out) == (1, "")
    assert "'nothing'" in result.err


def test_two_owners_sessions_of_one_id_are_listed_with_the_hubs_ids_and_read_by_them(
    run: Run, tmp_path: Path
) -> None:
    ids = {owner: hub_session_id("trip", owner=owner) for owner in ("ann", "bob")}

    async def say() -> None:
        async with await Store.open(tmp_path) as store:
            for owner, id in ids.items():
                await converse(store, f"I am {owner}", session_id=id, owner=owner)
            await converse(store, "Alone", session_id=hub_session_id("diary", owner="ann"), owner="ann")

    asyncio.run(say())
    folder = ("--data", tmp_path)
    listed = run("sessions", "list", *folder).out.splitlines()
    rows = {tuple(line.split()[index] for index in (0, -1)) for line in listed}
    assert {("trip", ids["ann"]), ("trip", ids["bob"])} <= rows
    for name in ("show", "export"):
        unclear = run("sessions", name, "trip", *folder)
        assert unclear.code == 1
        assert all(f"'{id}' of '{owner}'" in unclear.err for owner, id in ids.items())
        assert "I am bob" in run("sessions", name, ids["bob"], *folder).out
        assert "Alone" in run("sessions", name, "diary", *folder).out
    found = run("sessions", "search", "am", "--session", ids["ann"], *folder).out
    assert found.startswith("trip · ann · ")
