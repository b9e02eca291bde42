"""Explains verdicts of the policy: which rules match a call, and which of them decides."""

from __future__ import annotations

from typing import Any

from dragoman.operations.permission.policy import RuleMatch


def match_to_json(match: RuleMatch) -> dict[str, Any]:
    """Return a matching rule as JSON."""
    rule = match.verdict.rule
    decision = match.verdict.decision
    if rule is None:
        is_own = match.precedence[0] > 0
        source = "the operation itself: approval=True" if is_own else "the default"
        return {"decision": decision, "pattern": None, "source": source, "reason": None}
    filters = {"effect": rule.effects, "agent": rule.agents, "identity": rule.identities}
    conditions = [f"{name} {', '.join(values)}" for name, values in filters.items() if values]
    text = f"{rule.decision}: {', '.join(rule.operations)}"
    return {
        "decision": decision,
        "pattern": match.pattern.text if match.pattern else None,
        "source": "; ".join([text, *conditions]),
        "reason": rule.reason,
    }
