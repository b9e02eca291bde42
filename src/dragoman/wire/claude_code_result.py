"""How a run of Claude Code ended: the reason, what it used, or the error that its words stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import asdict

from dragoman.errors import BudgetExhausted, ProviderCategory, ProviderError
from dragoman.events import FinishReason, Usage
from dragoman.wire.anthropic_answer import REASONS
from dragoman.wire.anthropic_usage import Tally
from dragoman.wire.claude_code_line import Line
from dragoman.wire.failures import failure

LOGIN = "run the CLI once by hand and log in, or give it a key of its own (ANTHROPIC_API_KEY)"
_LOGGED_OUT = re.compile(r"log ?in|api[_ -]?key|authenticat|unauthori[sz]ed|token|credential", re.IGNORECASE)
_KINDS: Mapping[str, tuple[ProviderCategory, bool]] = {
    "authentication_failed": ("auth", False),
    "billing_error": ("rate_limit", False),
    "rate_limit": ("rate_limit", True),
    "invalid_request": ("bad_request", False),
    "server_error": ("api_error", True),
}
_CUT = "max_output_tokens"  # the CLI asked to go on a few times, and gave up
_BUDGETS = frozenset({"error_max_budget_usd"})
_COUNTS: Mapping[str, str] = {  # what a model's usage has, in the words of `usage`
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheCreationInputTokens": "cache_creation_input_tokens",
}


def reason_of(line: Line, kind: str | None) -> FinishReason | None:
    """Why it ended; None when it failed. `kind` is the error that its last message told."""
    if line.subtype == "error_max_turns":
        return "max-steps"
    if kind == _CUT:
        return "length"
    if line.stop_reason == "refusal":
        return "content-filter"
    if line.is_error or line.subtype != "success":
        return None
    reason = REASONS.get(line.stop_reason or "", "stop")
    return "stop" if reason == "tool-calls" else reason


def usage_of(line: Line) -> Usage | None:
    """All that the process used, also for sub-agents and earlier turns; else what it tells of this turn."""
    tally = Tally()
    used = [each for each in line.models.values() if isinstance(each, Mapping)] if line.models else []
    counts = {ours: sum(_count(each, theirs) for each in used) for theirs, ours in _COUNTS.items()}
    tally.start(counts if any(counts.values()) else line.usage, whole=True)
    return tally.total()


def _count(used: Mapping[str, object], name: str) -> int:
    value = used.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def failed(line: Line, kind: str | None) -> ProviderError:
    """Why the run failed: what the CLI says of it, in whichever of its ways, and what it took."""
    error = _failure(line, kind)
    used = usage_of(line)
    error.cost = line.total_cost_usd
    error.used = None if used is None else asdict(used)
    return error


def _failure(line: Line, kind: str | None) -> ProviderError:
    errors = line.errors if isinstance(line.errors, list) else []
    words = [text for text in (line.result, *errors) if isinstance(text, str) and text.strip()]
    text = "; ".join(words) or f"Claude Code ended with {line.subtype or 'an error'} and said nothing more"
    if line.subtype in _BUDGETS:
        error = ProviderError(f"Claude Code stopped at its own budget: {text}", category="rate_limit")
        error.code = BudgetExhausted.code
        return error
    return explain(text, kind=kind, status=line.api_error_status)


def explain(text: str, *, kind: str | None = None, status: int | None = None) -> ProviderError:
    """The error that words of the CLI stand for; `kind` and `status` are what it says of it besides."""
    error = failure(text, status=status)
    if kind is not None and kind in _KINDS and not (kind == "server_error" and status):
        category, transient = _KINDS[kind]
        error = ProviderError(error.message, category=category, transient=transient, upstream_status=status)
    elif status is None and error.category == "api_error":
        error.transient = False  # nothing says that it would go better
    elif status is None and error.category == "auth" and not _LOGGED_OUT.search(text):
        return ProviderError(error.message, category="bad_request")  # such as a mode that root may not use
    if error.category == "auth":
        error.hint = LOGIN
    return error
