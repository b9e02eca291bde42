"""Images, audio and files of operations reach MCP clients as content blocks, and models as files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import CallToolResult

from dragoman.mcp.server.results import tool_result
from dragoman.messages import FilePart, TextPart, ToolPart
from dragoman.operations.outcome import CallOutcome
from dragoman.wire.multimodal_outputs import read_multimodal_output
from tests.mcp.server.contents import PNG

PICTURE = {"type": "image", "data": PNG, "mimeType": "image/png"}
SOUND = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}
INLINE = {
    "type": "resource_link",
    "uri": "data:application/pdf;base64,JVBERg==",
    "mimeType": "application/pdf",
}
LINK = {"type": "resource_link", "uri": "https://example.com/a.png", "mimeType": "image/png"}
EMBEDDED = {
    "type": "resource",
    "resource": {"uri": "a://b", "mimeType": "application/pdf", "blob": "JVBERg=="},
}
PDF = {"mimeType": "application/pdf", "blob": "JVBERg=="}
BLOCKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "image": (PICTURE, PICTURE),
    "audio": (SOUND, SOUND),
    "inline file": (INLINE, {"type": "resource", "resource": {"uri": "attachment:1", **PDF}}),
    "link": (LINK, {"name": "file 1", **LINK}),
    "resource": (EMBEDDED, EMBEDDED),
}
TEXT = {"type": "text", "text": "The chart:"}


def batch(result: Any) -> list[dict[str, Any]]:
    return [
        {"success": True, "result": 7},
        {"success": True, "result": result},
        {"success": False, "error": {}},
    ]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("operation", ["chart.draw", "hub.call"])
def test_a_file_of_a_result_is_a_content_block_and_its_bytes_are_sent_once(name: str, operation: str) -> None:
    block, expected = BLOCKS[name]
    value: Any = {"content": [TEXT, block]}
    if operation == "hub.call":
        value = batch(value)
    result = tool_result(CallOutcome(call_id="c", operation=operation, ok=True, result=value))
    text, *files = result["content"]
    assert files == [expected]
    assert json.dumps(result).count(json.dumps(block.get("data") or expected).strip("{}")) == 1
    shown = json.loads(text["text"])
    content = shown["content"] if operation == "chart.draw" else shown[1]["result"]["content"]
    media_type = "application/pdf" if "resource" in expected else block["mimeType"]
    assert content == [TEXT, {"type": block["type"], "mimeType": media_type, "attached": 1}]
    assert CallToolResult.model_validate(result).content[1].type == expected["type"]


@pytest.mark.parametrize("value", [7, "text", None, [], [1], {"content": "x"}, {"content": [TEXT, 7]}])
def test_a_result_without_files_is_text_and_structured_content_as_it_is(value: Any) -> None:
    result = tool_result(CallOutcome(call_id="c", operation="a.b", ok=True, result=value))
    assert len(result["content"]) == 1
    assert result["structuredContent"] in (value, {"result": value})


def test_the_images_of_a_batch_reach_the_model_as_images() -> None:
    output = batch({"content": [TEXT, PICTURE, SOUND]})
    part = ToolPart(type="tool-hub_call", tool_call_id="t", state="output-available", input={}, output=output)
    text, *files = read_multimodal_output(part) or ()
    assert files == [
        FilePart("image/png", f"data:image/png;base64,{PNG}"),
        FilePart("audio/wav", "data:audio/wav;base64,UklGRg=="),
    ]
    assert isinstance(text, TextPart)
    assert PNG not in text.text
    assert [entry["success"] for entry in json.loads(text.text)] == [True, True, False]
    plain = ToolPart(
        type="tool-hub_call", tool_call_id="t", state="output-available", input={}, output=batch("text")
    )
    assert read_multimodal_output(plain) is None
