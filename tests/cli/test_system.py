"""Commands that show what a hub has and does: budgets, logs, system, providers, models, explanations."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.program import Hub, finish, read_until, start

COMMANDS: dict[str, tuple[list[str], str, str]] = {
    "system": ([], "database   sqlite, up", "database"),
    "system tables": (["--tables"], "sessions ", "tables"),
    "providers": ([], "scripted", "providers"),
    "models": ([], "plain/x  (default)", "models"),
    "agents": ([], "default", "agents"),
    "queue": ([], "no message waits", "queued"),
    "budgets": ([], "nothing has a budget", "budgets"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_hub_has_is_shown_and_printed_as_json(name: str, run: Run, hub: Hub) -> None:
    options, text, field = COMMANDS[name]
    command = [name.removesuffix(" tables"), *options, "--hub", hub.url]
    shown = run(*command)
    assert shown.code == 0, shown.err
    assert text in shown.out + shown.err
    assert max(map(len, shown.out.splitlines()), default=0) <= 130
    assert field in run(*command, "--json").json


def test_the_log_is_printed_and_followed(run: Run, hub: Hub) -> None:
    assert run("chat", "hello", "--hub", hub.url).code == 0
    assert "access: request" in run("logs", "--hub", hub.url, "--level", "info").out
    assert run("logs", "--hub", hub.url, "--text", "no line has this").out == ""
    following = start("logs", "--follow", "--limit", "1", "--json", "--hub", hub.url)
    read_until(following, "\n")
    assert run("chat", "again", "--hub", hub.url, "--session", "logged").code == 0
    assert read_until(following, '"plain/x"')
    assert finish(following, signal.SIGINT).code == 130


def test_a_rule_is_explained_and_calls_are_counted(run: Run, hub: Hub) -> None:
    explain = ("policy", "explain", "math.calculate", "--hub", hub.url)
    shown = run(*explain, "--input", "{}").out
    assert shown.startswith("math.calculate (read): allow\n")
    assert "input expression: expected a value (required), got nothing" in shown
    assert run(*explain, "--json").json["decision"] == "allow"
    assert run(*explain, "--input", "{").code == 1
    assert run("policy", "explain", "no.such", "--hub", hub.url).code == 1
    assert run("ops", "call", "math.calculate", "expression=1+1", "--hub", hub.url).code == 0
    for where in (["--hub", hub.url], ["--data", hub.data]):
        shown = run("ops", "stats", "math.calculate", *where).out
        assert " done" in shown
        assert '{"expression":"1+1"}' in shown
        counted: dict[str, Any] = run("ops", "stats", "math.calculate", *where, "--json").json
        assert counted["byStatus"]["done"] >= 1


def test_budgets_of_keys_are_read_from_a_data_folder(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert run("keys", "create", "--owner", "ann", "--usd-per-day", "2", "--data", data).code == 0
    heading, row = run("budgets", "--data", data).out.splitlines()
    assert heading.split()[:4] == ["OF", "OWNER", "PER", "LIMIT"]
    assert row.split()[2:6] == ["ann", "day", "$2.00", "$0.0000"]
    [subject] = run("budgets", "--data", data, "--json").json["budgets"]
    assert (subject["kind"], subject["budgets"][0]["limit"]) == ("key", 2.0)
    refused = run("system", "--hub", "http://127.0.0.1:9")
    assert (refused.code, "is it running?" in refused.err) == (1, True)
