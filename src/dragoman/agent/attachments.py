"""Attachments: images and files as parts of a message or of what a tool gives, checked before they are sent.

Nothing is fetched: an address goes to the provider as it is, and one that takes none refuses it.
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
from dragoman.wire.sources import media_type_from_url as media_type_of
from dragoman.wire.tool_outputs import write_multimodal_output

Detail: TypeAlias = Literal["auto", "low", "high"]
AttachmentSource: TypeAlias = str | Path | bytes
ContentPiece: TypeAlias = str | TextPart | FilePart

MAX_IMAGE_BYTES = 5_000_000  # bytes: what the strictest of the providers takes
MAX_FILE_BYTES = 20_000_000
PDF = "application/pdf"
TEXT_PLAIN = "text/plain"
OCTET_STREAM = "application/octet-stream"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DETAILS = ("auto", "low", "high")
_MAGIC_BYTES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"%PDF-"), PDF),
)
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
    """An image for a message: by http(s) URL, path, bytes, or base64 in a data: URL.

    PNG, JPEG, GIF and WebP, which all providers take. `detail` says how closely to look (OpenAI). A type that
    is said must be that of the bytes. Raises BadRequest for what is no such image or cannot be read, TooLarge
    above `largest` bytes.
    """
    if detail not in _DETAILS:
        raise BadRequest(f"detail must be auto, low or high, not {detail!r:.40}", field="detail")
    metadata: ProviderMetadata | None = {"openai": {"imageDetail": detail}} if detail != "auto" else None
    if isinstance(source, str) and _HTTP_URL.fullmatch(source):
        kind = media_type or media_type_of(source)
        if not kind.startswith("image/") or _PDF_URL.fullmatch(source):
            raise BadRequest(f"{source!r:.200} is no image", field="media_type", hint=_FILE_HINT)
        return FilePart(kind, source, provider_metadata=metadata)
    said, data, name = _load_source(source, largest=largest)
    found = _type_by_content(data)
    if found not in IMAGE_TYPES:
        hint = _FILE_HINT if found == PDF else "PNG, JPEG, GIF and WebP are taken"
        raise BadRequest(f"{_source_label(source)} is no image that models take", field="source", hint=hint)
    claimed = (media_type or said or found).lower().replace("image/jpg", "image/jpeg")
    if claimed != found:
        raise BadRequest(f"{_source_label(source)} is {found}, not {claimed}", field="media_type")
    return FilePart(found, _data_url(found, data), name, provider_metadata=metadata)


def file(
    source: AttachmentSource,
    *,
    media_type: str | None = None,
    filename: str | None = None,
    largest: int = MAX_FILE_BYTES,
) -> FilePart:
    """A file for a message: PDF, text or any other, by http(s) URL, path, bytes, or base64 in a data: URL.

    What a provider cannot read it refuses when it is asked. Raises BadRequest for what cannot be read, or is
    not of the type that is said; TooLarge above `largest` bytes.
    """
    if isinstance(source, str) and _HTTP_URL.fullmatch(source):
        name = filename or source.partition("?")[0].rpartition("/")[2]
        return FilePart(media_type or _type_by_name(name) or OCTET_STREAM, source, name or None)
    said, data, known = _load_source(source, largest=largest)
    name = filename or known or ""
    found, claimed = _type_by_content(data), media_type or said
    if PDF in (claimed, _type_by_name(name)) and found != PDF:
        raise BadRequest(f"{_source_label(source)} is no PDF", field="media_type")
    kind = found or claimed or _guess_type(name, data)
    if kind is None:
        raise BadRequest(
            f"it cannot be told what {_source_label(source)} is",
            field="media_type",
            hint="say its media_type",
        )
    if kind.startswith("text/") and not _is_text(data):
        raise BadRequest(f"{_source_label(source)} is no text in UTF-8", field="source")
    return FilePart(kind, _data_url(kind, data), name or None)


def user_message(*pieces: ContentPiece, id: str | None = None) -> Message:
    """What a user says, with images and files among it: `user_message("What is this?", image("cat.png"))`."""
    return Message(id or new_id("msg"), "user", tuple(_part(piece) for piece in pieces))


def tool_output(*pieces: ContentPiece) -> dict[str, Any]:
    """What a tool gives, with images and files among it: for an operation to return."""
    parts: Sequence[TextPart | FilePart] = [_part(piece) for piece in pieces]
    return write_multimodal_output(parts)


_FILE_HINT = "attach it with file()"


def _part(piece: ContentPiece) -> TextPart | FilePart:
    return TextPart(piece) if isinstance(piece, str) else piece


def _load_source(source: AttachmentSource, *, largest: int) -> tuple[str | None, bytes, str | None]:
    """The type that a data: URL says, the bytes, and the name of a path."""
    if isinstance(source, bytes):
        return None, _check_size(source, source, largest=largest), None
    if isinstance(source, str) and source[:5].lower() == "data:":
        return _decode_data_url(source, largest=largest)
    if isinstance(source, str) and _OTHER_SCHEME.match(source):
        raise BadRequest(
            f"{_source_label(source)} is neither an http(s) URL, a data: URL nor a path",
            field="source",
            hint="other addresses are not read; give a path or the bytes",
        )
    return None, _read_file(Path(source), largest=largest), Path(source).name


def _decode_data_url(url: str, *, largest: int) -> tuple[str, bytes, None]:
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise BadRequest("a data: URL must be data:<type>;base64,<data>", field="source")
    if len(found[2]) > largest * 4 // 3 + 4:
        raise _too_large(url, len(found[2]) * 3 // 4, largest=largest)
    try:
        data = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"{_source_label(url)} is no base64", field="source") from None
    return found[1].lower(), _check_size(url, data, largest=largest), None


def _read_file(path: Path, *, largest: int) -> bytes:
    try:
        if not path.is_file():
            raise BadRequest(f"there is no file {str(path)!r:.200}", field="source")
        if path.stat().st_size > largest:
            raise _too_large(path, path.stat().st_size, largest=largest)
        return _check_size(path, path.read_bytes(), largest=largest)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise BadRequest(f"{str(path)!r:.200} cannot be read: {why}", field="source") from None


def _check_size(source: AttachmentSource, data: bytes, *, largest: int) -> bytes:
    if not data:
        raise BadRequest(f"{_source_label(source)} is empty", field="source")
    if len(data) > largest:
        raise _too_large(source, len(data), largest=largest)
    return data


def _too_large(source: AttachmentSource, size: int, *, largest: int) -> TooLarge:
    return TooLarge(
        f"{_source_label(source)} has {size} bytes; at most {largest} are sent",
        hint="make it smaller, or say a larger `largest` if your provider takes it",
    )


def _source_label(source: AttachmentSource) -> str:
    """What to call it in a message; its data is not told."""
    if isinstance(source, bytes):
        return f"what was given ({len(source)} bytes)"
    return "the data: URL" if str(source)[:5].lower() == "data:" else repr(str(source)[:200])


def _type_by_content(data: bytes) -> str | None:
    """The type by the first bytes."""
    return next((kind for magic, kind in _MAGIC_BYTES if magic.match(data)), None)


def _type_by_name(name: str) -> str | None:
    return mimetypes.MimeTypes().guess_type(name)[0]  # the same on every machine


def _guess_type(name: str, data: bytes) -> str | None:
    """The type by the name; a text that is called like something else (`.ts`, `.sql`) is a text."""
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
