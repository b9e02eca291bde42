"""`dragoman secrets`."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.program import Terminal
from tests.cli.program import run as run_apart

VALUE = "sk-live-0123456789"


@pytest.fixture
def master(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A master key in a file that the environment names."""
    path = tmp_path / "master.key"
    assert run("secrets", "generate-key", "--write", path).code == 0
    monkeypatch.setenv("DRAGOMAN_MASTER_KEY_FILE", str(path))
    return path.read_text().strip()


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_secret_is_set_from_a_pipe_listed_and_deleted(
    run: Run, monkeypatch: pytest.MonkeyPatch, master: str, tmp_path: Path
) -> None:
    data = ("--data", tmp_path / "hub")
    pipe(monkeypatch, f"{VALUE}\n")
    result = run("secrets", "set", "openai", *data)
    assert (result.code, result.out) == (0, "")
    listed = run("secrets", "list", *data)
    assert "openai" in listed.out
    assert "just now" in listed.out
    pending = b"".join(path.read_bytes() for path in (tmp_path / "hub").iterdir())
    for shown in (result.err, listed.out, run("secrets", "list", *data, "--json").out, repr(pending)):
        assert VALUE not in shown
        assert master not in shown
    (secret,) = run("secrets", "list", *data, "--json").json["secrets"]
    assert set(secret) == {"name", "masterKey", "createdAt", "updatedAt"}
    assert run("secrets", "delete", "openai", *data).code == 0
    assert run("secrets", "delete", "openai", *data).code == 1
    assert run("secrets", "list", *data).out == ""


def test_a_value_is_asked_for_without_being_shown(tmp_path: Path) -> None:
    key = run_apart("secrets", "generate-key").out.strip()
    data = ("--data", str(tmp_path / "hub"))
    terminal = Terminal("secrets", "set", "openai", *data, env={"DRAGOMAN_MASTER_KEY": key})
    terminal.see("value: ")
    terminal.type(VALUE)
    shown = terminal.see("is stored")
    assert VALUE not in shown
    assert terminal.wait() == 0
    assert "openai" in run_apart("secrets", "list", *data).out


def test_without_a_master_key_or_a_value_nothing_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = ("--data", tmp_path / "hub")
    pipe(monkeypatch, VALUE)
    result = run("secrets", "set", "openai", *data)
    assert result.code == 1
    assert "generate-key" in result.err
    monkeypatch.setenv("DRAGOMAN_MASTER_KEY", run("secrets", "generate-key").out.strip())
    pipe(monkeypatch, " \n")
    result = run("secrets", "set", "openai", *data)
    assert (result.code, "no value" in result.err) == (1, True)
    pipe(monkeypatch, VALUE)
    assert run("secrets", "set", "no name", *data).code == 1
    assert run("secrets", "set", "openai", VALUE, *data).code == 2
    assert run("secrets", "list", *data).out == ""


def test_the_master_key_is_the_one_that_the_configuration_names(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key, config, data = tmp_path / "its.key", tmp_path / "hub.yaml", ("--data", tmp_path / "hub")
    run("secrets", "generate-key", "--write", key)
    config.write_text(f"master_key_file: {key}\n")
    pipe(monkeypatch, VALUE)
    assert run("secrets", "set", "openai", *data, "--config", config).code == 0
    new = tmp_path / "new.key"
    assert run("secrets", "rotate", *data, "--config", config, "--write", new).code == 0
    config.write_text("master_key_env: OUR_KEY\n")
    refused = run("secrets", "rotate", *data, "--config", config, "--write", tmp_path / "third")
    assert (refused.code, "set OUR_KEY or OUR_KEY_FILE" in refused.err) == (1, True)
    monkeypatch.setenv("OUR_KEY", new.read_text())
    pipe(monkeypatch, VALUE)
    assert run("secrets", "set", "other", *data, "--config", config).code == 0
    assert (
        len({secret["masterKey"] for secret in run("secrets", "list", *data, "--json").json["secrets"]}) == 1
    )


def test_a_master_key_is_written_for_its_owner_alone_and_over_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    result = run("secrets", "generate-key", "--write", path)
    assert (result.code, result.out) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    assert before.strip() not in result.err
    again = run("secrets", "generate-key", "--write", path)
    assert (again.code, path.read_text()) == (1, before)
    assert len(run("secrets", "generate-key").out.strip()) == 44


@pytest.mark.usefixtures("master")
@pytest.mark.parametrize("how", ["write", "file", "variable"])
def test_all_secrets_are_sealed_with_a_new_master_key(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    data, new = ("--data", tmp_path / "hub"), tmp_path / "master.new"
    for name in ("a", "b"):
        pipe(monkeypatch, VALUE)
        run("secrets", "set", name, *data)
    if how != "write":
        run("secrets", "generate-key", "--write", new)
    if how == "variable":
        monkeypatch.setenv("DRAGOMAN_NEW_MASTER_KEY", new.read_text())
    options = {"write": ("--write", new), "file": ("--new-key-file", new), "variable": ()}[how]
    result = run("secrets", "rotate", *data, *options)
    assert result.code == 0
    assert "2 secrets" in result.err
    assert new.read_text().strip() not in result.err + result.out
    monkeypatch.delenv("DRAGOMAN_NEW_MASTER_KEY", raising=False)
    again = run("secrets", "rotate", *data, "--write", tmp_path / "third")
    assert again.code == 1
    assert "was encrypted with the master key" in again.err
    monkeypatch.setenv("DRAGOMAN_MASTER_KEY_FILE", str(new))
    assert run("secrets", "rotate", *data, "--write", tmp_path / "fourth").code == 0


@pytest.mark.usefixtures("master")
def test_a_rotation_wants_exactly_one_new_key(run: Run, tmp_path: Path) -> None:
    data, file = ("--data", tmp_path / "hub"), tmp_path / "x"
    assert run("secrets", "rotate", *data).code == 2
    assert run("secrets", "rotate", *data, "--write", file, "--new-key-file", file).code == 2
    assert not file.exists()
