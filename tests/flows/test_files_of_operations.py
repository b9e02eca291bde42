"""Images, sounds and PDFs that operations return as bytes reach models and MCP clients as such, once."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.client import Client
from mcp_types import CallToolResult

from dragoman import ModelRequest
from dragoman.agent.tools.run_mcp_server import tool_result
from dragoman.messages import Message, StepStartPart, TextPart, ToolPart
from dragoman.operations.outcome import CallOutcome, to_jsonable
from dragoman.wire.claude_code.request import write_prompt
from dragoman.wire.constrained.messages import constrained_lines, plain_lines
from tests.flows.drawing_operations import PDF, PNG, WAV
from tests.gateway.metered_hub import Desk, Site, desk, refusal, tokens
from tests.providers.servers import ok
from tests.wire import anthropic_streams, ollama_streams, openai_streams

OPERATIONS = str(Path(__file__).parent / "drawing_operations.py")
PINNED = [f"art.{name}" for name in ("draw", "report", "large", "sound", "paper")]
PNG64, WAV64, PDF64 = (base64.b64encode(data).decode() for data in (PNG, WAV, PDF))
CALLS: dict[str, tuple[str, dict[str, Any], int]] = {  # how the model calls, and how many images come of it
    "directly": ("art_draw", {}, 1),
    "directly, within a result": ("art_report", {}, 1),
    "directly, with a large result": ("art_large", {}, 1),
    "through hub_call": ("hub_call", {"calls": [{"tool": "art.draw"}]}, 1),
    "in a batch": (
        "hub_call",
        {"calls": [{"tool": "art.draw"}, {"tool": "art.none"}, {"tool": "art.report"}, {"tool": "art.draw"}]},
        3,
    ),
}
FAMILIES = ("openai", "anthropic", "ollama")


def calling(family: str, name: str, input: dict[str, Any]) -> bytes:
    """A model's answer with one call."""
    arguments = msgspec.json.encode(input).decode()
    match family:
        case "openai":
            function = {"name": name, "arguments": arguments}
            call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            chunks = openai_streams.chunk({"tool_calls": [call]}), openai_streams.chunk(finish="tool_calls")
            return ok(openai_streams.sse(*chunks))
        case "anthropic":
            events = anthropic_streams.call(0, "call_1", name, arguments)
            start, stop = anthropic_streams.start(), anthropic_streams.stop("tool_use")
            return ok(anthropic_streams.sse(start, *events, stop, anthropic_streams.STOP))
        case _:
            call = ollama_streams.call(name, input, "call_1")
            lines = ollama_streams.line(tool_calls=[call]), ollama_streams.last()
            return ok(ollama_streams.ndjson(*lines), "content-type: application/x-ndjson")


def saying(family: str) -> bytes:
    """A model's last answer."""
    match family:
        case "openai":
            return tokens("Done.")
        case "anthropic":
            return ok(anthropic_streams.STREAMS["text"])
        case _:
            return ok(ollama_streams.STREAMS["text"], "content-type: application/x-ndjson")


def images_in(family: str, body: dict[str, Any]) -> list[Any]:
    """The images in the last two messages of a request, in the family's form."""
    last = body["messages"][-2:]
    match family:
        case "openai":
            parts = last[-1]["content"] if last[-1]["role"] == "user" else []
            return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        case "anthropic":
            blocks = last[-1]["content"][0]["content"]
            return [block["source"] for block in blocks if block["type"] == "image"]
        case _:
            return list(last[-1].get("images", []))


IMAGES: dict[str, Any] = {
    "openai": f"data:image/png;base64,{PNG64}",
    "anthropic": {"type": "base64", "media_type": "image/png", "data": PNG64},
    "ollama": PNG64,
}


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Desk]:
    """A hub with a model of each family."""
    config: dict[str, Any] = {family: Site(type=family) for family in FAMILIES}
    config |= {"operations": [OPERATIONS], "pinned": PINNED, "mcp": {"pinned": PINNED}}
    async with desk(tmp_path, model="openai/m", **config) as made:
        yield made


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_image_reaches_the_model_once_as_an_image(at: Desk, family: str) -> None:
    site = at.sites[family]
    for way, (name, input, count) in CALLS.items():
        site.replies(calling(family, name, input), saying(family))
        await at.run("Draw.", session=way, model=f"{family}/m")
        body = site.bodies[-1]
        assert images_in(family, body) == [IMAGES[family]] * count, way
        assert msgspec.json.encode(body).decode().count(PNG64) == count, way


