"""What callers are told when a limit of their key or owner refuses a request."""

from __future__ import annotations

from math import isinf

from dragoman.accounts.price import NANOS_PER_DOLLAR
from dragoman.accounts.request_limiter import LimitRejection
from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, LimitReached
from dragoman.store.accounts.budgets import BudgetRefusal, ChargedBudget

LIMIT_TEXTS = {
    "requests": "is limited to {limit} requests a minute",
    "tokens": "is limited to {limit} tokens a minute",
    "parallel": "is limited to {limit} requests at the same time",
}


def scope_text(scope: str) -> str:
    """Return a scope as text: "the key 'k1'"."""
    kind, _, name = scope.partition(":")
    return f"the {kind} {name!r}"


def limit_error(rejection: LimitRejection, *, tokens: int) -> LimitReached:
    message = f"{scope_text(rejection.scope)} {LIMIT_TEXTS[rejection.kind].format(limit=rejection.limit)}"
    if isinf(rejection.retry_after):
        error = LimitReached(f"{message}, and this request alone has about {tokens}")
        error.transient = False
        return error
    return LimitReached(message, retry_after=rejection.retry_after)


def budget_error(refusal: BudgetRefusal, amount: int, *, own: int = 0) -> DragomanError:
    """Return the error of a request that asks for more of a budget; `own` is what it has reserved before."""
    charge = refusal.charge
    window = charge.window.partition(":")[0]
    span = "in total" if window == "total" else f"this {window}"
    has = (
        f"{scope_text(charge.scope)} may spend {format_usd(charge.limit)} "
        f"{span} and has spent {format_usd(refusal.spent)}"
    )
    if refusal.spent + amount > charge.limit:
        return BudgetExhausted(f"{has}; this request may cost up to {format_usd(amount)}")
    if refusal.spent + own + amount > charge.limit:
        return BudgetExhausted(f"{has}; this answer is longer than what is left pays for")
    reserved = f"{format_usd(refusal.reserved)} is reserved by active requests"
    return BudgetExhausted(f"{has}; {reserved}", transient=True, hint="try again when they have ended")


def unpriced_error(model: str, budget: ChargedBudget) -> BadRequest:
    return BadRequest(
        f"{model!r} has no price, and the money of {scope_text(budget.scope)} is limited",
        field="model",
        hint="set its price under `prices` in dragoman.yaml (0 for a self-hosted model), "
        "or set `unpriced: allow` under `limits`",
    )


def format_usd(nanos: int) -> str:
    """Format an amount in dollars, with more decimals if it is below a dollar."""
    amount = nanos / NANOS_PER_DOLLAR
    return f"${amount:.2f}" if amount >= 1 or not nanos else f"${amount:.6f}".rstrip("0").rstrip(".")
