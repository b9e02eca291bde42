"""The operations that a hub has of itself: those built in, as far as they are configured, and yours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.operations.artifact import Artifacts
from dragoman.operations.history import History
from dragoman.operations.loading import load
from dragoman.operations.registry import Registry
from dragoman.operations.search.search import Search
from dragoman.tools import history as said
from dragoman.tools.builtin import builtin
from dragoman.tools.web.guard import WebSettings

if TYPE_CHECKING:
    from dragoman.operations.search.meanings import Meanings
from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.config.sections import Config, PolicyRule
from dragoman.errors import ConfigError
from dragoman.operations.permission.policy import Decision, Policy, Rule


def registry_of(config: Config, artifacts: Artifacts, *, history: History) -> Registry:
    """The built-in operations and those of the configuration. ConfigError."""
    built = builtin(
        Path(config.files_root) if config.files_root else None,
        files={name: Path(folder) for name, folder in config.files.items()},
        artifacts=artifacts,
        web=web_of(config),
    )
    yours = (found for place in config.operations for found in load(place))
    return Registry(*built, *said.operations(history), *yours)


def web_of(config: Config) -> WebSettings | None:
    """What `web.fetch` may ask; None when it is off."""
    said = config.web
    if not said.enabled:
        return None
    return WebSettings(
        allow_hosts=said.allow_hosts,
        deny_hosts=said.deny_hosts,
        allow_networks=said.allow_networks,
        ports=said.ports,
        max_bytes=said.max_bytes,
        timeout=said.timeout,
    )


def search_of(config: Config, registry: Registry) -> tuple[Search, Meanings | None]:
    """The search over all operations; with embeddings also what keeps their meanings. ConfigError."""
    if config.search.embeddings == "none":
        return Search(registry), None
    from dragoman.operations.search.meanings import Meanings  # late: only with embeddings
    from dragoman.operations.search.wordllama import WordLlama  # late: it needs the extra

    meanings = Meanings(WordLlama())
    return Search(registry, meanings=meanings), meanings


# ---- Rules of the policy, as a configuration says them.

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