@pytest.mark.parametrize("family", FAMILIES)
async def test_sounds_and_documents_reach_the_model_as_the_family_reads_them(at: Desk, family: str) -> None:
    site, texts = at.sites[family], []
    for name in ("art_sound", "art_paper"):
        site.replies(calling(family, name, {}), saying(family))
        await at.run("Go.", session=name, model=f"{family}/m")
        texts.append(msgspec.json.encode(site.bodies[-1]["messages"][2:]).decode())
    heard, read = texts
    assert (WAV64 in heard) == (family == "openai")
    assert (PDF64 in read) == (family != "ollama")
    if family != "openai":
        assert "[a file of the type audio/wav, 44 bytes]" in heard
    if family == "ollama":
        assert "[a file of the type application/pdf, 329 bytes]" in read


REFUSALS = {
    "openai": (400, "Failed to deserialize: unknown variant `image_url`, expected `text`"),
    "anthropic": (400, "messages.2.content.0: this model does not support image input"),
    "ollama": (500, "this model is missing data required for image input"),
}


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_model_that_reads_no_images_gets_a_text_about_them(at: Desk, family: str) -> None:
    site, (status, reason) = at.sites[family], REFUSALS[family]
    for session in ("first", "second"):
        refused = [refusal(status, reason)] if session == "first" else []
        site.replies(calling(family, "art_report", {}), *refused, saying(family))
        frames = await at.run("Draw.", session=session, model=f"{family}/m")
        assert frames[-1]["type"] == "finish"
        assert "error" not in [frame["type"] for frame in frames]
        text = msgspec.json.encode(site.bodies[-1]).decode()
        assert "[a file of the type image/png, 70 bytes]" in text
        assert PNG64 not in text
    assert len(site.requests) == 5  # the model is not asked to read images again


async def test_an_mcp_client_gets_an_image_block_and_no_base64_beside_it(at: Desk) -> None:
    async with Client(f"{at.http.base_url}/mcp") as client:
        for name, input, count in CALLS.values():
            result = await client.call_tool(name, input)
            images = [block for block in result.content if block.type == "image"]
            assert [(block.data, block.mime_type) for block in images] == [(PNG64, "image/png")] * count
            assert result.model_dump_json().count(PNG64) == count
        result = await client.call_tool("art_sound", {})
        assert [block.type for block in result.content] == ["text", "audio"]
        result = await client.call_tool("art_paper", {})
        assert [block.type for block in result.content] == ["text", "resource"]


def test_claude_code_gets_an_image_block_and_no_base64_in_transcripts() -> None:
    for value in (PNG, {"title": "Sales", "chart": PNG}):
        output = to_jsonable(value)
        result = tool_result(CallOutcome(call_id="c", operation="art.draw", ok=True, result=output))
        assert [block.type for block in CallToolResult.model_validate(result).content][-1] == "image"
        assert msgspec.json.encode(result).decode().count(PNG64) == 1
        line = write_prompt(ModelRequest(model="m", messages=conversation(output)), provider="cc").input_line
        assert b"[a file of the type image/png, 70 bytes]" in line
        assert PNG64.encode() not in line


@pytest.mark.parametrize("lines", [constrained_lines, plain_lines])
def test_a_model_without_calls_of_its_own_gets_a_text_about_an_image(lines: Any) -> None:
    for value in (PNG, {"title": "Sales", "chart": PNG}):
        text = str(list(lines(conversation(to_jsonable(value))[:2])))
        assert "[a file of the type image/png, 70 bytes]" in text
        assert PNG64 not in text


def conversation(output: Any) -> list[Message]:
    """A call of a tool, and another question."""
    call = ToolPart("tool-art_draw", "c1", "output-available", input={}, output=output)
    return [
        Message("u", "user", (TextPart("Draw."),)),
        Message("a", "assistant", (StepStartPart(), call, StepStartPart(), TextPart("Here."))),
        Message("v", "user", (TextPart("And now?"),)),
    ]
