"""`dragoman keys`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.program import Hub, run


def test_a_new_key_stands_alone_on_stdout_and_its_secret_is_not_kept(run: Run, tmp_path: Path) -> None:
    said = run("keys", "create", "--data", tmp_path / "hub", "--owner", "ada", "--name", "laptop")
    secret = said.out.strip()
    assert said.code == 0
    assert secret.startswith("dgm_")
    assert secret not in said.err
    held = b"".join(path.read_bytes() for path in (tmp_path / "hub").iterdir())
    assert secret.encode() not in held
    listed = run("keys", "list", "--data", tmp_path / "hub")
    assert secret not in listed.out
    assert "ada" in listed.out
    assert "laptop" in listed.out


def test_keys_are_listed_and_made_as_json_for_programs(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub", "--json")
    made = run("keys", "create", *data, "--owner", "ada", "--scope", "chat", "--scope", "ops").json
    assert made["key"].startswith(made["prefix"])
    assert made["scopes"] == ["chat", "ops"]
    del made["key"]
    assert run("keys", "list", *data).json == {"keys": [made]}


def test_a_revoked_key_is_revoked_once(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub")
    made = run("keys", "create", *data, "--owner", "ada", "--json").json
    assert run("keys", "revoke", made["id"], *data).code == 0
    assert "revoked just now" in run("keys", "list", *data).out
    again = run("keys", "revoke", made["id"], *data)
    assert again.code == 1
    assert "keys list" in again.err


def test_keys_are_not_looked_for_where_no_hub_ever_was(run: Run, tmp_path: Path) -> None:
    said = run("keys", "list", "--data", tmp_path / "nowhere")
    assert said.code == 1
    assert "--data" in said.err
    assert not (tmp_path / "nowhere").exists()


def test_keys_are_made_while_the_hub_runs(hub: Hub) -> None:
    assert hub.key("ada").startswith("dgm_")
    assert run("keys", "list", "--data", hub.data, "--json").json["keys"]
