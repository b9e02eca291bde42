"""Pydantic AI as its documents show it: `Agent.run`, `run_stream_events`, and its FunctionModel."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta, ToolCallPart
from pydantic_ai import Tool as PydanticTool
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.libraries.task import ANSWER, INPUT, PIECES, QUESTION, Ran, shaped


def scripted() -> Model:
    """A model that calls the tool, then answers."""
    return FunctionModel(answer, stream_function=stream_answer)


async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """A step of the script as a whole."""
    if has_result(messages):
        return ModelResponse(parts=[TextPart(ANSWER)])
    return ModelResponse(parts=[ToolCallPart("add", INPUT)])


async def stream_answer(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
    """The same in pieces."""
    if has_result(messages):
        for piece in PIECES:
            yield piece
    else:
        yield {0: DeltaToolCall(name="add", json_args='{"a": 2,')}
        yield {0: DeltaToolCall(json_args=' "b": 2}')}


def has_result(messages: list[ModelMessage]) -> bool:
    """Whether the tool has answered."""
    return isinstance(messages[-1].parts[0], ToolReturnPart)


def remote(url: str, name: str) -> Model:
    """A model behind OpenAI's chat.completions."""
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key="benchmark"))


def tool(ran: Ran) -> Any:
    """The tool, made anew."""
    return PydanticTool(shaped(ran))


def agent(model: Model, tool: Any, instructions: str) -> Any:
    """An agent with one tool."""
    return Agent(model, instructions=instructions, tools=[tool])


async def run(agent: Any) -> str:
    """The answer as a whole."""
    return (await agent.run(QUESTION)).output


async def stream(agent: Any) -> str:
    """The answer, gathered as it comes."""
    text = ""
    async with agent.run_stream_events(QUESTION) as events:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                text = event.part.content
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                text += event.delta.content_delta
    return text
