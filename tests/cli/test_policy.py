"""`dragoman policy check`: the decision and the rules behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Run

OPERATIONS = '''
from dragoman.operations.definitions.decorator import operation


@operation("shop", approval=True)
def order(item: str) -> str:
    """Order something."""
    return item


@operation("shop", effect="read")
def price(item: str) -> float:
    """Look up a price."""
    return 1.0
'''
RULES: list[dict[str, Any]] = [
    {"deny": "shop", "effect": ["once"], "reason": "not on Fridays"},
    {"allow": ["shop.order", "mail"], "agent": "buyer", "identity": ["ann", "key:key_1"]},
    {"ask": "*.send_*", "expires": 60, "answerers": ["boss"]},
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(OPERATIONS)
    reply = {
        "operations": [str(tmp_path / "shop.py")],
        "policy": RULES,
        "policy_default": "ask",
        "agents": {"guest": {"policy": "deny"}},
    }
    path = tmp_path / "hub.yaml"
    path.write_bytes(msgspec.json.encode(reply))
    return path


def test_the_verdict_comes_with_the_rules_that_fit_the_one_that_decides_first(run: Run, config: Path) -> None:
    result = run("policy", "check", "shop.order", "--config", config)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "shop.order (once): ask"
    assert [line.split() for line in lines[1:]] == [
        ["DECISION", "PATTERN", "BECAUSE", "OF"],
        ["ask", "-", "the", "operation", "itself:", "approval=True"],
        ["deny", "shop.*", "deny:", "shop;", "effect", "once"],
        ["ask", "-", "the", "default"],
    ]


@pytest.mark.parametrize(
    ("requests", "decision", "reason"),
    [
        (("shop.price",), "ask", None),
        (("shop.price", "--agent", "guest"), "deny", None),
        (("shop.price", "--effect", "once"), "deny", "not on Fridays"),
        (("shop.order", "--agent", "buyer", "--identity", "ann"), "allow", None),
        (("shop.order", "--agent", "buyer", "--identity", "key:key_1"), "allow", None),
        (("shop.order", "--agent", "buyer", "--identity", "bob", "--identity", "key:key_2"), "ask", None),
        (("mail.read", "--agent", "buyer", "--identity", "ann"), "allow", None),
        (("mail.send_all", "--agent", "buyer", "--identity", "ann"), "ask", None),
        (("hub.call", "--agent", "guest"), "allow", None),
    ],
)
def test_agents_identities_and_effects_are_taken_into_account(
    run: Run, config: Path, requests: tuple[str, ...], decision: str, reason: str | None
) -> None:
    found = run("policy", "check", *requests, "--config", config, "--json").json
    assert (found["decision"], found["reason"]) == (decision, reason)
    assert found["matches"][0]["decision"] == decision


def test_an_operation_that_is_not_known_here_is_said_to_be_guessed(run: Run, config: Path) -> None:
    result = run("policy", "check", "github.delete_repo", "--config", config)
    assert (result.code, result.out.splitlines()[0]) == (0, "github.delete_repo (once): ask")
    assert "not known here" in result.err
    wrong = run("policy", "check", "no id", "--config", config)
    assert (wrong.code, wrong.out, "'no id'" in wrong.err) == (1, "", True)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"allow": "a.b", "deny": "a"}, "allow and deny"),
        ({"reason": "why"}, "got none"),
        ({"allow": "a..b c"}, "'a..b c'"),
        ({"allow": "a.b", "effect": "write"}, "write"),
    ],
)
def test_an_invalid_rule_is_reported(run: Run, tmp_path: Path, rule: dict[str, Any], text: str) -> None:
    path = tmp_path / "hub.yaml"
    path.write_bytes(msgspec.json.encode({"policy": [rule]}))
    refused = run("policy", "check", "a.b", "--config", path)
    assert (refused.code, refused.out) == (1, "")
    assert text in refused.err
    assert "policy" in refused.err
