"""No library: the loop by hand, with the `openai` package that all but one of the others ask through."""

import json
from typing import Any

from openai import AsyncOpenAI

from benchmarks.libraries.task import DESCRIPTION, QUESTION, Ran

INTEGER = {"type": "integer"}
SCHEMA = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
SHOWN = {"type": "function", "function": {"name": "add", "description": DESCRIPTION, "parameters": SCHEMA}}


def remote(url: str, name: str) -> Any:
    """A model behind OpenAI's chat.completions."""
    return AsyncOpenAI(base_url=url, api_key="benchmark"), name


def tool(ran: Ran) -> Any:
    """The tool is a function."""
    return ran.add


def agent(model: Any, tool: Any, instructions: str) -> Any:
    """All that a turn needs."""
    return model, tool, instructions


async def run(agent: Any) -> str:
    """The answer as a whole."""
    (client, name), add, instructions = agent
    messages = begin(instructions)
    while True:
        answer = await client.chat.completions.create(model=name, messages=messages, tools=[SHOWN])
        reply = answer.choices[0].message
        if not reply.tool_calls:
            return reply.content
        messages.append(reply.model_dump(exclude_none=True))
        for call in reply.tool_calls:
            messages.append(result(call.id, add(**json.loads(call.function.arguments))))


async def stream(agent: Any) -> str:
    """The answer, gathered as it comes."""
    (client, name), add, instructions = agent
    messages = begin(instructions)
    while True:
        text, id, arguments = "", "", ""
        stream = client.chat.completions.create(model=name, messages=messages, tools=[SHOWN], stream=True)
        async for chunk in await stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    id = call.id or id
                    arguments += call.function.arguments or ""
        if not id:
            return text
        function = {"name": "add", "arguments": arguments}
        called = {"id": id, "type": "function", "function": function}
        messages.append({"role": "assistant", "tool_calls": [called]})
        messages.append(result(id, add(**json.loads(arguments))))


def begin(instructions: str) -> list[dict[str, Any]]:
    """The conversation as it begins."""
    return [{"role": "system", "content": instructions}, {"role": "user", "content": QUESTION}]


def result(id: str, value: Any) -> dict[str, Any]:
    """What the tool gave, as a message."""
    return {"role": "tool", "tool_call_id": id, "content": str(value)}
