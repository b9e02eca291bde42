"""`/api/teams` answers as the OpenAPI document says."""

from __future__ import annotations

from pathlib import Path

from tests.server.openapi import check, fields, refused
from tests.serving import serving
from tests.teams.test_team_agents import write, write_team


async def test_teams_answer_as_the_document_says_and_their_problems_only_to_an_admin(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "description: The root\nallowed_tools: [time.*]\nbudget: {usd: 2}")
    write(root / "main/subagents/writer.md", "---\ndescription: Writes\n---\nYou write.")
    async with serving(tmp_path, teams=str(root)) as served:
        listed = await check(served, "get", "/api/teams")
        assert set(listed["teams"][0]) == fields("Team")
        assert listed["teams"][0]["subagents"] == ["main.writer"]
        shown = await check(served, "get", "/api/teams/{name}", name="main")
        assert set(shown) == fields("TeamDetail")
        assert [each["kind"] for each in shown["sections"]] == ["system", "workspace", "tools"]
        assert await refused(served, "get", "/api/teams/{name}", name="nobody") == 404
        write(root / "main/team.yaml", "nonsense: 1")
        assert "nonsense" in (await check(served, "get", "/api/teams"))["problems"][0]
    async with serving(tmp_path / "two", keys=True, teams=str(tmp_path / "none")) as served:
        _, secret = await served.hub.store.keys.create("ann", scopes=["chat"])
        assert (await served.http.get("/api/teams")).status_code == 401
        listed = (await served.http.get("/api/teams", headers={"x-api-key": secret})).json()
        assert listed == {"teams": [], "problems": []}
