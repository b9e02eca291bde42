"""LangGraph as its documents show it: LangChain's `create_agent`, `ainvoke`, `astream` of messages."""

import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI

from benchmarks.libraries.task import ANSWER, INPUT, PIECES, QUESTION, Ran, shaped

IDS = count()


class Scripted(BaseChatModel):
    """A model that calls the tool, then answers."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Its script knows the tool already."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            reply = AIMessage(ANSWER)
        else:
            call = {"name": "add", "args": INPUT, "id": f"call_{next(IDS)}", "type": "tool_call"}
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)

    async def _astream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        if isinstance(messages[-1], ToolMessage):
            for piece in PIECES:
                yield ChatGenerationChunk(message=AIMessageChunk(piece))
            return
        call = {"name": "add", "args": json.dumps(INPUT), "id": f"call_{next(IDS)}", "index": 0}
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[call]))


def scripted() -> BaseChatModel:
    """A model that calls the tool, then answers."""
    return Scripted()


def remote(url: str, name: str) -> BaseChatModel:
    """A model behind OpenAI's chat.completions."""
    return ChatOpenAI(model=name, base_url=url, api_key="benchmark", use_responses_api=False)


def tool(ran: Ran) -> Any:
    """The tool, made anew."""
    return langchain_tool(shaped(ran))


def agent(model: BaseChatModel, tool: Any, instructions: str) -> Any:
    """An agent with one tool."""
    return create_agent(model, [tool], system_prompt=instructions)


def question() -> dict[str, Any]:
    """What the graph is given."""
    return {"messages": [{"role": "user", "content": QUESTION}]}


async def run(agent: Any) -> str:
    """The answer as a whole."""
    return (await agent.ainvoke(question()))["messages"][-1].content


async def stream(agent: Any) -> str:
    """The answer, gathered as it comes."""
    text = ""
    async for message, _ in agent.astream(question(), stream_mode="messages"):
        if isinstance(message, AIMessageChunk):
            text += message.content
    return text
