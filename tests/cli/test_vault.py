"""`dragoman vault`: values come from a pipe and are never shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dragoman.store.encryption import MasterKey
from tests.cli.conftest import Run

VALUE = "tok-0123456789-live"


@pytest.fixture
def _master(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has a master key, set after `run` has cleared it."""
    del run
    monkeypatch.setenv("DRAGOMAN_MASTER_KEY", MasterKey.generate().to_text())


@pytest.mark.usefixtures("_master")
def test_a_secret_of_a_team_is_set_listed_and_deleted_without_its_value(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(VALUE))
    place = ("--team", "press", "--data", str(tmp_path / "data"))
    made = run("vault", "set", "mailer", "--for", "mail.*", "--for", "web.fetch", *place)
    assert made.code == 0, made.err
    listed = run("vault", "list", *place)
    assert "mail.*, web.fetch" in listed.out
    assert '"handle": "secret:mailer"' in run("vault", "list", "--json", *place).out
    bound = run("vault", "bind", "mailer", "--to", "api.example.com", *place)
    assert "secret:mailer of the team press may be sent to: https://api.example.com" in bound.err
    listed = run("vault", "list", *place)
    assert "https://api.example.com" in listed.out
    assert run("vault", "bind", "other", "--to", "api.example.com", *place).code == 1
    assert run("vault", "bind", "mailer", "--to", "https://a.example/path", *place).code == 1
    assert "no address" in run("vault", "bind", "mailer", *place).err
    assert VALUE not in made.out + made.err + listed.out + listed.err
    assert run("vault", "delete", "mailer", *place).code == 0
    assert run("vault", "delete", "mailer", *place).code == 1


@pytest.mark.usefixtures("_master")
@pytest.mark.parametrize(
    ("name", "receiver", "value", "problem"),
    [
        ("mailer", "*", VALUE, "every operation would receive the secret"),
        ("mailer", "no such", VALUE, "not a valid pattern"),
        ("a b", "mail.*", VALUE, "not a valid name"),
        ("mailer", "mail.*", "short", "8 to 8000 characters"),
    ],
)
def test_what_cannot_be_a_secret_is_refused(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    receiver: str,
    value: str,
    problem: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(value))
    data = str(tmp_path / "data")
    refused = run("vault", "set", name, "--for", receiver, "--team", "press", "--data", data)
    assert (refused.code, problem in refused.err) == (1, True), refused.err
    assert value not in refused.err
