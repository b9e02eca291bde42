"""Builds the hub's own operations, built-in and configured, their search and the policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config.problems import blame_field
from dragoman.operations.loader import load_operations
from dragoman.operations.message_search import MessageSearch
from dragoman.operations.registry import Registry
from dragoman.operations.results.artifact import ArtifactStore
from dragoman.operations.search.search import OperationSearch
from dragoman.tools import history as history_operations
from dragoman.tools.builtin import builtin_operations
from dragoman.tools.files.roots import Roots
from dragoman.tools.web.host_policy import WebSettings

if TYPE_CHECKING:
    from dragoman.operations.search.embedder import Embedder
    from dragoman.operations.search.semantic_index import SemanticIndex
from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.config.sections import Config, PolicyRule, SearchConfig
from dragoman.errors import ConfigError
from dragoman.operations.permission.policy import Decision, Policy, Rule


def build_registry(config: Config, artifacts: ArtifactStore, *, history: MessageSearch) -> Registry:
    """Register the built-in operations and those of the configuration. ConfigError."""
    check_folders(config)
    root, folders = file_folders(config)
    built = builtin_operations(
        root,
        files=folders,
        artifacts=artifacts,
        web=web_settings(config),
    )
    registry = Registry(*built, *history_operations.operations(history))
    for number, place in enumerate(config.operations):
        with blame_field(f"operations[{number}]"):
            for operation in load_operations(place):
                registry.add(operation)
    return registry


def file_folders(config: Config) -> tuple[Path | None, dict[str, Path]]:
    """Return the folders that the file operations share: the root, and those with names."""
    root = Path(config.files_root) if config.files_root else None
    return root, {name: Path(folder) for name, folder in config.files.items()}


def check_folders(config: Config) -> None:
    """Raise ConfigError for a folder of `files` that cannot be shared."""
    for name, folder in config.files.items():
        with blame_field(f"files.{name}"):
            Roots(folders={name: Path(folder)})
    if config.files_root:
        with blame_field("files_root"):
            Roots(Path(config.files_root))


def web_settings(config: Config) -> WebSettings | None:
    """Return the settings of `web.fetch`; None when it is off."""
    web = config.web
    if not web.enabled:
        return None
    return WebSettings(
        allow_hosts=web.allow_hosts,
        deny_hosts=web.deny_hosts,
        allow_networks=web.allow_networks,
        ports=web.ports,
        max_bytes=web.max_bytes,
        timeout=web.timeout,
        rates=web.rates,
    )


def build_search(config: Config, registry: Registry) -> tuple[OperationSearch, SemanticIndex | None]:
    """Build the search over all operations, and the semantic index if embeddings are on. ConfigError."""
    if config.search.embeddings == "none":
        return OperationSearch(registry), None
    from dragoman.operations.search.semantic_index import SemanticIndex  # late: only with embeddings

    with blame_field("search.embeddings"):
        semantic_index = SemanticIndex(build_embedder(config.search))
    return OperationSearch(registry, semantic_index=semantic_index), semantic_index


def build_embedder(settings: SearchConfig) -> Embedder:
    """Build the embedder that the settings name. ConfigError."""
    if settings.embeddings == "minilm":
        from dragoman.operations.search.minilm import MiniLmEmbedder  # late: it needs the extra

        return MiniLmEmbedder(Path(settings.model_path).expanduser() if settings.model_path else None)
    from dragoman.operations.search.wordllama import WordLlamaEmbedder  # late: it needs the extra

    return WordLlamaEmbedder()


# Rules of the policy.

DECISIONS: tuple[Decision, ...] = ("allow", "ask", "deny")


def build_policy(config: Config) -> Policy:
    """Build the policy: its rules, and the defaults of the hub and of its agents. ConfigError."""
    agents = {name: agent.policy for name, agent in config.agents.items() if agent.policy is not None}
    return Policy(build_rules(config.policy), default=config.policy_default, agents=agents)


def build_rules(configs: Iterable[PolicyRule]) -> tuple[Rule, ...]:
    """Build the rules of a policy. ConfigError for an invalid one."""
    return tuple(build_rule(each, number) for number, each in enumerate(configs))


def build_rule(config: PolicyRule, index: int) -> Rule:
    """Build one rule; `index` is its position in the configuration, for errors."""
    decisions = [word for word in DECISIONS if getattr(config, word)]
    if len(decisions) != 1:
        found = " and ".join(decisions) or "none"
        raise ConfigError(f"policy[{index}]: expected one of allow, ask and deny, got {found}")
    fields: dict[str, Any] = {
        "decision": decisions[0],
        "operations": as_tuple(getattr(config, decisions[0])),
        "effects": as_tuple(config.effect),
        "agents": as_tuple(config.agent),
        "identities": as_tuple(config.identity),
        "reason": config.reason,
        "expires": config.expires,
        "answerers": as_tuple(config.answerers) or None,
    }
    try:
        rule = msgspec.convert(fields, Rule)
        Policy([rule])
    except msgspec.ValidationError as error:
        raise ConfigError(f"policy[{index}]: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"policy[{index}]: {error.message}", hint=error.hint) from None
    return rule


def as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
