"""`dragoman keys`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman.errors import Forbidden
from dragoman.identity import Identity, Scope
from dragoman.operations.authorization import require_scope
from tests.cli.conftest import Run
from tests.cli.program import Hub, run, scripted, serving


def test_a_new_key_stands_alone_on_stdout_and_its_secret_is_not_kept(run: Run, tmp_path: Path) -> None:
    result = run("keys", "create", "--data", tmp_path / "hub", "--owner", "ada", "--name", "laptop")
    secret = result.out.strip()
    assert result.code == 0
    assert secret.startswith("dgm_")
    assert secret not in result.err
    pending = b"".join(path.read_bytes() for path in (tmp_path / "hub").iterdir())
    assert secret.encode() not in pending
    listed = run("keys", "list", "--data", tmp_path / "hub")
    assert secret not in listed.out
    assert "ada" in listed.out
    assert "laptop" in listed.out


def test_keys_are_listed_and_made_as_json_for_programs(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub", "--json")
    rules = ("--scope", "chat", "--scope", "gateway", "--model", "openai/*", "--parallel", "2")
    money = ("--usd-per-day", "2.5", "--expires", "2127-01-31")
    made = run("keys", "create", *data, "--owner", "ada", *rules, *money).json
    assert made.pop("key").startswith(made["prefix"])
    assert made["scopes"] == ["chat", "gateway"]
    assert made["models"] == ["openai/*"]
    assert made["limits"] == {"parallel": 2, "usd_per_day": 2.5}
    assert made["expiresAt"] == datetime(2127, 1, 31, tzinfo=UTC).timestamp()
    assert run("keys", "list", *data).json == {"keys": [made]}


def test_a_list_says_what_a_key_may(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub")
    run("keys", "create", *data, "--owner", "ada", "--scope", "gateway", "--usd-per-month", "10")
    run("keys", "create", *data, "--owner", "ada", "--model", "a/*", "--expires", "0s")
    result = run("keys", "list", *data).out
    assert "gateway; usd per month 10" in result
    assert "models a/*" in result
    assert "expired just now" in result


def test_what_is_changed_of_a_key_leaves_the_rest_as_it_was(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub", "--json")
    limits = ("--requests-per-minute", "60", "--usd-total", "5", "--tokens-per-minute", "900")
    made = run("keys", "create", *data, "--owner", "ada", "--name", "ci", "--model", "a", *limits).json
    del made["key"]

    def change(*options: str) -> Any:
        return run("keys", "change", made["id"], *data, *options).json

    made["limits"]["usd_per_day"] = 1.0
    assert change("--usd-per-day", "1") == made
    del made["limits"]["usd_total"]
    made |= {"models": None, "name": None, "scopes": ["admin"]}
    assert change("--clear", "usd-total", "--clear", "model", "--clear", "name", "--scope", "admin") == made
    assert change("--clear", "limits", "--parallel", "3") == made | {"limits": {"parallel": 3}}
    assert "parallel 3" in run("keys", "change", made["id"], "--data", tmp_path / "hub", "--name", "x").err


def test_a_rotated_key_keeps_its_id_and_its_new_secret_stands_alone_on_stdout(
    run: Run, tmp_path: Path
) -> None:
    data = ("--data", tmp_path / "hub")
    made = run("keys", "create", *data, "--owner", "ada", "--json").json
    result = run("keys", "rotate", made["id"], *data, "--grace", "90min")
    assert result.out.startswith("dgm_")
    assert result.out.strip() != made["key"]
    assert "90min" in result.err
    (listed,) = run("keys", "list", *data, "--json").json["keys"]
    assert (listed["id"], listed["prefix"]) == (made["id"], result.out[:10])


def test_a_rule_that_cannot_be_is_refused_in_words(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub", "--owner", "ada")
    for wrong, code in (
        (("--scope", "everything"), 2),
        (("--usd-per-day", "-1"), 2),
        (("--usd-per-day", "inf"), 1),
        (("--expires", "soon"), 1),
        (("--model", ""), 1),
    ):
        result = run("keys", "create", *data, *wrong)
        assert (result.code, result.out) == (code, "")
    made = run("keys", "create", *data, "--json").json
    for command in (("change", "nobody"), ("rotate", "nobody"), ("rotate", made["id"], "--grace", "long")):
        result = run("keys", *command, "--data", tmp_path / "hub")
        assert (result.code, result.out) == (1, "")


def test_a_revoked_key_is_revoked_once(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub")
    made = run("keys", "create", *data, "--owner", "ada", "--json").json
    assert run("keys", "revoke", made["id"], *data).code == 0
    assert "revoked just now" in run("keys", "list", *data).out
    again = run("keys", "revoke", made["id"], *data)
    assert again.code == 1
    assert "keys list" in again.err


def test_keys_are_not_looked_for_where_no_hub_ever_was(run: Run, tmp_path: Path) -> None:
    result = run("keys", "list", "--data", tmp_path / "nowhere")
    assert result.code == 1
    assert "--data" in result.err
    assert not (tmp_path / "nowhere").exists()


def test_keys_are_made_while_the_hub_runs(hub: Hub) -> None:
    assert hub.key("ada").startswith("dgm_")
    assert run("keys", "list", "--data", hub.data, "--json").json["keys"]


def test_tokens_are_made_listed_and_revoked_with_the_key_that_makes_them(run: Run, tmp_path: Path) -> None:
    config = {"providers": {"sim": scripted(tmp_path, "sim", [{"text": "Hi."}])}, "model": "sim/any"}
    key = run("keys", "create", "--data", tmp_path / "data", "--owner", "ada").out.strip()
    with serving(tmp_path, config) as hub:
        options = ("--hub", hub.url, "--key", key)
        assert re.fullmatch(r"dgt_\S+\n", run("tokens", "create", "--owner", "user-42", *options).out)
        one = run("tokens", "create", "--session", "s", "--role", "read", *options, "--json").json
        listed = run("tokens", "list", *options).out
        assert listed.index(one["id"]) < listed.index("user user-42")
        assert "dgt_" not in listed
        roles = [each["role"] for each in run("tokens", "list", *options, "--json").json["tokens"]]
        assert roles == ["read", "write"]
        for what, code, text in (
            ([one["id"]], 0, "1 token revoked"),
            ([one["id"]], 1, "it may have expired"),
            (["--owner", "user-42"], 0, "1 token revoked"),
            ([], 1, "a token or an owner"),
            ([one["id"], "--owner", "x"], 1, "a token or an owner"),
        ):
            result = run("tokens", "revoke", *what, *options)
            assert (result.code, text in result.err) == (code, True), (what, result)
        assert "dragoman tokens create" in run("tokens", "list", *options).err


def test_following_the_hints_of_refusals_ends_with_every_scope_that_was_wanted(
    run: Run, tmp_path: Path
) -> None:
    data = ("--data", tmp_path / "hub")
    made = run("keys", "create", *data, "--owner", "ada", "--scope", "gateway", "--json").json
    wanted: tuple[tuple[Scope, ...], ...] = (
        ("chat",),
        ("operations", "chat", "admin"),
        ("operations",),
        ("spoke", "admin"),
        ("gateway",),
        ("admin",),
    )
    scopes = frozenset(made["scopes"])
    for _ in range(2):
        for any_of in wanted:
            try:
                require_scope(Identity("ada", made["id"], scopes), *any_of)
            except Forbidden as error:
                command = re.search(r"`dragoman (.*?)`", error.hint or "")
                assert command is not None
                scopes = frozenset(run(*command[1].split(), *data, "--json").json["scopes"])
    assert scopes == {"gateway", "chat", "operations", "spoke", "admin"}


def test_scopes_are_added_to_and_removed_from_those_of_a_key(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "hub", "--json")
    id = run("keys", "create", *data, "--owner", "ada").json["id"]
    for options, scopes in (
        (("--add-scope", "admin"), ["admin", "chat", "gateway", "operations"]),
        (("--remove-scope", "chat", "--remove-scope", "gateway"), ["admin", "operations"]),
        (("--add-scope", "spoke", "--remove-scope", "admin"), ["operations", "spoke"]),
        (("--scope", "chat", "--add-scope", "spoke"), ["chat", "spoke"]),
        (("--clear", "scope"), []),
    ):
        assert run("keys", "change", id, *data, *options).json["scopes"] == scopes
    every = [f"--remove-scope={scope}" for scope in ("chat", "gateway", "operations")]
    for wrong in (every, ("--add-scope", "chat", "--remove-scope", "chat")):
        assert run("keys", "change", id, *data, *wrong).code == 1


WRITING = (("keys", "create", "--owner", "ada"), ("secrets", "set", "openai"))
READING = (
    ("keys", "list"),
    ("keys", "change", "key_1", "--name", "x"),
    ("secrets", "list"),
    ("approvals", "list"),
    ("usage",),
    ("usage", "--csv"),
    ("sessions", "list"),
    ("calls", "list"),
)


def test_a_command_in_a_wrong_folder_makes_no_data_folder_there(run: Run, tmp_path: Path) -> None:
    for command in (*WRITING, *READING):
        result = run(*command)
        if command[0] == "secrets" and "master key" in result.err:
            continue  # refused earlier
        assert result.code == 1
        assert str(tmp_path / ".dragoman") in result.err
        assert "--data" in result.err
    assert list(tmp_path.iterdir()) == []


def test_commands_say_which_data_folder_they_use_unless_it_was_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dragoman.yaml").write_text("{}")
    folder = str(tmp_path / ".dragoman")
    made = run("keys", "create", "--owner", "ada")
    assert (made.code, f"{folder}, which is new" in made.err) == (0, True)
    assert folder in run("keys", "create", "--owner", "ada").err
    for command in READING[:1] + READING[3:]:
        assert folder in run(*command).err
        assert folder not in run(*command, "--data", folder).err
