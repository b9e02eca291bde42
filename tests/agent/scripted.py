"""A scripted model, operations and prices for the agent tests."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman import Context, operation
from dragoman.accounts.price_lookup import PriceOverride
from dragoman.agent.agent import Agent
from dragoman.agent.run import Run
from dragoman.errors import CallError
from dragoman.events import Usage
from dragoman.providers.model import Model
from dragoman.providers.scripted import Script, ScriptedCall, ScriptedProvider, Step

PRICES = {"scripted/*": PriceOverride(input=1.0, output=10.0, cache_read=0.1, cache_write=2.0)}
ASK = [{"role": "user", "content": "What is 2 + 2?"}]
CALL = ScriptedCall("math_add", {"a": 2, "b": 2}, id="c1")
USED = Usage(input_tokens=100, output_tokens=10, total_tokens=110)


@operation(namespace="math", effect="read")
async def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@operation(namespace="lab", effect="read")
async def fail(why: str = "no") -> str:
    """Fail."""
    raise CallError(f"it failed: {why}")


@operation(namespace="lab", effect="read")
async def wait(context: Context) -> None:
    """Wait until it is stopped."""
    context.progress("waiting")
    await asyncio.Event().wait()


@operation(namespace="mail", effect="once", approval=True)
async def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


def scripted(*steps: Step | str, turns: bool = False, name: str = "scripted") -> Model:
    """A model that says these things."""
    script = [Step(text=step) if isinstance(step, str) else step for step in steps]
    return Model(ScriptedProvider(Script(script, play="turns" if turns else "once"), name=name), "any")


def calling(*calls: ScriptedCall, text: str = "", usage: Usage | None = None) -> Step:
    """A step that makes these calls, or adds two and two."""
    return Step(text=text, tools=list(calls or (CALL,)), usage=usage)


def provider(agent: Agent) -> ScriptedProvider:
    """The scripted provider of an agent."""
    found = agent.model.provider
    assert isinstance(found, ScriptedProvider)
    return found


async def types(run: Run) -> list[str]:
    """The words of all events."""
    return [event.type async for event in run.events()]


async def until(run: Run, word: str) -> Any:
    """The first event of this kind."""
    async for event in run.events():
        if event.type == word:
            return event
    raise AssertionError(f"no {word} came")
