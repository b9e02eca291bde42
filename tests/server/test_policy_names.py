"""Names in rules of the policy that no agent, namespace or operation has."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import parse_config
from dragoman.server.app.policy_names import unknown_policy_names
from tests.serving import serving

IDS = ("math.calculate", "web.fetch", "agents.helper", "hub.call", "stock.level", "stock.order_one")
EXTERNAL = ("git", "orders-*")
RULES: dict[str, tuple[dict[str, Any], str | None]] = {
    "an operation": (
        {"deny": "math.calculat"},
        "deny: there is no operation 'math.calculat'; did you mean 'math.calculate'?",
    ),
    "an operation in a list": (
        {"ask": ["stock.level", "stock.order"]},
        "ask: there is no operation 'stock.order'; did you mean 'stock.order_one'?",
    ),
    "a namespace": (
        {"deny": "stok.*"},
        "deny: there is no namespace 'stok'; did you mean 'stock'?",
    ),
    "a bare namespace": (
        {"deny": "giit"},
        "deny: there is no namespace 'giit'; did you mean 'git'?",
    ),
    "an operation of an unknown namespace": (
        {"ask": "mah.calculate"},
        "ask: there is no namespace 'mah'; did you mean 'math'?",
    ),
    "nothing similar": (
        {"deny": "quux.zap"},
        "deny: there is no namespace 'quux'",
    ),
    "a pattern without a match": (
        {"ask": "stock.delete_*"},
        "ask: no operation matches 'stock.delete_*'",
    ),
    "an agent": (
        {"deny": "*", "agent": "suport"},
        "agent: there is no agent 'suport'; did you mean 'support'?",
    ),
    "an agent in another case": (
        {"deny": "*", "agent": ["support", "Support"]},
        "agent: there is no agent 'Support'; did you mean 'support'?",
    ),
    "a pattern of agents": (
        {"deny": "*", "agent": "sales-*"},
        "agent: there is no agent 'sales-*'",
    ),
    "a sub-agent": (
        {"deny": "agents.helpr"},
        "deny: there is no operation 'agents.helpr'; did you mean 'agents.helper'?",
    ),
    "a meta-tool": (
        {"deny": "hub.cal"},
        "deny: there is no operation 'hub.cal'; did you mean 'hub.call'?",
    ),
    "another case of an operation": (
        {"deny": "Math.Calculate"},
        None,
    ),
    "everything": (
        {"deny": "*"},
        None,
    ),
    "a pattern over namespaces": (
        {"deny": "*.delete_*"},
        None,
    ),
    "what an MCP server may bring": (
        {"ask": ["git.push", "git.*"]},
        None,
    ),
    "what a spoke may bring": (
        {"ask": "orders-eu.cancel"},
        None,
    ),
    "a namespace of the hub that is off": (
        {"deny": ["files.*", "history", "files.read"]},
        None,
    ),
    "the default agent": (
        {"deny": "web.*", "agent": ["default", "sup*"]},
        None,
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_for_what_does_not_exist_is_told_with_what_was_meant(name: str) -> None:
    rule, message = RULES[name]
    config = parse_config({"agents": {"support": {}}, "policy": [{"allow": "math.*"}, rule]})
    expected = [] if message is None else [f"policy[1].{message}"]
    assert unknown_policy_names(config, IDS, external=EXTERNAL) == expected


async def test_a_hub_logs_unknown_names_of_its_policy_when_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(tmp_path, policy=[{"deny": "math.calcualte"}]):
        pass
    assert (
        "policy[0].deny: there is no operation 'math.calcualte'; did you mean 'math.calculate'?"
        in caplog.text
    )
