"""The teams of examples/teams run as they stand, without a key: scripts play their models."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serving import Served, hub_of

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
        outputs = [each["output"] for each in frames if each["type"] == "tool-output-available"]
        assert outputs[0] == ["Add a second door", "Mend the hinge"]
        assert "1.0.0" in str(outputs[1])
        assert (
            (example / "teams/release/workspace/notes.md").read_text().startswith("- There is a second door")
        )
        assert not (example / "page.md").exists()
        await approve(served, "r")
        assert (example / "page.md").read_text().startswith("# 1.1.0\n\n- There is a second door.")
        answer = (await served.messages("r"))[-1]
        assert answer["parts"][-1]["text"] == "Release 1.1.0 is out."
