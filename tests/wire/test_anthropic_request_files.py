"""Files in Anthropic requests: images and documents, and types that Anthropic does not accept."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, TextPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.request import check_request, encode_request

from .anthropic_requests import HI, MARK, MARKED, PNG, assistant, history, user, words


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            FilePart("image/png", "https://example.org/a"),
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a"}},
        ),
        (
            FilePart("image/jpg", "data:image/jpg;base64,AA=="),
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AA=="}},
        ),
        (
            FilePart("image/*", "data:image/gif,GIF%38"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lGOA=="}},
        ),
        (
            FilePart("application/pdf", "data:application/pdf;base64,JVBERg==", "a.pdf", MARKED),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                "title": "a.pdf",
                "cache_control": MARK,
            },
        ),
        (
            FilePart("application/octet-stream", "https://example.org/b.PDF?x=1"),
            {"type": "document", "source": {"type": "url", "url": "https://example.org/b.PDF?x=1"}},
        ),
        (
            FilePart(
                "text/markdown; charset=utf-8",
                f"data:text/markdown;charset=utf-8;base64,{base64.b64encode('# Ä'.encode()).decode()}",
                provider_metadata={"anthropic": {"title": "T", "citations": {"enabled": True}}},
            ),
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "# Ä"},
                "title": "T",
                "citations": {"enabled": True},
            },
        ),
    ],
)
def test_files_become_images_and_documents(part: FilePart, block: dict[str, Any]) -> None:
    assert history(user(part)) == [{"role": "user", "content": [block]}]


@pytest.mark.parametrize(
    "part",
    [
        FilePart("audio/wav", "data:audio/wav;base64,AA=="),
        FilePart("image/svg+xml", "data:image/svg+xml;base64,/w=="),
        FilePart("image/bmp", "data:image/bmp;base64,AA=="),
        FilePart("text/plain", "https://example.org/a.txt"),
        FilePart("application/zip", "data:application/zip;base64,AA=="),
        FilePart("image/png", "file:///etc/passwd"),
    ],
)
def test_an_unsupported_file_is_rejected_with_its_message_id(part: FilePart) -> None:
    request = ModelRequest(model="m", messages=[HI, user(part, id="messages[1]")])
    for refuse in (encode_request, check_request):
        with pytest.raises(BadRequest, match=r"do not accept files of type") as refused:
            refuse(request)
        assert refused.value.field == "messages[1]"


def test_a_file_of_an_assistant_message_is_dropped_and_reported() -> None:
    made = assistant(TextPart("Here."), FilePart("image/png", PNG))
    assert history(HI, made)[1]["content"] == [words("Here.")]
    assert check_request(ModelRequest(model="m", messages=[HI, made])) == ["a.file"]
