"""Approvals: a call that somebody has to allow. The run waits for the answer, and costs nothing meanwhile."""

from __future__ import annotations

import asyncio

from dragoman import Agent, ScriptedModel, operation
from dragoman import events as e


@operation(namespace="bank", effect="once", approval=True)
def pay(to: str, euros: int) -> str:
    """Pay somebody."""
    return f"paid {euros} to {to}"


# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
to_ann, to_bob = ("bank_pay", {"to": "ann", "euros": 20}), ("bank_pay", {"to": "bob", "euros": 900})
model = ScriptedModel([to_ann, to_bob, "Ann has her money, Bob has not."])


async def main() -> None:
    async with Agent(model, operations=[pay]) as agent:
        run = agent.spawn("Pay Ann 20 and Bob 900.")
        inputs = {}
        async for event in run.events():
            if isinstance(event, e.ToolInputAvailable):
                inputs[event.tool_call_id] = event.input
            elif isinstance(event, e.ToolApprovalRequest):
                allowed = inputs[event.tool_call_id]["euros"] < 100  # your own program asks somebody here
                await run.approve(event.approval_id, allowed, reason=None if allowed else "too much")
            elif isinstance(event, (e.ToolOutputAvailable, e.ToolOutputDenied)):
                print(inputs[event.tool_call_id]["to"], event.type)
        print((await run.result).text)


asyncio.run(main())
