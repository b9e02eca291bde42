"""Find names in policy rules that do not exist: a misspelt rule would silently match nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from dragoman.config import Config
from dragoman.operations.permission.patterns import (
    OperationPattern,
    PatternKind,
    compile_glob,
    has_wildcards,
    parse_pattern,
)
from dragoman.operations.registry import HUB_NAMESPACES
from dragoman.server.app.operation_setup import DECISIONS, as_tuple
from dragoman.suggestions import suggest

DEFAULT_AGENT = "default"


def unknown_policy_names(
    config: Config, ids: Sequence[str], *, external: Collection[str], teams: Collection[str] = ()
) -> list[str]:
    """Return a sentence for each name in a rule that no agent, namespace or operation has, after its field.

    `ids` are the operations that there are; `external` are the namespaces of MCP servers and spokes, or
    patterns of them, whose operations may come later.
    """
    known_ids = [id.lower() for id in ids]
    namespaces = sorted({*HUB_NAMESPACES, *(id.partition(".")[0] for id in known_ids)})
    agents = [DEFAULT_AGENT, *config.agents, *teams]
    found = []
    for number, rule in enumerate(config.policy):
        field = f"policy[{number}]"
        for decision in DECISIONS:
            for text in as_tuple(getattr(rule, decision)):
                pattern = parse_pattern(text)
                problem = unknown_operation(pattern, known_ids, namespaces=namespaces, external=external)
                found += [f"{field}.{decision}: {problem}"] if problem else []
        found += [f"{field}.agent: {problem}" for problem in unknown_agents(as_tuple(rule.agent), agents)]
    return found


def unknown_operation(
    pattern: OperationPattern, ids: Sequence[str], *, namespaces: Sequence[str], external: Collection[str]
) -> str | None:
    """Return what is unknown about a pattern; None if it matches something, or may do so later."""
    if pattern.kind is PatternKind.EVERYTHING or any(map(compile_glob(pattern.text), ids)):
        return None
    namespace = pattern.namespace
    if has_wildcards(namespace) or any(fnmatchcase(namespace, each.lower()) for each in external):
        return None
    if namespace not in namespaces:
        known_namespaces = [*namespaces, *external]
        return f"there is no namespace {namespace!r}{suggest(namespace, known_namespaces)}"
    if pattern.kind is PatternKind.NAMESPACE:  # a namespace of the hub that is switched off
        return None
    own_ids = [id for id in ids if id.startswith(f"{namespace}.")]
    if not own_ids:  # switched off as well
        return None
    if pattern.kind is PatternKind.EXACT:
        return f"there is no operation {pattern.text!r}{suggest(pattern.text, own_ids)}"
    return f"no operation matches {pattern.text!r}"


def unknown_agents(patterns: Sequence[str], agents: Sequence[str]) -> Iterator[str]:
    """Yield what is unknown about patterns of agents."""
    for pattern in patterns:
        if not any(compile_glob(pattern)(name) for name in agents):
            yield f"there is no agent {pattern!r}{suggest(pattern, agents)}"
