"""Findings of `dragoman doctor`: what was checked, the result, and what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from dragoman.cli.terminal import print_line
from dragoman.redaction import redact_log

State: TypeAlias = Literal["ok", "warning", "failed", "skipped"]
LABELS: dict[State, str] = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "skipped"}
WIDTH = max(len(label) for label in LABELS.values())


class Finding(msgspec.Struct, frozen=True):
    """One check: its name, its state, what was found, and what to do about it."""

    check: str
    state: State
    message: str
    todo: str | None = None


Findings: TypeAlias = AsyncIterator[Finding]


def ok(check: str, message: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, "ok", message)


def redacted(finding: Finding) -> Finding:
    """Return a finding with everything redacted that looks like a secret: it may hold errors of others."""
    todo = None if finding.todo is None else redact_log(finding.todo)
    return Finding(finding.check, finding.state, redact_log(finding.message), todo)


def print_finding(finding: Finding) -> None:
    """Print a finding, and what to do on a second line."""
    print_line(f"{LABELS[finding.state]:<{WIDTH}}  {finding.check}: {finding.message}")
    if finding.todo:
        print_line(f"{'':<{WIDTH}}  → {finding.todo}")


def summarize(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each state."""
    counts = {state: sum(each.state == state for each in findings) for state in LABELS}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)
