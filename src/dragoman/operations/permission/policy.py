"""The policy: rules that allow, ask about or deny calls. The most specific rule wins; `deny` wins ties."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from dragoman.identity import Identity
from dragoman.operations.operation import Effect, Operation
from dragoman.operations.permission.patterns import (
    Matcher,
    OperationPattern,
    PatternKind,
    compile_glob,
    identity_specificity,
    parse_pattern,
    specificity,
)
from dragoman.operations.registry import RESERVED_NAMESPACE

Decision = Literal["allow", "ask", "deny"]
Precedence: TypeAlias = tuple[int, int, int, int, int, int]

STRICTNESS: Mapping[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
EFFECT_COUNT = 3  # `read`, `idempotent` and `once`
MAX_CALLERS = 4_096
MAX_TABLES = 256
MAX_VERDICTS = 262_144


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about matching operations.

    `operations` are patterns of ids (`mail.send`, `mail.*`, `*`). `effects`, and patterns of `agents` and
    `identities` (an owner, or `key:ID`), narrow the rule. For `ask`: `expires` is in seconds, `answerers` are
    the owners who may answer (`owner`: the owner of the call).
    """

    decision: Decision
    operations: tuple[str, ...] = ("*",)
    effects: tuple[Effect, ...] = ()
    agents: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    reason: str | None = None
    expires: float | None = None
    answerers: tuple[str, ...] | None = None


class Verdict(msgspec.Struct, frozen=True):
    """A decision and its rule; None for the default or the operation's own `approval`."""

    decision: Decision
    rule: Rule | None = None


class RuleMatch(msgspec.Struct, frozen=True):
    """A rule that matches a call by one of its patterns; the match with the highest precedence decides.

    `precedence` compares, in order: the pattern's kind and literal characters, the number of conditions
    (agent, identity, effect), how specifically these name the caller, strictness, and an index that does not
    depend on the order of the rules. `pattern` is None for the default.
    """

    precedence: Precedence
    verdict: Verdict
    pattern: OperationPattern | None = None

    def applies_to(self, operation: Operation) -> bool:
        """Return whether it covers the effect and, for a meta-tool, names its namespace."""
        rule = self.verdict.rule
        if rule is not None and rule.effects and operation.policy_effect not in rule.effects:
            return False
        return operation.namespace != RESERVED_NAMESPACE or (
            self.pattern is not None and self.pattern.namespace == RESERVED_NAMESPACE
        )


ALLOW_META_TOOLS = RuleMatch((-1, 0, 0, 0, 0, 0), Verdict("allow"))


class RuleTable:
    """The rules for one kind of caller, indexed by pattern."""

    def __init__(self, matches: Sequence[RuleMatch], *, default: Decision, number: int) -> None:
        self.number = number
        self.is_empty = not matches
        self.default = RuleMatch(ALLOW_META_TOOLS.precedence, Verdict(default))
        self._by_id: dict[str, list[RuleMatch]] = {}
        self._by_namespace: dict[str, list[RuleMatch]] = {}
        self._by_glob: list[tuple[Matcher, RuleMatch]] = []
        for match in matches:
            self._add(match, match.pattern)

    def matches_for(self, operation: Operation) -> Iterator[RuleMatch]:
        """Yield the matches of an operation, including its own `approval` and the default."""
        id = operation.id.lower()
        namespace = operation.namespace.lower()
        named = (*self._by_id.get(id, ()), *self._by_namespace.get(namespace, ()))
        yield from (match for match in named if match.applies_to(operation))
        yield from (match for matches, match in self._by_glob if match.applies_to(operation) and matches(id))
        if operation.approval:
            yield RuleMatch((PatternKind.EXACT, len(id), 0, 0, STRICTNESS["ask"], -1), Verdict("ask"))
        yield ALLOW_META_TOOLS if namespace == RESERVED_NAMESPACE else self.default

    def _add(self, match: RuleMatch, pattern: OperationPattern | None) -> None:
        match pattern:
            case None:
                pass
            case OperationPattern(kind=PatternKind.EXACT):
                self._by_id.setdefault(pattern.text, []).append(match)
            case OperationPattern(kind=PatternKind.NAMESPACE):
                self._by_namespace.setdefault(pattern.namespace, []).append(match)
            case _:
                self._by_glob.append((compile_glob(pattern.text), match))


