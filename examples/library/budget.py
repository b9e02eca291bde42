"""Budget: what a step may cost is reserved before its request; a step that does not fit is not begun."""

from __future__ import annotations

from dragoman import Agent, PriceOverride, RunLimits, ScriptedModel, operation


@operation(namespace="web", effect="read")
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}"


# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
used = {"input_tokens": 10_000, "output_tokens": 100}
steps = [{"tools": [{"name": "web_read", "input": {"page": page}}], "usage": used} for page in range(9)]
agent = Agent(
    ScriptedModel(steps),
    operations=[read],
    limits=RunLimits(max_budget_usd=0.04),
    prices={"scripted/*": PriceOverride(input=1, output=10)},  # dollars per million; big providers' are known
)
result = agent.run_sync("Read it all.")
print(f"{result.exit_reason} after {result.steps} steps and ${result.cost:.3f}")
print(result.stopped_by)
