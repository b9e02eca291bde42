"""The example of `dragoman demo`: a finished session with tools, a failed call, an approval and a sub-agent.

Scripts play its two models; its calls are real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.cli.hub_client.client import EventBatches, HubClient
from dragoman.config import AgentConfig, Config, ProviderConfig
from dragoman.config.sections import PolicyRule

SESSION = "example"
QUESTION = "What time is it in Lisbon, what is 1 / 0, and what do 12 lamps at 34 each cost?"
SCRIPTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "guide": (
        {
            "reasoning": "I look at the clock, try a division that fails, and leave the sum to the clerk.",
            "tools": [
                {
                    "name": "hub_call",
                    "input": {
                        "calls": [
                            {"tool": "time.now", "input": {"timezone": "Europe/Lisbon"}},
                            {"tool": "math.calculate", "input": {"expression": "1 / 0"}},
                        ]
                    },
                }
            ],
        },
        {
            "text": "The division failed, as it has to. The clerk adds up, which needs your approval.",
            "tools": [{"name": "agents_clerk", "input": {"prompt": "Add up: 12 lamps at 34 each."}}],
        },
        {"text": "The lamps cost **408**. The time is in the first call, and 1 / 0 has no value."},
    ),
    "clerk": (
        {
            "reasoning": "12 times 34.",
            "tools": [{"name": "math_calculate", "input": {"expression": "12 * 34"}}],
        },
        {"text": "12 lamps at 34 each are 408."},
    ),
}


def add_example(config: Config, folder: Path) -> Config:
    """Return a configuration with the agents of the example; their scripts are written into the folder."""
    providers = {}
    for name, steps in SCRIPTS.items():
        script = folder / f"{name}.json"
        script.write_bytes(msgspec.json.encode({"play": "turns", "steps": steps}))
        providers[f"example-{name}"] = ProviderConfig(type="scripted", script=str(script))
    agents = {
        "guide": AgentConfig(model="example-guide/script", operations=["agents.clerk"]),
        "clerk": AgentConfig(
            model="example-clerk/script", operations=["math.calculate"], description="Adds up invoices."
        ),
    }
    return replace(
        config,
        providers={**config.providers, **providers},
        agents={**config.agents, **agents},
        policy=(*config.policy, PolicyRule(ask=("agents.clerk",), reason="sub-agents of the example ask")),
    )


async def play_example(client: HubClient) -> None:
    """Have the example's question answered, and approve what it asks for."""
    message = {"id": "example-1", "role": "user", "parts": [{"type": "text", "text": QUESTION}]}
    await read_all(client.chat({"id": SESSION, "agent": "guide", "messages": [message]}))
    for approval in await client.approvals("pending", limit=10):
        if approval["sessionId"] == SESSION:
            await client.decide(approval["id"], approved=True)
    await read_all(client.resume(SESSION))


async def read_all(batches: EventBatches) -> None:
    """Follow an answer to its end."""
    async with aclosing(batches):
        async for _ in batches:
            pass
