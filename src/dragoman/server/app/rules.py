"""Rules of the policy, as a configuration says them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.config.sections import Config, PolicyRule
from dragoman.errors import ConfigError
from dragoman.operations.policy import Decision, Policy, Rule

DECISIONS: tuple[Decision, ...] = ("allow", "ask", "deny")


def policy_of(config: Config) -> Policy:
    """The policy of a hub: its rules, and the defaults of the hub and of its agents. ConfigError."""
    agents = {name: agent.policy for name, agent in config.agents.items() if agent.policy is not None}
    return Policy(rules_of(config.policy), default=config.policy_default, agents=agents)


def rules_of(said: Iterable[PolicyRule]) -> tuple[Rule, ...]:
    """The rules of a policy. ConfigError for one that cannot be."""
    return tuple(rule_of(each, number) for number, each in enumerate(said))


def rule_of(said: PolicyRule, number: int) -> Rule:
    """One rule; `number` is its place in the configuration, for the error."""
    decisions = [word for word in DECISIONS if getattr(said, word)]
    if len(decisions) != 1:
        found = " and ".join(decisions) or "none"
        raise ConfigError(f"policy[{number}]: expected one of allow, ask and deny, got {found}")
    fields: dict[str, Any] = {
        "decision": decisions[0],
        "operations": many(getattr(said, decisions[0])),
        "effects": many(said.effect),
        "agents": many(said.agent),
        "identities": many(said.identity),
        "reason": said.reason,
        "expires": said.expires,
        "answerers": many(said.answerers) or None,
    }
    try:
        rule = msgspec.convert(fields, Rule)
        Policy([rule])
    except msgspec.ValidationError as error:
        raise ConfigError(f"policy[{number}]: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"policy[{number}]: {error.message}", hint=error.hint) from None
    return rule


def many(said: str | tuple[str, ...]) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else tuple(said)
