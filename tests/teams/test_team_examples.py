"""The teams of examples/teams run as they stand, without a key: scripts play their models."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.serving import Served, hub_of
from tests.teams.team_hub import Json, eventually
from tests.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples/teams"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A copy of the example that the test names, as the working directory."""
    folder = shutil.copytree(EXAMPLES / request.param, tmp_path / request.param)
    monkeypatch.chdir(folder)
    return Path(folder)


def make_repository(folder: Path) -> None:
    """A repository with two commits."""
    folder.mkdir()
    (folder / "VERSION").write_text("1.0.0")
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    git = ["git", "-C", str(folder), *who]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    for title in ("Mend the hinge", "Add a second door"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", title], check=True)


async def approve(served: Served, session: str) -> None:
    """Approve the only call that waits, and follow the session to the end of its answer."""
    waiting = (await served.http.get("/api/approvals?status=pending")).json()["approvals"]
    assert len(waiting) == 1
    answer = await served.http.post(f"/api/approvals/{waiting[0]['id']}", json={"approved": True})
    assert answer.status_code == 200

    async def has_gone_on() -> bool:
        last = (await served.messages(session))[-1]
        return not any(str(part.get("state")).startswith("approval-") for part in last["parts"])

    await until(has_gone_on)
    run = served.active_run(session)
    if run is not None:
        await run.wait_ended()


@pytest.mark.parametrize("example", ["release"], indirect=True)
async def test_the_release_team_reads_the_repository_writes_notes_and_asks_before_it_publishes(
    example: Path, tmp_path: Path
) -> None:
    make_repository(example / "repository")
    async with hub_of(example / "dragoman.yaml", tmp_path / "data") as served:
        frames = await served.chat("Release 1.1.0", agent="release", session="r")
        names = {
            each["toolCallId"]: each["toolName"] for each in frames if each["type"] == "tool-input-start"
        }
        outputs = {
            names[each["toolCallId"]]: each["output"]
            for each in frames
            if each["type"] == "tool-output-available"
        }
        assert outputs["git_log"] == ["Add a second door", "Mend the hinge"]
        assert "1.0.0" in str(outputs["files_read"])
        assert (
            (example / "teams/release/workspace/notes.md").read_text().startswith("- There is a second door")
        )
        assert not (example / "page.md").exists()
        await approve(served, "r")
        assert (example / "page.md").read_text().startswith("# 1.1.0\n\n- There is a second door.")
        answer = (await served.messages("r"))[-1]
        assert answer["parts"][-1]["text"] == "Release 1.1.0 is out."


@pytest.mark.parametrize("example", ["support"], indirect=True)
async def test_the_support_desk_asks_two_specialists_and_a_person_and_only_billing_pays_back(
    example: Path, tmp_path: Path
) -> None:
    async with hub_of(example / "dragoman.yaml", tmp_path / "data") as served:
        frames = await served.chat("My lamp flickers, order A-17.", agent="desk", session="c")
        answers = next(each["output"] for each in frames if each["type"] == "tool-output-available")
        assert {each["team"]: each["state"] for each in answers} == {"billing": "done", "technical": "done"}
        waiting = (await served.http.get("/api/approvals?status=pending")).json()["approvals"]
        answer = await served.http.post(f"/api/approvals/{waiting[0]['id']}", json={"answer": "yes"})
        assert answer.status_code == 200
        if (run := served.active_run("c")) is not None:
            await run.wait_ended()
        result = (await eventually(lambda: results(served, "c")))[0]
        assert (result["team"], result["state"]) == ("billing", "done")
        calls = (await served.http.get("/api/calls?limit=50")).json()["calls"]
        refunds = [each["status"] for each in calls if each["name"] == "shop.refund"]
        assert refunds == ["done"]


@pytest.mark.parametrize("example", ["nightly"], indirect=True)
async def test_the_nightly_research_team_waits_for_a_person_then_ticks_at_night_and_reports_what_is_new(
    example: Path, tmp_path: Path
) -> None:
    async with hub_of(example / "dragoman.yaml", tmp_path / "data") as served:
        [trigger] = await eventually(lambda: triggers(served))
        assert trigger["state"] == "pending"
        path = f"/api/triggers/{trigger['id']}"
        assert (await served.http.post(f"{path}/enable")).json()["state"] == "active"
        times = (await served.http.get(f"{path}?next=6")).json()["nextTimes"]
        hours = {datetime.fromisoformat(each).astimezone(ZoneInfo("Europe/Berlin")).hour for each in times}
        assert hours <= {2, 3, 4}
        assert (await served.http.post(f"{path}/run")).status_code == 202
        [occurrence] = await eventually(lambda: settled(served, path))
        assert (occurrence["state"], "80 degrees (tea.md)" in occurrence["result"]) == ("done", True)
        [text] = await eventually(lambda: texts(served, "desk"))
        assert "green tea is brewed at 80 degrees" in text
        assert (await served.http.get(path)).json()["cursor"] == {"last": "tea.md"}
        memories = (await served.http.get("/api/memory?team=research")).json()["memories"]
        assert [each["key"] for each in memories] == ["tea"]


async def triggers(served: Served) -> list[Json]:
    found: list[Json] = (await served.http.get("/api/triggers?team=research")).json()["triggers"]
    return found


async def settled(served: Served, path: str) -> list[Json]:
    """What a trigger fired, once its task has ended."""
    found: list[Json] = (await served.http.get(f"{path}/history")).json()["occurrences"]
    return [each for each in found if each["state"] not in ("pending", "starting", "running")]


async def texts(served: Served, session: str) -> list[str]:
    """The texts of the messages of a session; none before it is there."""
    response = await served.http.get(f"/api/sessions/{session}/messages")
    messages = response.json()["messages"] if response.status_code == 200 else []
    return [part["text"] for each in messages for part in each["parts"] if part["type"] == "text"]


async def results(served: Served, session: str) -> list[Json]:
    """The results of tasks that a session has got."""
    parts = [part for each in await served.messages(session) for part in each["parts"]]
    return [part["data"] for part in parts if part["type"] == "data-task-result"]
