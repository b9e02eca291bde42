"""Agno as its documents show it: `Agent.arun`, with and without `stream`, telemetry off, an own model."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.openai import OpenAILike
from agno.models.response import ModelResponse
from agno.run.agent import RunContentEvent
from agno.tools.function import Function

from benchmarks.libraries.task import ANSWER, INPUT, PIECES, QUESTION, Ran, shaped

IDS = count()


@dataclass
class Scripted(Model):
    """A model that calls the tool, then answers."""

    id: str = "scripted"

    async def ainvoke(self, *_: Any, messages: Any, **__: Any) -> ModelResponse:
        """A step of the script as a whole."""
        if messages[-1].role == "tool":
            return ModelResponse(role="assistant", content=ANSWER)
        return ModelResponse(role="assistant", tool_calls=[call()])

    async def ainvoke_stream(self, *_: Any, messages: Any, **__: Any) -> AsyncIterator[ModelResponse]:
        """The same in pieces."""
        if messages[-1].role == "tool":
            for piece in PIECES:
                yield ModelResponse(content=piece)
        else:
            yield ModelResponse(tool_calls=[call()])

    def invoke(self, *_: Any, **__: Any) -> Any:
        """It is asked asynchronously only."""
        raise NotImplementedError

    invoke_stream = _parse_provider_response = _parse_provider_response_delta = invoke


def call() -> dict[str, Any]:
    """The call of the tool, as OpenAI spells it."""
    function = {"name": "add", "arguments": json.dumps(INPUT)}
    return {"id": f"call_{next(IDS)}", "type": "function", "function": function}


def scripted() -> Model:
    """A model that calls the tool, then answers."""
    return Scripted()


def remote(url: str, name: str) -> Model:
    """A model behind OpenAI's chat.completions."""
    return OpenAILike(id=name, base_url=url, api_key="benchmark")


def tool(ran: Ran) -> Any:
    """The tool, made anew."""
    return Function.from_callable(shaped(ran))


def agent(model: Model, tool: Any, instructions: str) -> Any:
    """An agent with one tool."""
    return Agent(model=model, instructions=instructions, tools=[tool], telemetry=False)


async def run(agent: Any) -> str:
    """The answer as a whole."""
    return (await agent.arun(QUESTION)).content


async def stream(agent: Any) -> str:
    """The answer, gathered as it comes."""
    text = ""
    async for event in agent.arun(QUESTION, stream=True):
        if isinstance(event, RunContentEvent) and isinstance(event.content, str):
            text += event.content
    return text
