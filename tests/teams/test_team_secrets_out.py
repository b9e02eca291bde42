"""A value of a vault that stands where a team reads comes out by no path: the model gets its handle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.identity import LOCAL
from dragoman.operations.context import Context
from dragoman.store.teams.vault import OPERATOR, VaultEntry
from tests.serving import Served, serving
from tests.teams.test_team_agents import write_team
from tests.teams.test_team_browser import SERVER, reference, site
from tests.teams.test_team_prompts import played
from tests.teams.test_team_vault import MASTER, VALUE, assert_sealed, call, stored
from tests.tools.test_shell import WORKS

ECHO = """
DESCRIPTION = "Say it again."
INPUT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TESTS = [{"input": {"text": "a"}, "output": "a!"}]


def run(input):
    return input["text"] + "!"
"""
SKILL = f"---\ndescription: Repeat\n---\nThe password is {VALUE}.\n\n## Required Tools\n- echo\n"
PATHS: Mapping[str, Any] = {
    "file": lambda _: [call("files.read", path="workspace/x.txt")],
    "shell": lambda _: [call("shell.run", command="cat x.txt; base64 x.txt")],
    "web": lambda port: [call("web.fetch", url=f"http://127.0.0.1:{port}/leak")],
    "browser": lambda port: [call("browser.navigate", url=f"http://127.0.0.1:{port}/leak")],
    "skill": lambda _: [call("skills.load", name="repeat")],
    "plugin": lambda _: [call("skills.load", name="repeat"), call("press.echo", text="secret:mailer")],
}  # fmt: skip


async def activate_echo(served: Served) -> None:
    """Propose and activate the plugin `echo`."""
    calls, me = served.hub._services.calls, Context(agent="press")
    made = (await calls.call("plugins.propose", {"name": "echo", "source": ECHO}, context=me)).unwrap()
    input = {"name": "echo", "hash": made["hash"], "schema": made["schema"]}
    waiting = await calls.call("plugins.activate", input, context=me)
    await served.hub.answer_approval(str(waiting.approval_id), approved=True, by=LOCAL)
    approved = Context(agent="press", approval=waiting.approval_id)
    (await calls.call("plugins.activate", input, context=approved)).unwrap()


@pytest.mark.parametrize("path", PATHS)
async def test_a_secret_comes_out_by_no_path(tmp_path: Path, path: str) -> None:
    if path in ("shell", "plugin") and not WORKS:  # both are refused then: see test_shell and test_plugins
        return
    tools = ["files.*", "shell.*", "web.*", "browser.*", "skills.*", "plugins.*", "press.*"]
    fields = {"allowed_tools": tools, "browser": {"allowed_domains": ["127.0.0.1"]}}
    folder = write_team(tmp_path / "teams", "press", msgspec.json.encode(fields).decode())
    (folder / "workspace").mkdir()
    (folder / "workspace/x.txt").write_text(VALUE)
    (folder / "skills").mkdir()
    (folder / "skills/repeat.md").write_text(SKILL)
    (tmp_path / "master.key").write_text(MASTER.to_text())
    async with site([]) as port:
        config: dict[str, Any] = {
            "master_key_file": str(tmp_path / "master.key"),
            "web": {"allow_networks": ["127.0.0.0/8"], "ports": [port]},
            "browser": {"command": [str(SERVER)], "sandbox": os.getuid() != 0},
        }
        steps = [*PATHS[path](port), {"text": "Done."}]
        async with serving(tmp_path, steps, teams=str(tmp_path / "teams"), **config) as served:
            entry = VaultEntry(team="press", owner=OPERATOR, name="mailer", receivers=("press.*",))
            await served.hub.store.vault.put(entry, VALUE)
            if path == "plugin":
                await activate_echo(served)
            frames = msgspec.json.encode(await served.chat("go", agent="press")).decode()
            assert "secret:mailer" in frames or path == "shell"
            assert '"success":false' not in frames
            requested = msgspec.json.encode([request.messages for request in played(served.hub)])
            assert_sealed(frames, requested, (await served.http.get("/api/calls?limit=50")).text)
    assert_sealed(stored(tmp_path))


async def test_a_page_that_shows_a_secret_is_not_pictured(tmp_path: Path) -> None:
    fields = {"allowed_tools": ["browser.*"], "browser": {"allowed_domains": ["127.0.0.1"]}}
    write_team(tmp_path / "teams", "press", msgspec.json.encode(fields).decode())
    (tmp_path / "master.key").write_text(MASTER.to_text())
    async with site([]) as port:
        config: dict[str, Any] = {
            "master_key_file": str(tmp_path / "master.key"),
            "web": {"allow_networks": ["127.0.0.0/8"], "ports": [port]},
            "browser": {"command": [str(SERVER)], "sandbox": os.getuid() != 0},
        }
        async with serving(tmp_path, [{"text": "-"}], teams=str(tmp_path / "teams"), **config) as served:
            entry = VaultEntry(team="press", owner=OPERATOR, name="mailer", receivers=("browser.type",))
            await served.hub.store.vault.put(entry, VALUE)
            await served.chat("go", agent="press")

            async def do(name: str, *, as_run: str = "run_1", **input: Any) -> Any:
                me = Context(agent="press", run_id=as_run)
                return await served.hub._services.calls.call(f"browser.{name}", input, context=me)

            async def pictured() -> bool:
                outcome = await do("screenshot")
                assert (outcome.error is None) or "shows a secret" in outcome.error.message
                return outcome.error is None

            page = (await do("navigate", url=f"http://127.0.0.1:{port}/sign-in")).unwrap()["page"]
            assert await pictured()
            typed = await do("type", ref=reference(page, "Password"), text="secret:mailer")
            assert_sealed(msgspec.json.encode(typed.unwrap()))
            assert not await pictured()
            (await do("type", ref=reference(page, "Password"), text="tea")).unwrap()
            assert await pictured()
            (await do("type", ref=reference(page, "Token"), text="secret:mailer")).unwrap()
            assert not await pictured()
            (await do("type", ref=reference(page, "Token"), text="tea")).unwrap()
            assert await pictured()
            vault = served.hub.store.vault
            for origin, is_permitted in ((f"http://127.0.0.1:{port}", True), ("http://127.0.0.1:1", False)):
                await vault.bind("press", OPERATOR, name="mailer", origins=[origin])
                element = reference(page, "Token")
                typed = await do("type", ref=element, text="secret:mailer", as_run=origin)
                assert typed.error is None or "may not be typed" in typed.error.message
                assert (typed.error is None) == is_permitted
            (await do("type", ref=reference(page, "Token"), text="tea")).unwrap()
            (await do("navigate", url=f"http://127.0.0.1:{port}/leak")).unwrap()
            assert not await pictured()
            (await do("close")).unwrap()
