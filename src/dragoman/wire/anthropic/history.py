"""History: UI messages as the messages of an Anthropic request.

Source: wire notes on providers, §6.6 and §10.1. `step-start` cuts an assistant message into blocks, and each
is one assistant message and one user message that begins with the results of all its calls. Signed thinking
and blocks that only Anthropic knows go back as they came. Neighbours of one role are merged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

import msgspec

from dragoman.errors import BadRequest
from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.wire.anthropic.blocks import RAW
from dragoman.wire.anthropic.models import FAMILY, cache_mark, own
from dragoman.wire.openai.history import result
from dragoman.wire.outputs import files_in

# ---- Files as the blocks of an Anthropic message: images and documents, by their data or by URL.
# Source: wire notes on providers, §6.2 and §10.1. What Anthropic cannot take is None; `refuse` says so.

_DATA_URL = re.compile(r"data:([^,;]*)[^,]*?(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_PDF_URL = re.compile(r"https?://[^/?#]*/[^?#]*\.pdf(?:[?#].*)?", re.DOTALL | re.IGNORECASE)
_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_PDF = "application/pdf"
_VAGUE = ("", "application/octet-stream", "image/*", "*/*")
_TEXT = re.compile(
    r"text/.*|application/(json|xml|ya?ml|x-ya?ml|toml|javascript|sql|x-sh)|.*\+(json|xml|yaml)"
)
_FILE_EXTRAS = ("title", "context", "citations", "transformations")


def write_file(part: FilePart) -> dict[str, Any] | None:
    """The block, with its cache mark; None when Anthropic takes no such file."""
    block = _block(part)
    if block is None:
        return None
    own = (part.provider_metadata or {}).get(FAMILY, {})
    extras = {name: own[name] for name in _FILE_EXTRAS if own.get(name) is not None}
    if part.filename and block["type"] == "document":
        extras.setdefault("title", part.filename)
    return {**block, **extras, **cache_mark(part.provider_metadata)}


def refuse(part: FilePart, field: str) -> BadRequest:
    """What to tell whoever sent a file that Anthropic does not take."""
    return BadRequest(
        f"{field}: Anthropic's models take no file of the type {part.media_type!r:.80}",
        field=field,
        hint="they take PNG, JPEG, GIF and WebP images, PDF by data or URL, and text by data",
    )


def _block(part: FilePart) -> dict[str, Any] | None:
    kind = part.media_type.partition(";")[0].strip().lower()
    data = _DATA_URL.fullmatch(part.url)
    if data is None:
        return _linked(kind, part.url)
    if kind in _VAGUE:
        kind = data[1].strip().lower()
    kind = "image/jpeg" if kind == "image/jpg" else kind
    packed, text = bool(data[2]), data[3]
    if kind in _IMAGES or kind == _PDF:
        source = {"type": "base64", "media_type": kind, "data": text if packed else _pack(text)}
        return {"type": "document" if kind == _PDF else "image", "source": source}
    if not _TEXT.fullmatch(kind):
        return None
    read = _read(text, packed=packed)
    if not read:
        return None
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": read}}


def _linked(kind: str, url: str) -> dict[str, Any] | None:
    if not url.startswith(("http://", "https://")):
        return None
    if kind in _VAGUE and kind != "image/*" and _PDF_URL.fullmatch(url):
        kind = _PDF
    source: Mapping[str, str] = {"type": "url", "url": url}
    if kind == _PDF:
        return {"type": "document", "source": source}
    return {"type": "image", "source": source} if kind.startswith("image/") else None


def _pack(text: str) -> str:
    return base64.b64encode(_unescape(text)).decode()


def _read(text: str, *, packed: bool) -> str | None:
    """The text in a data: URL; None when it is no text after all."""
    raw = _unescape(text)
    try:
        return (base64.b64decode(raw, validate=True) if packed else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _unescape(text: str) -> bytes:
    """What a data: URL holds where it is not packed: bytes, some of them as `%` and two digits."""
    return _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), text.encode())


_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")
_EXTRAS = {"caller": "caller", "toolset_name": "toolsetName"}


class History(msgspec.Struct, frozen=True):
    """What the model is told: the `system` blocks, the messages, and the places of what they leave out."""

    system: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    left_out: list[str]


def tool_name(name: str) -> str:
    """The name with an underscore for every character that the wire forbids, at most 128 long."""
    return _STRANGE.sub("_", name)[:128] or "unknown"


def write_history(history: Sequence[Message], *, instructions: str | None, provider: str | None) -> History:
    """The messages in order; BadRequest for a file that Anthropic does not take."""
    writer = _Writer(provider)
    if instructions and instructions.strip():
        writer.system.append({"type": "text", "text": instructions})
    for message in history:
        match message.role:
            case "system":
                writer.instruct(message)
            case "user":
                writer.say("user", [block for part in message.parts for block in _heard(part, message.id)])
            case "assistant":
                writer.answer(message)
            case _:
                assert_never(message.role)
    writer.trim()
    return History(writer.system, writer.messages, writer.left_out)


class _Writer:
    """The messages so far."""

    def __init__(self, provider: str | None) -> None:
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self._provider = provider
        self._ids: set[str] = set()

    def instruct(self, message: Message) -> None:
        """A system message: at the top, or else where it stands, marked, since moving it breaks caches."""
        blocks = [block for part in message.parts if isinstance(part, TextPart) for block in _text(part)]
        if not self.messages:
            self.system += blocks
            return
        for block in blocks:
            block["text"] = f"<system-reminder>\n{block['text']}\n</system-reminder>"
        self.say("user", blocks)

    def answer(self, message: Message) -> None:
        """An assistant message: what each model call said, and the results of its calls."""
        self.left_out += [f"{message.id}.file" for part in message.parts if isinstance(part, FilePart)]
        for parts in _steps(message.parts):
            said: list[dict[str, Any]] = []
            results: list[dict[str, Any]] = []
            for part in parts:
                if not isinstance(part, ToolPart) or part.provider_executed:
                    said += self._said(part)
                elif part.state != "input-streaming":  # else its arguments never came whole
                    call = self._call(part)
                    said.append(call)
                    results.append(_outcome(part, call))
            self.say("assistant", said)
            self.say("user", results)

    def say(self, role: str, blocks: list[dict[str, Any]]) -> None:
        """Add blocks to the last message, or a new one for another role."""
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def trim(self) -> None:
        """Take the white space off the end of an answer that is to be gone on with: it is refused."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return
        block = self.messages[-1]["content"][-1]
        if block["type"] == "text":
            block["text"] = block["text"].rstrip()

    def _call(self, part: ToolPart) -> dict[str, Any]:
        """A call that the model made."""
        kept = own(part.call_provider_metadata, self._provider)
        extras = {name: kept[word] for name, word in _EXTRAS.items() if kept.get(word) is not None}
        return {
            "type": "tool_use",
            "id": self._id(part.tool_call_id),
            "name": tool_name(part.name),
            "input": part.input if isinstance(part.input, Mapping) else {},
            **extras,
            **cache_mark(part.call_provider_metadata),
        }

    def _said(self, part: Part) -> list[dict[str, Any]]:
        """The blocks of any other part of an answer."""
        match part:
            case TextPart():
                cited = own(part.provider_metadata, self._provider).get("citations")
                return [{**block, **({"citations": cited} if cited else {})} for block in _text(part)]
            case ReasoningPart():
                return self._thought(part)
            case ToolPart():
                raw = [own(kept, self._provider).get("block") for kept in _both(part)]
                return [dict(block) for block in raw if isinstance(block, Mapping)]
            case DataPart(type=kind, data=data) if kind == RAW and isinstance(data, Mapping):
                return [dict(data)]
            case _:
                return []

    def _thought(self, part: ReasoningPart) -> list[dict[str, Any]]:
        """Thinking as it was signed; without a signature nobody would believe it."""
        kept = own(part.provider_metadata, self._provider)
        if kept.get("signature"):
            return [{"type": "thinking", "thinking": part.text, "signature": kept["signature"]}]
        if kept.get("redactedData"):
            return [{"type": "redacted_thinking", "data": kept["redactedData"]}]
        return []

    def _id(self, given: str) -> str:
        """The id if it may be sent and is the first of its like, else a stand-in, always the same."""
        id = given
        if not given or _STRANGE.search(given):
            id = f"toolu_{hashlib.sha256(given.encode(errors='replace')).hexdigest()[:24]}"
        count, first = 1, id
        while id in self._ids:
            count += 1
            id = f"{first}-{count}"
        self._ids.add(id)
        return id


