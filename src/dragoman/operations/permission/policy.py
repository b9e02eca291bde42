"""Policy: who may call what. Rules `allow`, `ask` or `deny`; the most specific wins, `deny` wins ties."""

from __future__ import annotations

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
EFFECT_COUNT = 3  # how many there are
MAX_CALLERS = 4_096
MAX_TABLES = 256
MAX_VERDICTS = 262_144


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided of the operations that match: patterns of ids (`mail.send`, `mail.*`, `*`), and, where
    they are given, the effect, the agent and the identity (an owner, or `key:ID`), as patterns too.

    For `ask`: the seconds until the request expires, and the owners who may answer (`owner`: the call's own).
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
    """What is decided, and by which rule; None where it is the default or the operation's own wish."""

    decision: Decision
    rule: Rule | None = None


class RuleMatch(msgspec.Struct, frozen=True):
    """A rule that fits a call, by one of its patterns; of all that fit, the one that weighs most decides.

    `precedence`: the pattern's kind and literal characters, how many conditions (agent, identity, effect)
    narrow the rule, how closely these name the caller, how strict it is, and last a place that no order of
    the rules changes. `pattern` is None for the default.
    """

    precedence: Precedence
    verdict: Verdict
    pattern: OperationPattern | None = None

    def applies_to(self, operation: Operation) -> bool:
        """Whether it is for operations of this effect, and, of the meta-tools, whether it names them."""
        rule = self.verdict.rule
        if rule is not None and rule.effects and operation.effect not in rule.effects:
            return False
        return operation.namespace != RESERVED_NAMESPACE or (
            self.pattern is not None and self.pattern.namespace == RESERVED_NAMESPACE
        )


ALLOW_META_TOOLS = RuleMatch((-1, 0, 0, 0, 0, 0), Verdict("allow"))


class RuleTable:
    """The rules that are for one kind of caller, by what they are looked up with."""

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
        """What fits an operation, with its own wish and the default."""
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
    """Rules, and what holds where none matches: `default`, or what an agent's own default is.

    ConfigError for a pattern of operations that no id could fit. The meta-tools are open to all, unless a
    rule names them (`hub`, `hub.call`): what is called through them is decided by itself.
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
        """What is decided of a call. Cheap: it is remembered."""
        table = self._table(identity, agent)
        if table.is_empty and not operation.approval and operation.namespace != RESERVED_NAMESPACE:
            return table.default.verdict
        key = (table.number, operation.namespace, operation.name, operation.effect, operation.approval)
        known = self._verdicts.get(key)
        if known is None:
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()
            known = self._verdicts[key] = max(table.matches_for(operation), key=precedence_of).verdict
        return known

    def is_visible(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> bool:
        """Whether the caller may call it, if only when somebody approves."""
        return self.decide(operation, identity=identity, agent=agent).decision != "deny"

    def matches(
        self, operation: Operation, *, identity: Identity, agent: str | None = None
    ) -> Sequence[RuleMatch]:
        """All that fits, for people: the first one decides, and the last one is the default."""
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
        """The caller's table; those whom the same rules fit in the same way share one."""
        default = self._agents.get(agent, self._default) if agent is not None else self._default
        fitting = [rule_specificity(rule, identity, agent=agent) for rule in self._rules]
        signature = (default, *fitting)
        if signature not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
                self._tables_by_caller.clear()
                self._verdicts.clear()  # their numbers are given anew
            matches = list(self._make_matches(fitting))
            self._tables[signature] = RuleTable(matches, default=default, number=len(self._tables))
        return self._tables[signature]

    def _make_matches(self, fitting: Sequence[tuple[int, int] | None]) -> Iterator[RuleMatch]:
        for place, (rule, patterns, narrow) in enumerate(
            zip(self._rules, self._patterns, fitting, strict=True)
        ):
            verdict = Verdict(rule.decision, rule)
            if narrow is not None:
                for each in patterns:
                    weight = (each.kind, each.literals, *narrow, STRICTNESS[rule.decision], place)
                    yield RuleMatch(weight, verdict, each)


def precedence_of(match: RuleMatch) -> Precedence:
    return match.precedence


def rule_specificity(rule: Rule, identity: Identity, *, agent: str | None) -> tuple[int, int] | None:
    """How many conditions narrow the rule, and how closely they name the caller; None if it is for others."""
    by_agent = specificity(rule.agents, agent)
    by_identity = identity_specificity(rule.identities, identity.owner, key_id=identity.key_id)
    if by_agent is None or by_identity is None:
        return None
    by_effect = 0 < len(set(rule.effects)) < EFFECT_COUNT
    return (by_agent > 0) + (by_identity > 0) + by_effect, by_agent + by_identity
