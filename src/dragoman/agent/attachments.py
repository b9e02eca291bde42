"""Attachments: images and files as parts of a message or a tool result, checked before they are sent.

Nothing is fetched: a URL goes to the provider as it is; a provider that does not accept URLs refuses it.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dragoman.errors import BadRequest, TooLarge
from dragoman.ids import new_id
from dragoman.messages import FilePart, Message, ProviderMetadata, TextPart
from dragoman.wire.files import MAX_IMAGE_BYTES, detect_media_type
from dragoman.wire.multimodal_outputs import write_multimodal_output
from dragoman.wire.source_tracker import media_type_from_url as media_type_of

Detail: TypeAlias = Literal["auto", "low", "high"]
AttachmentSource: TypeAlias = str | Path | bytes
ContentPiece: TypeAlias = str | TextPart | FilePart

MAX_FILE_BYTES = 20_000_000
PDF = "application/pdf"
TEXT_PLAIN = "text/plain"
OCTET_STREAM = "application/octet-stream"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DETAILS = ("auto", "low", "high")
_HTTP_URL = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)
_OTHER_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?!\\)")
_PDF_URL = re.compile(r"[^?#]*\.pdf(?:[?#].*)?", re.IGNORECASE)
_TEXT_TYPE = re.compile(r"text/|application/(json|xml|yaml|toml)|.*\+(json|xml)")
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[^,]*)?;base64,(.*)", re.DOTALL | re.IGNORECASE)


def image(
    source: AttachmentSource,
    *,
    detail: Detail = "auto",
    media_type: str | None = None,
    largest: int = MAX_IMAGE_BYTES,
) -> FilePart:
    """Return an image for a message: by http(s) URL, path, bytes, or base64 in a data: URL.

    PNG, JPEG, GIF and WebP, which all providers accept. `detail` is the resolution that OpenAI uses.
    `media_type` must match the bytes. Raises BadRequest for an unsupported or unreadable image, TooLarge
    above `largest` bytes.
    """
    if detail not in _DETAILS:
        raise BadRequest(f"detail must be auto, low or high, not {detail!r:.40}", field="detail")
    metadata: ProviderMetadata | None = {"openai": {"imageDetail": detail}} if detail != "auto" else None
    if isinstance(source, str) and _HTTP_URL.fullmatch(source):
        kind = media_type or media_type_of(source)
        if not kind.startswith("image/") or _PDF_URL.fullmatch(source):
            raise BadRequest(f"{source!r:.200} is not an image", field="media_type", hint=_FILE_HINT)
        return FilePart(kind, source, provider_metadata=metadata)
    claimed_type, data, name = _load_source(source, largest=largest)
    actual = detect_media_type(data)
    if actual not in IMAGE_TYPES:
        hint = _FILE_HINT if actual == PDF else "use PNG, JPEG, GIF or WebP"
        raise BadRequest(
            f"{_source_label(source)} is not an image that models accept", field="source", hint=hint
        )
    claimed = (media_type or claimed_type or actual).lower().replace("image/jpg", "image/jpeg")
    if claimed != actual:
        raise BadRequest(f"{_source_label(source)} is {actual}, not {claimed}", field="media_type")
    return FilePart(actual, _data_url(actual, data), name, provider_metadata=metadata)


def file(
    source: AttachmentSource,
    *,
    media_type: str | None = None,
    filename: str | None = None,
    largest: int = MAX_FILE_BYTES,
) -> FilePart:
    """Return a file for a message: PDF, text or other, by http(s) URL, path, bytes, or base64 in a data: URL.

    A provider that cannot read the type refuses the request. Raises BadRequest for an unreadable file or one
    that does not match its type; TooLarge above `largest` bytes.
    """
    if isinstance(source, str) and _HTTP_URL.fullmatch(source):
        name = filename or source.partition("?")[0].rpartition("/")[2]
        return FilePart(media_type or _type_by_name(name) or OCTET_STREAM, source, name or None)
    claimed_type, data, source_name = _load_source(source, largest=largest)
    name = filename or source_name or ""
    actual, claimed = detect_media_type(data), media_type or claimed_type
    if PDF in (claimed, _type_by_name(name)) and actual != PDF:
        raise BadRequest(f"{_source_label(source)} is not a PDF", field="media_type")
    kind = actual or claimed or _guess_type(name, data)
    if kind is None:
        raise BadRequest(
            f"the type of {_source_label(source)} is unknown",
            field="media_type",
            hint="pass its media_type",
        )
    if kind.startswith("text/") and not _is_text(data):
        raise BadRequest(f"{_source_label(source)} is not UTF-8 text", field="source")
    return FilePart(kind, _data_url(kind, data), name or None)


def user_message(*pieces: ContentPiece, id: str | None = None) -> Message:
    """Return a user message of texts, images and files: `user_message("What is this?", image("cat.png"))`."""
    return Message(id or new_id("msg"), "user", tuple(_part(piece) for piece in pieces))


def tool_output(*pieces: ContentPiece) -> dict[str, Any]:
    """Return a tool result of texts, images and files, for an operation to return."""
    parts: Sequence[TextPart | FilePart] = [_part(piece) for piece in pieces]
    return write_multimodal_output(parts)


_FILE_HINT = "attach it with file()"


def _part(piece: ContentPiece) -> TextPart | FilePart:
    return TextPart(piece) if isinstance(piece, str) else piece


def _load_source(source: AttachmentSource, *, largest: int) -> tuple[str | None, bytes, str | None]:
    """Return the type in a data: URL, the bytes, and the name of a path."""
    if isinstance(source, bytes):
        return None, _check_size(source, source, largest=largest), None
    if isinstance(source, str) and source[:5].lower() == "data:":
        return _decode_data_url(source, largest=largest)
    if isinstance(source, str) and _OTHER_SCHEME.match(source):
        raise BadRequest(
            f"{_source_label(source)} is neither an http(s) URL, a data: URL nor a path",
            field="source",
            hint="other URLs are not supported; pass a path or the bytes",
        )
    return None, _read_file(Path(source), largest=largest), Path(source).name


def _decode_data_url(url: str, *, largest: int) -> tuple[str, bytes, None]:
    match = _DATA_URL.fullmatch(url)
    if match is None:
        raise BadRequest("a data: URL must be data:<type>;base64,<data>", field="source")
    if len(match[2]) > largest * 4 // 3 + 4:
        raise _too_large(url, len(match[2]) * 3 // 4, largest=largest)
    try:
        data = base64.b64decode(match[2], validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"{_source_label(url)} is not valid base64", field="source") from None
    return match[1].lower(), _check_size(url, data, largest=largest), None


def _read_file(path: Path, *, largest: int) -> bytes:
    try:
        if not path.is_file():
            raise BadRequest(f"there is no file {str(path)!r:.200}", field="source")
        if path.stat().st_size > largest:
            raise _too_large(path, path.stat().st_size, largest=largest)
        return _check_size(path, path.read_bytes(), largest=largest)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise BadRequest(f"{str(path)!r:.200} cannot be read: {reason}", field="source") from None


def _check_size(source: AttachmentSource, data: bytes, *, largest: int) -> bytes:
    if not data:
        raise BadRequest(f"{_source_label(source)} is empty", field="source")
    if len(data) > largest:
        raise _too_large(source, len(data), largest=largest)
    return data


def _too_large(source: AttachmentSource, size: int, *, largest: int) -> TooLarge:
    return TooLarge(
        f"{_source_label(source)} has {size} bytes; the limit is {largest}",
        hint="make it smaller, or pass a larger `largest` if the provider accepts it",
    )


def _source_label(source: AttachmentSource) -> str:
    """Return how to name the source in a message, without its data."""
    if isinstance(source, bytes):
        return f"the data ({len(source)} bytes)"
    return "the data: URL" if str(source)[:5].lower() == "data:" else repr(str(source)[:200])


def _type_by_name(name: str) -> str | None:
    return mimetypes.MimeTypes().guess_type(name)[0]  # the same on every machine


def _guess_type(name: str, data: bytes) -> str | None:
    """Return the type by name; text with another name (`.ts`, `.sql`) is plain text."""
    kind = _type_by_name(name)
    if not _is_text(data):
        return kind
    return kind if kind is not None and _TEXT_TYPE.match(kind) else TEXT_PLAIN


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