def _steps(parts: Sequence[Part]) -> Iterator[list[Part]]:
    step: list[Part] = []
    for part in parts:
        if isinstance(part, StepStartPart):
            yield step
            step = []
        else:
            step.append(part)
    yield step


def _both(part: ToolPart) -> tuple[Any, Any]:
    return part.call_provider_metadata, part.result_provider_metadata


def _text(part: TextPart) -> list[dict[str, Any]]:
    """The text as a block; one of white space only is refused, so it is none."""
    if not part.text.strip():
        return []
    return [{"type": "text", "text": part.text, **cache_mark(part.provider_metadata)}]


def _heard(part: Part, field: str) -> list[dict[str, Any]]:
    """What a user says or attaches."""
    if isinstance(part, TextPart):
        return _text(part)
    if not isinstance(part, FilePart):
        return []
    block = write_file(part)
    if block is None:
        raise refuse(part, field)
    return [block]


def _outcome(part: ToolPart, call: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a call; there is always one."""
    pieces = files_in(part)
    content: Any = result(part) if pieces is None else [block for piece in pieces for block in _given(piece)]
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call["id"]}
    if content:
        block["content"] = content
    if part.state != "output-available":
        block["is_error"] = True
    if "toolset_name" in call:
        block["toolset_name"] = call["toolset_name"]
    return block | cache_mark(part.result_provider_metadata)


def _given(piece: TextPart | FilePart) -> list[dict[str, Any]]:
    """A text or file that a tool gave; of a file that Anthropic does not take, that it was there."""
    if isinstance(piece, TextPart):
        return _text(piece)
    place = "" if piece.url.startswith("data:") else f" at {piece.url}"
    note = {"type": "text", "text": f"[a file of the type {piece.media_type}{place}]"}
    return [write_file(piece) or note]
