"""Estimate token counts when no provider reports them.

A token is four characters of text, one Chinese, Japanese or Korean character, or three characters of JSON;
each message adds four tokens. Measured against real usage this is as good as a vocabulary for guard rails;
`factor` corrects families that count higher throughout (1.3 for Anthropic's). Source: wire notes on
providers, §11.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

import msgspec
from msgspec import UNSET

from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourceDocumentPart,
    SourceUrlPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.model_request import ModelRequest, Tool
from dragoman.wire.multimodal_outputs import read_multimodal_output

ANTHROPIC_FACTOR = 1.3  # Anthropic's tokens are shorter than those of other families
IMAGE_TOKENS = 1500.0  # for an image of unknown size
MAX_IMAGE_TOKENS = 1600.0  # larger images are scaled down
_MESSAGE_OVERHEAD = 4.0
_PIXELS_PER_TOKEN = 750
_BYTES_PER_TOKEN = 30  # in a document with pages
_CHARACTERS_PER_TOKEN = 4
_JSON_CHARACTERS_PER_TOKEN = 3
_SAMPLED_LENGTH = 65_536  # characters; of longer texts only samples are read
_SAMPLES = 64

_WIDE_CHARACTER = re.compile(
    r"[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff]"
)
_ANSWER_TEXT = re.compile(
    rb'"(?:content|text|thinking|reasoning|reasoning_content|refusal|arguments)"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)',
    re.DOTALL,
)
_SEARCHED_BYTES = 1_000_000  # of a longer document only the beginning is searched
_DATA_URL = re.compile(r"data:[^,]*,", re.IGNORECASE)
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def cut_answer_length(document: bytes) -> int:
    """Return about how many characters of an answer the beginning of its document has, in any family."""
    searched = document[:_SEARCHED_BYTES]
    length = sum(found.end(1) - found.start(1) for found in _ANSWER_TEXT.finditer(searched))
    return length if len(searched) == len(document) else length * len(document) // len(searched)


def estimate_input(request: ModelRequest, *, factor: float = 1.0) -> int:
    """Estimate the input tokens of the request; at least 1."""
    tokens = _text_tokens(request.instructions or "")
    tokens += estimate_messages(request.messages)
    tokens += sum(_tool_tokens(tool) for tool in request.tools)
    return max(1, round(tokens * factor))


def estimate_messages(messages: Iterable[Message]) -> float:
    """Estimate the tokens of the messages; 0 for none."""
    return sum(_message_tokens(message) for message in messages)


def estimate_text(text: str) -> int:
    """Estimate the tokens of the text; 0 for an empty one."""
    return -int(-_text_tokens(text) // 1)


def _text_tokens(text: str) -> float:
    if text.isascii():
        return len(text) / _CHARACTERS_PER_TOKEN
    wide = _count_wide(text)
    return wide + (len(text) - wide) / _CHARACTERS_PER_TOKEN


def _count_wide(text: str) -> float:
    """Return the wide characters of a text; of a long one as many as evenly spaced samples have."""
    if len(text) <= _SAMPLED_LENGTH:
        return len(_WIDE_CHARACTER.findall(text))
    size = _SAMPLED_LENGTH // _SAMPLES
    starts = range(0, len(text), len(text) // _SAMPLES)
    sample = "".join(text[start : start + size] for start in starts)
    return len(_WIDE_CHARACTER.findall(sample)) * len(text) / len(sample)


def _json_tokens(value: Any) -> float:
    """Like text, but denser: quotes and braces are tokens too."""
    raw = msgspec.json.encode(value, enc_hook=_to_serializable).decode()
    if raw.isascii():
        return len(raw) / _JSON_CHARACTERS_PER_TOKEN
    wide = _count_wide(raw)
    return wide + (len(raw) - wide) / _JSON_CHARACTERS_PER_TOKEN


def _to_serializable(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _message_tokens(message: Message) -> float:
    return _MESSAGE_OVERHEAD + sum(_part_tokens(part) for part in message.parts)


def _tool_tokens(tool: Tool) -> float:
    return _json_tokens(
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
    )


def _part_tokens(part: Part) -> float:
    match part:
        case TextPart(text=text):
            return _text_tokens(text)
        case ReasoningPart():
            return _text_tokens(part.text) or _json_tokens(part.provider_metadata)
        case FilePart():
            return _file_tokens(part)
        case ToolPart():
            return _call_tokens(part)
        case DataPart(data=data):
            return _json_tokens(data)
        case StepStartPart() | SourceUrlPart() | SourceDocumentPart():
            return 0.0
        case _:
            assert_never(part)


def _call_tokens(part: ToolPart) -> float:
    """Return the call, and its result as a message of its own."""
    tokens = _text_tokens(part.name) + (0.0 if part.input is UNSET else _json_tokens(part.input))
    if part.state == "output-error":
        return tokens + _MESSAGE_OVERHEAD + _text_tokens(part.error_text or "")
    if part.output is UNSET:
        return tokens
    output_parts = read_multimodal_output(part)
    if output_parts is not None:
        return tokens + _MESSAGE_OVERHEAD + sum(_part_tokens(output_part) for output_part in output_parts)
    return (
        tokens
        + _MESSAGE_OVERHEAD
        + (_text_tokens(part.output) if isinstance(part.output, str) else _json_tokens(part.output))
    )


def _file_tokens(part: FilePart) -> float:
    """By the size of the data if the URL contains it, otherwise as an image of unknown size."""
    head = _DATA_URL.match(part.url)
    if head is None:
        return IMAGE_TOKENS
    size = len(part.url) - head.end()
    is_base64 = head[0].lower().endswith(";base64,")
    if is_base64:
        size = size * 3 // 4
    if part.media_type.startswith("text/"):
        return size / _CHARACTERS_PER_TOKEN
    if part.media_type.startswith("image/"):
        return _image_tokens(part.url[head.end() : head.end() + 32]) if is_base64 else IMAGE_TOKENS
    return max(IMAGE_TOKENS, size / _BYTES_PER_TOKEN)


def _image_tokens(encoded_header: str) -> float:
    """By width and height from the header of a PNG."""
    try:
        raw = base64.b64decode(encoded_header, validate=True)
    except (binascii.Error, ValueError):
        return IMAGE_TOKENS
    if len(raw) < 24 or not raw.startswith(_PNG_SIGNATURE):
        return IMAGE_TOKENS
    width, height = int.from_bytes(raw[16:20]), int.from_bytes(raw[20:24])
    return min(MAX_IMAGE_TOKENS, width * height / _PIXELS_PER_TOKEN)
