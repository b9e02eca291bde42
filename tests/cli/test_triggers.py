"""`dragoman triggers` at a running hub, and over its data folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Router

from dragoman.cli.hub_client import client
from dragoman.cli.hub_client.in_process import AsgiTransport
from dragoman.cli.triggers import find_id
from dragoman.errors import NotFound
from tests.cli.conftest import Run
from tests.cli.program import serving
from tests.teams.team_hub import write_teams

ADD = ("triggers", "add", "press", "nightly", "--type", "schedule", "--task", "Write a note.")


def test_a_trigger_is_added_activated_fired_followed_and_removed(run: Run, tmp_path: Path) -> None:
    config: dict[str, Any] = json.loads(write_teams(tmp_path, {"press": {}}).read_bytes())
    config.pop("operations")
    with serving(tmp_path / "served", config, "--no-auth") as hub:
        there, here = ("--hub", hub.url), ("--data", hub.data)
        assert run("triggers", "list", *there).err.strip() == "dragoman: there are no triggers"
        refused = run(*ADD, "-s", "cron=never", *there)
        assert (refused.code, "not a cron expression" in refused.err) == (1, True)
        added = run(*ADD, "-s", "cron=*/5 2 * * *", "--set", "zone=Europe/Berlin", *there)
        assert (added.code, "it is pending" in added.err) == (0, True), added
        id = added.out.strip()
        found = run("triggers", "list", *there).out
        assert "press/nightly" in found
        assert "pending" in found
        assert run("triggers", "enable", "press/nightly", *there).err.startswith(
            f"dragoman: {id} is active, next at 20"
        )
        times = run("triggers", "next", id, "--count", "3", *there).out.split()
        assert (len(times), times == sorted(times)) == (3, True)
        assert run("triggers", "run", "press/nightly", *there).out.startswith("run:occ_")
        shown = json.loads(run("triggers", "show", "press/nightly", "--json", *here).out)
        assert (shown["id"], shown["config"]["zone"]) == (id, "Europe/Berlin")
        assert len(run("triggers", "history", "press/nightly", *here).out.splitlines()) == 2
        assert run("triggers", "disable", id, "--reason", "holiday", *here).code == 0
        assert json.loads(run("triggers", "show", id, "--json", *there).out)["reason"] == "holiday"
        assert run("triggers", "remove", id, *there).code == 0
        gone = run("triggers", "show", "press/nightly", *there)
        assert (gone.code, "there is no trigger" in gone.err) == (1, True)


def test_all_triggers_are_listed_however_many_pages_they_take(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TRIGGERS_PAGE", 2)
    config: dict[str, Any] = json.loads(write_teams(tmp_path, {"press": {}}).read_bytes())
    config.pop("operations")
    names = ["evening", "morning", "noon"]
    with serving(tmp_path / "served", config, "--no-auth") as hub:
        there = ("--hub", hub.url)
        for name in names:
            schedule = ("--type", "schedule", "-s", "cron=30 2 * * *", "--task", "Write.")
            assert run("triggers", "add", "press", name, *schedule, *there).code == 0
        for options, shown in (((), 3), (("--limit", "1"), 1), (("--limit", "2"), 2), (("--limit", "9"), 3)):
            listed = json.loads(run("triggers", "list", *options, "--json", *there).out)["triggers"]
            assert [each["name"] for each in listed] == names[:shown], options
        table = run("triggers", "list", "--data", hub.data).out
        assert [name in table for name in names] == [True] * 3


class PagedTriggers(client.HubClient):
    """A client of a hub with triggers of one team, of which a page has two."""

    def __init__(self, *names: str) -> None:
        super().__init__(AsgiTransport(Router()))
        self._names = names

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        assert (method, path, body, query and query["team"]) == ("GET", "/api/triggers", None, "press")
        after = int((query or {}).get("after", 0))
        page = self._names[after : after + 2]
        return {
            "triggers": [{"id": f"trg_{name}", "name": name} for name in page],
            "next": str(after + 2) if after + 2 < len(self._names) else None,
        }


async def test_a_trigger_is_found_by_its_name_on_any_page() -> None:
    hub = PagedTriggers("evening", "morning", "noon")
    assert await find_id(hub, "press/noon") == "trg_noon"
    with pytest.raises(NotFound):
        await find_id(hub, "press/night")


def test_a_webhook_from_a_file_shows_its_secret_once(run: Run, tmp_path: Path) -> None:
    hook = tmp_path / "hook.yaml"
    hook.write_text("type: webhook\nsignature: github\ntask: Look at it.\n")
    config: dict[str, Any] = json.loads(write_teams(tmp_path, {"press": {}}).read_bytes())
    config.pop("operations")
    with serving(tmp_path / "served", config, "--no-auth") as hub:
        added = run("triggers", "add", "press", "issues", "--file", hook, "--hub", hub.url)
        id, path, secret = (line.rpartition(" ")[2] for line in added.out.splitlines())
        assert path == f"/hooks/triggers/{id}"
        assert len(secret) >= 32
        assert secret not in run("triggers", "show", id, "--hub", hub.url).out
        assert "has no set times" in run("triggers", "next", id, "--hub", hub.url).err
