"""Images and files of users and tools as each provider family receives them."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from dragoman.agent.attachments import ContentPiece, file, image, tool_output, user_message
from dragoman.errors import BadRequest
from dragoman.messages import Message, StepStartPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic import request as anthropic_request
from dragoman.wire.ollama import request as ollama_request
from dragoman.wire.openai import request as openai_request

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
B64 = base64.b64encode(PNG).decode()
PDF = b"%PDF-1.7 ..."
PDF64 = base64.b64encode(PDF).decode()
URL = "https://a.example/b.png"


def sent(module: Any, *messages: Message) -> list[dict[str, Any]]:
    request = ModelRequest(model="claude-sonnet-4-5", messages=messages)
    written: list[dict[str, Any]] = msgspec.json.decode(module.encode_request(request))["messages"]
    return written


def drawn(output: Any) -> tuple[Message, Message]:
    call = ToolPart("tool-draw", "c1", "output-available", input={}, output=output)
    return user_message("Draw.", id="u"), Message("a", "assistant", (StepStartPart(), call))


def test_openai_takes_images_with_their_detail_by_data_and_by_address() -> None:
    (message,) = sent(openai_request, user_message("Look:", image(PNG, detail="low"), image(URL)))
    assert message == {
        "role": "user",
        "content": [
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{B64}", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": URL}},
        ],
    }


def test_anthropic_takes_images_by_data_and_by_address() -> None:
    (message,) = sent(anthropic_request, user_message("Look:", image(PNG, detail="low"), image(URL)))
    assert message["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}},
        {"type": "image", "source": {"type": "url", "url": URL}},
    ]


def test_ollama_takes_images_as_bare_base64_and_refuses_addresses() -> None:
    (message,) = sent(ollama_request, user_message("Look:", image(PNG, detail="low")))
    assert message == {"role": "user", "content": "Look:", "images": [B64]}
    with pytest.raises(BadRequest, match="does not fetch URLs"):
        sent(ollama_request, user_message("Look:", image(URL)))


def test_a_pdf_goes_as_each_family_takes_it() -> None:
    paper = file(PDF, filename="paper.pdf")
    data = f"data:application/pdf;base64,{PDF64}"
    (message,) = sent(openai_request, user_message("Read:", paper))
    assert message["content"][1] == {"type": "file", "file": {"filename": "paper.pdf", "file_data": data}}
    (message,) = sent(anthropic_request, user_message("Read:", paper))
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF64}
    assert message["content"][1] == {"type": "document", "source": source, "title": "paper.pdf"}
    (message,) = sent(anthropic_request, user_message("Read:", file("https://a.example/paper.pdf")))
    assert message["content"][1]["source"] == {"type": "url", "url": "https://a.example/paper.pdf"}
    with pytest.raises(BadRequest, match="accepts text and images"):
        sent(ollama_request, user_message("Read:", paper))


def test_a_text_file_is_read_by_all() -> None:
    notes = file(b"hello", filename="notes.txt")
    for module in (openai_request, ollama_request):
        (message,) = sent(module, user_message("Read:", notes))
        assert message["content"] == "Read:\nnotes.txt:\nhello"
    (message,) = sent(anthropic_request, user_message("Read:", notes))
    source = {"type": "text", "media_type": "text/plain", "data": "hello"}
    assert message["content"][1] == {"type": "document", "source": source, "title": "notes.txt"}


def test_images_of_a_tool_reach_each_family() -> None:
    messages = drawn(tool_output("Here:", image(PNG)))
    tool, files = sent(openai_request, *messages)[2:]
    assert tool["content"] == "Here:\n[file 1 in the user message after the results]"
    assert files["content"][1]["image_url"]["url"] == f"data:image/png;base64,{B64}"
    (result,) = sent(anthropic_request, *messages)[2]["content"]
    source = {"type": "base64", "media_type": "image/png", "data": B64}
    assert result["content"] == [{"type": "text", "text": "Here:"}, {"type": "image", "source": source}]
    tool = sent(ollama_request, *messages)[2]
    assert (tool["content"], tool["images"]) == ("Here:", [B64])


OTHERS: list[tuple[ContentPiece, str]] = [
    (image(URL), f"file (image/png): {URL}"),
    (file(PDF, filename="p.pdf"), "[a file of the type application/pdf, 12 bytes]"),
    (file(b"ID3\xff\0", filename="a.mp3"), "[a file of the type audio/mpeg, 5 bytes]"),
]


@pytest.mark.parametrize(("piece", "text"), OTHERS)
def test_what_ollama_cannot_take_from_a_tool_is_reported_and_the_conversation_goes_on(
    piece: ContentPiece, text: str
) -> None:
    tool = sent(ollama_request, *drawn(tool_output("Here:", piece)))[2]
    assert (tool["content"], "images" in tool) == (f"Here:\n{text}", False)


def test_what_an_mcp_server_embeds_reaches_the_model() -> None:
    paper = {"uri": "file:///papers/one.pdf", "mimeType": "application/pdf", "blob": PDF64}
    notes = {"uri": "file:///notes.txt", "mimeType": "text/plain", "text": "hello"}
    embedded = [{"type": "resource", "resource": resource} for resource in (paper, notes)]
    (result,) = sent(anthropic_request, *drawn({"content": embedded}))[2]["content"]
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF64}
    assert result["content"] == [
        {"type": "document", "source": source, "title": "one.pdf"},
        {"type": "text", "text": "file:///notes.txt:\nhello"},
    ]


@pytest.mark.parametrize("module", [openai_request, anthropic_request, ollama_request])
def test_an_image_of_a_tool_that_is_too_large_for_models_is_a_text(module: Any) -> None:
    huge = {"type": "image", "data": "A" * 6_666_672, "mimeType": "image/png"}
    for output in ({"content": [huge]}, {"chart": huge}, [{"success": True, "result": {"content": [huge]}}]):
        body = str(sent(module, *drawn(output)))
        assert "[a file of the type image/png, 5.0 MB] is too large for models" in body
        assert "AAAA" not in body


@pytest.mark.parametrize("media_type", ["image/bmp", "audio/flac", "application/octet-stream"])
def test_a_file_of_a_tool_that_openai_servers_refuse_is_a_text(media_type: str) -> None:
    block = {"type": "resource", "resource": {"uri": "a://b", "mimeType": media_type, "blob": "AAAA"}}
    tool = sent(openai_request, *drawn({"content": [block]}))[2]
    assert tool["content"] == f"[b of the type {media_type}, 3 bytes]"