class Policy:
    """Rules, and the default where none matches: `default`, or the agent's own.

    Raises ConfigError for a pattern that no id can match. The meta-tools are open to all unless a rule
    names them (`hub`, `hub.call`): the calls made through them are decided separately.
    """

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        *,
        default: Decision = "allow",
        agents: Mapping[str, Decision] | None = None,
    ) -> None:
        self._rules = tuple(sorted(rules, key=msgspec.json.encode))
        self._patterns = tuple(tuple(map(parse_pattern, rule.operations)) for rule in self._rules)
        self._default = default
        self._agents = dict(agents or {})
        self._tables_by_caller: dict[tuple[str | None, str, str | None], RuleTable] = {}
        self._tables: dict[tuple[object, ...], RuleTable] = {}
        self._verdicts: dict[tuple[int, str, str, Effect, bool], Verdict] = {}

    def decide(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> Verdict:
        """Return the verdict on a call. Cached."""
        table = self._table(identity, agent)
        if table.is_empty and not operation.approval and operation.namespace != RESERVED_NAMESPACE:
            return table.default.verdict
        key = (table.number, operation.namespace, operation.name, operation.policy_effect, operation.approval)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[key] = max(table.matches_for(operation), key=precedence_of).verdict
        return verdict

    def examples(self) -> Sequence[str]:
        """Return an id for each pattern of the rules: one that it matches, in lower case."""
        texts = (pattern.text for patterns in self._patterns for pattern in patterns)
        return [re.sub(r"[*?]", "x", text) for text in texts]

    def is_visible(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> bool:
        """Return whether the caller may call it, at least with approval."""
        return self.decide(operation, identity=identity, agent=agent).decision != "deny"

    def matches(
        self, operation: Operation, *, identity: Identity, agent: str | None = None
    ) -> Sequence[RuleMatch]:
        """Return all matches, the deciding one first and the default last, for display."""
        return sorted(self._table(identity, agent).matches_for(operation), key=precedence_of, reverse=True)

    def _table(self, identity: Identity, agent: str | None) -> RuleTable:
        caller = (agent, identity.owner, identity.key_id)
        table = self._tables_by_caller.get(caller)
        if table is None:
            if len(self._tables_by_caller) >= MAX_CALLERS:
                self._tables_by_caller.clear()
            table = self._tables_by_caller[caller] = self._build_table(identity, agent)
        return table

    def _build_table(self, identity: Identity, agent: str | None) -> RuleTable:
        """Return the caller's table; callers whom the same rules match equally share one."""
        default = self._agents.get(agent, self._default) if agent is not None else self._default
        specificities = [rule_specificity(rule, identity, agent=agent) for rule in self._rules]
        signature = (default, *specificities)
        if signature not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
                self._tables_by_caller.clear()
                self._verdicts.clear()  # table numbers are reused
            matches = list(self._make_matches(specificities))
            self._tables[signature] = RuleTable(matches, default=default, number=len(self._tables))
        return self._tables[signature]

    def _make_matches(self, specificities: Sequence[tuple[int, int] | None]) -> Iterator[RuleMatch]:
        for index, (rule, patterns, narrowness) in enumerate(
            zip(self._rules, self._patterns, specificities, strict=True)
        ):
            verdict = Verdict(rule.decision, rule)
            if narrowness is not None:
                for pattern in patterns:
                    weight = (pattern.kind, pattern.literals, *narrowness, STRICTNESS[rule.decision], index)
                    yield RuleMatch(weight, verdict, pattern)


def precedence_of(match: RuleMatch) -> Precedence:
    return match.precedence


def rule_specificity(rule: Rule, identity: Identity, *, agent: str | None) -> tuple[int, int] | None:
    """Return the number of conditions and how specifically they name the caller.

    None if it does not match.
    """
    by_agent = specificity(rule.agents, agent)
    by_identity = identity_specificity(rule.identities, identity.owner, key_id=identity.key_id)
    if by_agent is None or by_identity is None:
        return None
    by_effect = 0 < len(set(rule.effects)) < EFFECT_COUNT
    return (by_agent > 0) + (by_identity > 0) + by_effect, by_agent + by_identity
