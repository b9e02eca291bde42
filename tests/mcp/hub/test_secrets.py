"""Stored secrets reach the MCP server they are for and nobody else."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path

from tests.cli.program import run
from tests.mcp.hub.hub_process import World, raw, until, world

MASTER = {"DRAGOMAN_MASTER_KEY": base64.b64encode(bytes(range(32))).decode()}
SECRET = "tr0ub4dor-and-3-of-a-kind"


def keep(folder: Path, value: str, name: str = "tracker") -> None:
    """`dragoman secrets set`."""
    reply = run("secrets", "set", name, "--data", folder / "data", input=value, env=MASTER)
    assert reply.code == 0, reply.err


def test_a_secret_reaches_the_environment_of_its_server_and_is_shown_nowhere(tmp_path: Path) -> None:
    keep(tmp_path, SECRET)
    mine = raw(tmp_path / "mine.txt", secrets={"API_TOKEN": "tracker"}, env={"PLAIN": "to be seen"})
    other = raw(tmp_path / "other.txt")
    with world(tmp_path, {"mine": mine, "other": other}, owner="ada", env=MASTER) as hub:
        hub.settled("mine")
        hub.settled("other")
        value = json.loads(hub.batch("mine.env")["result"])
        assert set(value) <= {
            *("PATH", "HOME", "LANG", "LC_CTYPE", "API_TOKEN", "PLAIN", "DRAGOMAN_MCP_SERVER")
        }
        assert (value["API_TOKEN"], value["PLAIN"]) == ("***", "to be seen")
        assert "API_TOKEN" not in json.loads(hub.batch("other.env")["result"])
        assert hub.batch("mine.crash")["error"]["code"] == "uncertain"
        hub.settled("mine")
        seen = [hub.ask("GET", path) for path in ("/api/mcp/servers", "/api/mcp/servers/mine", "/api/calls")]
        seen += [hub.ask("GET", f"/api/calls/{call['id']}") for call in seen[-1]["calls"]]
        report = hub.dragoman("servers", "show", "mine", key=hub.key)
    assert SECRET not in json.dumps(seen) + report.out + report.err
    assert "API_TOKEN" in json.dumps(seen)
    log = hub.log.read_text()
    assert "MCP server mine, stderr: token is ***" in log
    assert SECRET not in log
    assert SECRET.encode() not in b"".join(each.read_bytes() for each in (tmp_path / "data").iterdir())


def test_a_server_without_its_secret_is_shown_as_failed_and_the_others_serve(tmp_path: Path) -> None:
    lacking = raw(tmp_path / "lacking.txt", secrets={"API_TOKEN": "tracker"})
    with world(tmp_path, {"lacking": lacking, "fine": raw(tmp_path / "fine.txt")}, env=MASTER) as hub:
        hub.settled("fine")
        assert hub.batch("fine.echo")["success"]
        reply = hub.server("lacking")
        assert (reply["state"], reply["changes"]) == ("failed", [])
        assert "there is no secret 'tracker'" in reply["error"]
        assert not (tmp_path / "lacking.txt").exists()
        refused = hub.dragoman("servers", "reconnect", "lacking")
        assert (refused.code, "there is no secret 'tracker'" in refused.err) == (1, True)
        keep(tmp_path, SECRET)
        assert hub.dragoman("servers", "reconnect", "lacking").out == "lacking: starting\n"
        assert_holds(hub, "lacking")


def test_a_secret_that_changed_is_taken_at_a_reconnect_and_at_a_reload(tmp_path: Path) -> None:
    keep(tmp_path, "the first secret")
    server = raw(tmp_path / "raw.txt", secrets={"API_TOKEN": "tracker"})
    with world(tmp_path, {"raw": server}, env=MASTER) as hub:
        hub.settled("raw")
        keep(tmp_path, SECRET)
        hub.dragoman("servers", "reconnect", "raw")
        assert_holds(hub, "raw")
        keep(tmp_path, "another one altogether")
        began = hub.server("raw")["since"]
        hub.hub.process.send_signal(signal.SIGHUP)
        until(lambda: hub.server("raw")["since"] > began)
        assert_holds(hub, "raw", "another one altogether")
    assert "another one altogether" not in hub.log.read_text()


def assert_holds(hub: World, name: str, secret: str = SECRET) -> None:
    """The server's process has this secret, which its answers don't show."""
    hub.settled(name)
    value = json.loads(hub.batch(f"{name}.env")["result"])
    assert value["API_TOKEN"] == "***"
    pid = (hub.folder / f"{name}.txt").read_text().split("pid ")[-1].split()[0]
    assert f"API_TOKEN={secret}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
