"""Call outcomes: a result as JSON types, or a failure that says what to correct."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

import msgspec
import pydantic

from dragoman.errors import CallError, DragomanError, InvalidInput
from dragoman.json_decoding import replace_surrogates, well_formed
from dragoman.large_json import SMALL, measure
from dragoman.operations.approval import SuspendedCall
from dragoman.operations.results.files import (
    file_block,
    is_drawable,
    may_contain_files,
    render_png,
    with_file_blocks,
)
from dragoman.operations.sanitize import sanitize_text

MAX_MESSAGE_LENGTH = 2_000
CallStatus = Literal["pending", "running", "done", "failed", "aborted", "denied", "uncertain"]


class CallFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a call failed. For invalid input it has the problems and the whole schema."""

    code: str
    message: str
    transient: bool = False
    hint: str | None = None
    problems: Sequence[Mapping[str, Any]] = ()
    input_schema: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.transient:
            body["transient"] = True
        if self.hint:
            body["hint"] = self.hint
        if self.problems:
            body["problems"] = list(self.problems)
        if self.input_schema is not None:
            body["inputSchema"] = self.input_schema
        return body


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one call: `result` if `ok`, else `error`.

    A call that waits for approval has the status `pending`, an `error` that says so and the `approval_id`;
    a nested one has `suspended_call` instead, and its caller waits with it. `notes` list repairs of its
    input.
    """

    call_id: str
    operation: str
    ok: bool
    result: Any = None
    error: CallFailure | None = None
    status: CallStatus = "done"
    approval_id: str | None = None
    suspended_call: SuspendedCall | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return `{success: true, result}` or `{success: false, error: {...}}`."""
        if self.error is None:
            return {"success": True, "result": self.result}
        return {"success": False, "error": self.error.to_json()}

    def unwrap(self) -> Any:
        """Return the result. Raises CallError with the failure's code and message."""
        if self.error is None:
            return self.result
        error = CallError(self.error.message, hint=self.error.hint)
        error.code, error.transient = self.error.code, self.error.transient
        raise error


def to_failure(error: BaseException, *, input_schema: Mapping[str, Any] | None = None) -> CallFailure:
    """Return the failure for an exception: a DragomanError keeps its code, others get class and message."""
    if isinstance(error, DragomanError):
        return CallFailure(
            code=error.code,
            message=sanitize_text(error.message, MAX_MESSAGE_LENGTH),
            transient=error.transient,
            hint=error.hint,
            problems=error.problems if isinstance(error, InvalidInput) else (),
            input_schema=input_schema,
        )
    return CallFailure(
        code=CallError.code, message=sanitize_text(describe_exception(error), MAX_MESSAGE_LENGTH)
    )


def describe_exception(error: BaseException) -> str:
    """Return an exception's class and message; for a group those of its members."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe_exception(member) for member in error.exceptions)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - exceptions of foreign code may have a broken `__str__`
        text = ""
    return f"{type(error).__name__}: {text}".removesuffix(": ")


PIECE_ITEMS = 500  # of a long list that are encoded and decoded in one call
MAX_DECODED_BYTES = 100_000  # bytes of a result that are decoded again; more is slow
SCALAR_TYPES = (bool, int, float, type(None))


def to_jsonable(value: Any) -> Any:
    """Return the value as JSON types: dicts, lists, strings, numbers.

    Supports dataclasses, msgspec structs, pydantic models, dates, UUIDs, enums, sets, decimals and paths.
    Bytes of images, sounds and PDFs, and objects that render themselves as PNG, become content blocks, other
    bytes base64. Raises CallError for a value without a JSON form.
    """
    if type(value) in SCALAR_TYPES and not is_non_finite(value):
        return value
    if type(value) is str:
        return well_formed(value)
    if type(value) in (list, dict) and measure(value) > SMALL:
        try:
            return _piece_by_piece(value)
        except RecursionError:
            pass  # nested too deeply: the encoder raises the error
    return msgspec.json.decode(encode_result(value))


def _piece_by_piece(value: Any) -> Any:
    """Return a large list or dict as JSON types, in many short calls."""
    if type(value) is dict:
        if all(type(key) is str for key in value):
            return {well_formed(key): to_jsonable(item) for key, item in value.items()}
        return msgspec.json.decode(encode_result(value))
    if len(value) <= PIECE_ITEMS:
        return [to_jsonable(item) for item in value]
    slices = (value[at : at + PIECE_ITEMS] for at in range(0, len(value), PIECE_ITEMS))
    return [item for piece in slices for item in to_jsonable(piece)]


def to_jsonable_or_raw(value: Any) -> Any:
    """Like to_jsonable(), but return more than MAX_DECODED_BYTES bytes encoded, as `msgspec.Raw`.

    For a caller that uses only a part of the result: decoding all of it would take longer than the rest.
    """
    if isinstance(value, str) or type(value) in SCALAR_TYPES:
        return to_jsonable(value)
    encoded = encode_result(value)
    return msgspec.json.decode(encoded) if len(encoded) <= MAX_DECODED_BYTES else msgspec.Raw(encoded)


def encode_result(value: Any, *, files: bool = True) -> bytes:
    """Encode a result as JSON, lone surrogates as U+FFFD. Raises CallError if it has no JSON form.

    Without `files` all bytes are base64.
    """
    try:
        if files and is_drawable(value):
            value = render_png(value)
        try:
            encoded = _encoder.encode(value)
        except UnicodeEncodeError:
            plain = with_file_blocks(value, _encode_other) if files else _to_builtins(value)
            value = replace_surrogates(plain)
            encoded = _encoder.encode(value)
        if b"null" in encoded and _may_have_non_finite(value):
            _reject_non_finite(_to_builtins(value))
        if files and may_contain_files(encoded):
            return _encoder.encode(with_file_blocks(value, _encode_other))
        return encoded
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise CallError(
            f"The result, a value of type {type(value).__name__}, cannot be encoded as JSON: {error}"
        ) from error


def _may_have_non_finite(value: Any) -> bool:
    """Return whether a result may contain NaN or an infinity, which msgspec encodes as null.

    In MessagePack they are 64-bit floats with all bits of the exponent set; some other data looks the same.
    """
    try:
        return _PACKED_NON_FINITE.search(_packer.encode(value)) is not None
    except OverflowError:  # an integer of more than 64 bits
        return True


def _reject_non_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinities."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
        elif is_non_finite(item):
            raise ValueError(f"it contains {item}, which is not a JSON number; return None or text instead")


def is_non_finite(value: Any) -> bool:
    """Return whether a value is NaN or an infinity."""
    return isinstance(value, float) and not math.isfinite(value)


def _to_builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_encode_other)


def _encode_other(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        try:
            return value.model_dump(mode="json", by_alias=True)
        except UnicodeDecodeError:  # pydantic decodes bytes as text
            return value.model_dump(by_alias=True)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BaseException):
        return describe_exception(value)
    if is_drawable(value):
        rendered = render_png(value)
        return None if rendered is None else file_block(rendered)
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_packer = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_PACKED_NON_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
