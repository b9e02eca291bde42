"""The head of a gateway request: the few fields that routing needs, the others as they came.

A request that goes on in the language it came in is never taken apart further: its other fields keep their
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_OUTPUT_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class RawRequestBody:
    """What a body says of its model and of the form of the answer. BadRequest when it says it wrongly."""

    def __init__(self, raw: bytes) -> None:
        self._fields = decode_fields(raw)
        self.size = len(raw)
        model = self._decode_field("model")
        if not isinstance(model, str) or not model:
            said = "is missing" if model is None else f"must be a string, not {model!r:.80}"
            raise BadRequest(f"model {said}", field="model", hint="GET /v1/models lists the models")
        self.model = model
        stream = self._decode_field("stream")
        if stream is not None and not isinstance(stream, bool):
            raise BadRequest(f"stream must be true or false, not {stream!r:.80}", field="stream")
        self.stream = bool(stream)

    @property
    def max_output_tokens(self) -> int | None:
        """How many tokens the answer may have at most, for all its choices; None when the body is silent."""
        found = next(
            (value for name in _OUTPUT_LIMIT_FIELDS if type(value := self._decode_field(name)) is int), None
        )
        several = self._decode_field("n")
        return found * max(1, several) if found is not None and type(several) is int else found

    @property
    def include_usage(self) -> bool:
        """Whether the client wants the usage at the end of a chat.completions stream."""
        options = self._decode_field("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def rewrite(self, model: str, *, options: Mapping[str, Any], include_usage: bool = False) -> bytes:
        """The body for a server that calls the model `model`; `options` fill in what the body leaves open."""
        fields: dict[str, Any] = {**self._fields, "model": model}
        for name, value in options.items():
            fields.setdefault(name, value)
        if include_usage and not self.include_usage:
            said = self._decode_field("stream_options")
            fields["stream_options"] = {**(said if isinstance(said, dict) else {}), "include_usage": True}
        return _encoder.encode(fields)

    def _decode_field(self, name: str) -> Any:
        raw = self._fields.get(name)
        try:
            return None if raw is None else msgspec.json.decode(raw)
        except _DECODE_ERRORS as error:  # text is looked at only now
            raise BadRequest(f"{name} is no JSON: {error}", field=name) from None


def decode_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, with their bytes. BadRequest when it is none.

    Half of a surrogate pair, as some clients send when they cut a text, is no error here: the fields are then
    written anew, with the half as it was.
    """
    try:
        return _fields_decoder.decode(raw)
    except _DECODE_ERRORS as error:
        problem = f"the body is no JSON object: {error}"
    try:
        value = json.loads(raw, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadRequest(problem, hint="send a JSON object")
    return {name: msgspec.Raw(json.dumps(field).encode()) for name, field in value.items()}


def reject_constant(name: str) -> None:
    """NaN and infinities are no JSON."""
    raise ValueError(name)


# ---- Asked: what a gateway client wants of a model, and how it wants to be answered.


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway client's request, read.

    `request.model` is the name as the client gave it. `include_usage`: an OpenAI client asked for the usage
    chunk of a stream. `ignored_fields` names the fields of the body that have no neutral word and are left
    out.
    """

    request: ModelRequest
    stream: bool = False
    include_usage: bool = False
    ignored_fields: tuple[str, ...] = ()
