"""Parse the content of input items to message parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.errors import BadRequest
from dragoman.wire.openai.client_content import (
    ASSISTANT_KINDS,
    TEXT_KINDS,
    USER_KINDS,
    ContentPart,
    parse_content,
)
from dragoman.wire.openai.field_reader import IgnoredFields, describe_value, invalid_field, read_object

_KINDS = {"user": USER_KINDS, "assistant": ASSISTANT_KINDS, "system": TEXT_KINDS}
_CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
_FIELDS = frozenset(
    {
        *("type", "text", "refusal", "image_url", "detail", "file_data", "file_url", "file_id", "filename"),
        *("input_audio", *_CACHE_MARKS),
    }
)
_HINT = "send the file's data as file_data, or a URL"


def parse_item_content(value: Any, field: str, *, role: str, ignored: IgnoredFields) -> list[ContentPart]:
    """Parse a string or a list of parts, without empty texts. BadRequest names the invalid field."""
    if isinstance(value, list):
        value = [_chat_part(part, f"{field}[{index}]", ignored=ignored) for index, part in enumerate(value)]
    elif not isinstance(value, str):
        raise invalid_field(value, field, expected="a string or a list of parts")
    return parse_content(value, field, kinds=_KINDS[role], ignored=ignored)


def _chat_part(value: Any, field: str, *, ignored: IgnoredFields) -> dict[str, Any]:
    """Return a content part in the form of chat.completions, which has the same kinds of them."""
    part = read_object(value, field)
    kind = part.get("type")
    convert = _CONVERTERS.get(kind) if isinstance(kind, str) else None
    if convert is None:
        kinds = ", ".join(_CONVERTERS)
        raise BadRequest(
            f"{field}.type must be one of {kinds}, got {describe_value(kind)}", field=f"{field}.type"
        )
    ignored.add_unknown(part, _FIELDS, field="input[].content[]")
    marks = {name: part[name] for name in _CACHE_MARKS if part.get(name) is not None}
    return convert(part, field) | marks


def _text(part: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {"type": "text", "text": part.get("text")}


def _refusal(part: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": part.get("refusal")}


def _image(part: Mapping[str, Any], field: str) -> dict[str, Any]:
    _refuse_file_id(part, field, data=part.get("image_url"))
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    return {"type": "image_url", "image_url": {"url": url, "detail": part.get("detail")}}


def _file(part: Mapping[str, Any], field: str) -> dict[str, Any]:
    data = part.get("file_data") or part.get("file_url")
    _refuse_file_id(part, field, data=data)
    return {"type": "file", "file": {"file_data": data, "filename": part.get("filename")}}


def _audio(part: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": part.get("input_audio")}


def _refuse_file_id(part: Mapping[str, Any], field: str, *, data: Any) -> None:
    if data is None and part.get("file_id") is not None:
        raise BadRequest(
            f"{field}.file_id: the hub cannot read files uploaded to another service",
            field=f"{field}.file_id",
            hint=_HINT,
        )


_CONVERTERS: Mapping[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "input_text": _text,
    "output_text": _text,
    "text": _text,
    "summary_text": _text,
    "refusal": _refusal,
    "input_image": _image,
    "input_file": _file,
    "input_audio": _audio,
}
