"""The OpenAI Agents SDK as its documents show it: `Runner.run`, `run_streamed`, tracing off, own models."""

import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from benchmarks.libraries.task import ANSWER, INPUT, PIECES, QUESTION, Ran, shaped

set_tracing_disabled(True)  # it would be sent to OpenAI


class Scripted(Model):
    """A model that calls the tool, then answers."""

    def __init__(self) -> None:
        self._ids = count()

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        """A step of the script as a whole."""
        return ModelResponse(output=[self._item(input)], usage=Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, *_: Any, **__: Any
    ) -> AsyncIterator[Any]:
        """The same in pieces."""
        item = self._item(input)
        number = 0
        if isinstance(item, ResponseOutputMessage):
            for number, piece in enumerate(PIECES):
                yield ResponseTextDeltaEvent(
                    content_index=0, delta=piece, item_id=item.id, logprobs=[], output_index=0,
                    sequence_number=number, type="response.output_text.delta",
                )  # fmt: skip
        response = Response(
            id="resp", created_at=0, model="scripted", object="response", output=[item], tool_choice="auto",
            tools=[], parallel_tool_calls=True,
        )  # fmt: skip
        yield ResponseCompletedEvent(response=response, sequence_number=number + 1, type="response.completed")

    def _item(self, input: Any) -> Any:
        if isinstance(input[-1], dict) and input[-1].get("type") == "function_call_output":
            text = ResponseOutputText(annotations=[], text=ANSWER, type="output_text", logprobs=[])
            return ResponseOutputMessage(
                id="msg", content=[text], role="assistant", status="completed", type="message"
            )
        return ResponseFunctionToolCall(
            arguments=json.dumps(INPUT), call_id=f"call_{next(self._ids)}", name="add", type="function_call"
        )


def scripted() -> Model:
    """A model that calls the tool, then answers."""
    return Scripted()


def remote(url: str, name: str) -> Model:
    """A model behind OpenAI's chat.completions."""
    client = AsyncOpenAI(base_url=url, api_key="benchmark")
    return OpenAIChatCompletionsModel(model=name, openai_client=client)


def tool(ran: Ran) -> Any:
    """The tool, made anew."""
    return function_tool(shaped(ran))


def agent(model: Model, tool: Any, instructions: str) -> Any:
    """An agent with one tool."""
    return Agent(name="agent", instructions=instructions, model=model, tools=[tool])


async def run(agent: Any) -> str:
    """The answer as a whole."""
    return (await Runner.run(agent, QUESTION)).final_output


async def stream(agent: Any) -> str:
    """The answer, gathered as it comes."""
    text = ""
    async for event in Runner.run_streamed(agent, QUESTION).stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            text += event.data.delta
    return text
