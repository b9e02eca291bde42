"""Dragoman as its documents show it: `Agent`, `spawn`, and the provider that plays a script."""

from typing import Any

from benchmarks.libraries.task import INPUT, PIECES, QUESTION, Ran
from dragoman import Agent, Model, OpenAIProvider, operation
from dragoman.events import StartStep, TextDelta
from dragoman.providers.scripted import Script, ScriptedCall, ScriptedProvider, Step

STREAMS_ALWAYS = True


class Forgetful(ScriptedProvider):
    """Plays the script for ever, and does not keep what it was asked."""

    def _next_step(self, request: Any) -> Step:
        self.requests.clear()
        return super()._next_step(request)


def scripted() -> Model:
    """A model that calls the tool, then answers."""
    steps = [Step(tools=[ScriptedCall("math_add", INPUT)]), Step(text=PIECES)]
    return Model(Forgetful(Script(steps, play="turns")), "script")


def remote(url: str, name: str) -> Model:
    """A model behind OpenAI's chat.completions."""
    return OpenAIProvider(base_url=url, api_key="benchmark").model(name)


def tool(ran: Ran) -> Any:
    """The tool, made anew."""

    @operation(namespace="math", effect="read")
    async def add(a: int, b: int) -> int:
        """Add two whole numbers."""
        return ran.add(a, b)

    return add


def agent(model: Model, tool: Any, instructions: str) -> Agent:
    """An agent with one tool."""
    return Agent(model, instructions=instructions, operations=[tool])


async def run(agent: Agent) -> str:
    """The answer as a whole."""
    return (await agent.spawn(QUESTION).result).text


async def stream(agent: Agent) -> str:
    """The answer, gathered as it comes."""
    text = ""
    async for event in agent.spawn(QUESTION).events():
        if isinstance(event, TextDelta):
            text += event.delta
        elif isinstance(event, StartStep):
            text = ""
    return text
