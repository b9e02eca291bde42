"""A gateway client's request: the raw body with the few fields that routing needs, and the parsed request.

A request that is relayed to a provider of the client's own protocol is not parsed further: its other fields
keep their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil, isfinite
from typing import Any, NamedTuple

import msgspec

from dragoman import json_decoding
from dragoman.errors import BadRequest
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.model_request import ModelRequest
from dragoman.wire.named_files import NamedFiles, count_named_files
from dragoman.wire.reasoning_metadata import SEALED_FORMAT

_encoder = msgspec.json.Encoder()
_OUTPUT_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


SEARCH_TOOL = b'"web_search'
ADVISOR_TOOL = b'"advisor'
ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")  # "\u0061dvisor" is the name of a tool as well
DEFAULT_ADVICES = 3  # of one answer, where its request sets no limit
DEFAULT_ADVICE_TOKENS = 2_048  # more than advice with its thinking usually has
MAX_ADVISORS = 8  # different models of one request
DEFAULT_SEARCHES = 5  # of one answer, where its request sets no limit
MAX_DIGITS = 30  # of a number that is written as a text
MAX_FIELDS = 1_000
MAX_MODEL_LENGTH = 500  # characters of a model's name, which errors repeat
MAX_ITEMS = 10_000  # messages, content parts, results
MAX_TOOLS = 2_000


class Advisor(NamedTuple):
    """A model that the provider may ask for advice while it answers: how often, and tokens of each advice."""

    model: str
    uses: int
    output_tokens: int


def check_count(count: int, field: str, *, limit: int) -> None:
    """Raise BadRequest when a list or an object has too many items: each of them takes time to read."""
    if count > limit:
        raise BadRequest(f"{field} has {count} items; {limit} are allowed", field=field or None)


class RawRequestBody:
    """The JSON body of a request; only the fields that routing needs are decoded.

    Raises BadRequest if one of them is invalid.
    """

    def __init__(self, raw: bytes) -> None:
        self._fields = decode_fields(raw)
        if len(self._fields) > MAX_FIELDS:
            check_count(len(self._fields), "the body", limit=MAX_FIELDS)
        self.size = len(raw)
        self.may_have_sealed_reasoning = SEALED_FORMAT in raw
        is_escaped = b"\\u00" in raw and ESCAPED_ASCII.search(raw) is not None
        self.may_search = is_escaped or SEARCH_TOOL in raw
        model = self._decode_field("model")
        if not isinstance(model, str) or not model:
            problem = "is missing" if model is None else f"must be a string, not {model!r:.80}"
            raise BadRequest(f"model {problem}", field="model", hint="list the models with GET /v1/models")
        if len(model) > MAX_MODEL_LENGTH:
            raise BadRequest(
                f"model has {len(model)} characters; {MAX_MODEL_LENGTH} are allowed", field="model"
            )
        self.model = model
        stream = self._decode_field("stream")
        if stream is not None and not isinstance(stream, bool):
            raise BadRequest(f"stream must be true or false, not {stream!r:.80}", field="stream")
        self.stream = bool(stream)
        self.continues_thread = "thread" in self._fields and self._continues_thread()
        """Whether most of the prompt is a conversation that the provider keeps."""
        self.advisors: Sequence[Advisor] = ()
        """The models that the provider may ask for advice, see `find_advisors`."""
        if is_escaped or ADVISOR_TOOL in raw:
            self.advisors = find_advisors(self._decode_field("tools"))

    def _continues_thread(self) -> bool:
        thread = self._decode_field("thread")
        return isinstance(thread, dict) and thread.get("type") != "create"

    def max_output_tokens(self, options: Mapping[str, Any], *, default: int) -> int | None:
        """Return the most output tokens of all choices together; None for one choice without a limit.

        `options` fill in fields that the body does not set. Of several limits, the server may know only the
        highest. Of several choices without a limit, each counts `default`.
        """
        fields, limit = self._fields, -1
        for name in _OUTPUT_LIMIT_FIELDS:
            if name in fields or name in options:
                found = read_number(self._decode_field(name) if name in fields else options[name])
                limit = limit if found is None else max(limit, found)
        choices = max(1, read_number(self._decode_field("n")) or 1) if "n" in fields else 1
        if limit < 0:
            return None if choices == 1 else default * choices
        return limit * choices

    def max_searches(self) -> int:
        """Return the most web searches that the provider may make, see `count_searches`."""
        return count_searches(self._decode_field("tools"), self._decode_field("max_tool_calls"))

    @property
    def include_usage(self) -> bool:
        """Whether the client asked for usage at the end of a chat.completions stream."""
        options = self._decode_field("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def count_named_files(self) -> NamedFiles:
        """Count the files of the conversation that are only named, see `named_files.count_named_files`."""
        counts = [count_named_files(self._decode_field(name)) for name in ("messages", "input")]
        return NamedFiles(*map(sum, zip(*counts, strict=True)))

    def raw_field(self, name: str) -> bytes:
        """Return the bytes of a field; b"" if the body does not have it."""
        return bytes(self._fields.get(name, b""))

    def rewrite(
        self,
        model: str,
        *,
        options: Mapping[str, Any],
        include_usage: bool = False,
        replaced: Mapping[str, bytes] | None = None,
    ) -> bytes:
        """Encode the body for the provider's model `model`; `options` fill in fields that the body does not
        set, and the bytes of `replaced` take the place of fields that it does.
        """
        fields: dict[str, Any] = {**self._fields, "model": model}
        for name, raw in (replaced or {}).items():
            fields[name] = msgspec.Raw(raw)
        for name, value in options.items():
            fields.setdefault(name, value)
        if include_usage and not self.include_usage:
            stream_options = self._decode_field("stream_options")
            fields["stream_options"] = {
                **(stream_options if isinstance(stream_options, dict) else {}),
                "include_usage": True,
            }
        return _encoder.encode(fields)

    def _decode_field(self, name: str) -> Any:
        raw = self._fields.get(name)
        if raw is None:
            return None
        try:
            return decode_json(bytes(raw))
        except DECODE_ERRORS as error:  # strings are decoded only here
            raise BadRequest(f"{name} is not valid JSON: {error}", field=name) from None


def decode_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """Split a JSON object into its fields, each with its bytes. Raises BadRequest if it is not an object.

    Lone surrogates, which some clients send when they cut a text, become U+FFFD; all else keeps its bytes.
    """
    try:
        return json_decoding.decode_fields(raw)
    except DECODE_ERRORS as error:
        raise BadRequest(f"the body is not a JSON object: {error}", hint="send a JSON object") from None


def count_searches(tools: Any, max_tool_calls: Any) -> int:
    """Return the maximum of web searches that a provider may make with these tools of its own.

    Anthropic limits them per tool (`max_uses`), OpenAI per request (`max_tool_calls`). Without a limit,
    DEFAULT_SEARCHES per tool are assumed.
    """
    default = _read_count(max_tool_calls, default=DEFAULT_SEARCHES)
    found = [each for each in tools if isinstance(each, Mapping)] if isinstance(tools, list) else []
    return sum(
        _read_count(each.get("max_uses"), default=default)
        for each in found
        if isinstance(kind := each.get("type"), str) and kind.startswith("web_search")
    )


def find_advisors(tools: Any) -> Sequence[Advisor]:
    """Return the models that a provider may ask for advice, by Anthropic's tool of that name.

    The tools of one model are added up. Raises BadRequest for more than `MAX_ADVISORS` models.
    """
    found: dict[str, Advisor] = {}
    for each in tools if isinstance(tools, list) else ():
        if isinstance(each, Mapping) and str(each.get("type")).startswith("advisor_"):
            model = str(each.get("model"))[:MAX_MODEL_LENGTH]
            uses = _read_count(each.get("max_uses"), default=DEFAULT_ADVICES)
            tokens = _read_count(each.get("max_tokens"), default=DEFAULT_ADVICE_TOKENS)
            same = found.get(model, Advisor(model, 0, 0))
            found[model] = Advisor(model, same.uses + uses, max(same.output_tokens, tokens))
    check_count(len(found), "tools: the advisors", limit=MAX_ADVISORS)
    return tuple(found.values())


def _read_count(value: Any, *, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def read_number(value: Any) -> int | None:
    """Return a whole number as lenient servers read it, also from a float or a text; None for others."""
    if isinstance(value, str) and len(value) <= MAX_DIGITS:
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, float) and isfinite(value):
        value = ceil(value)
    return value if type(value) is int else None


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway client's parsed request.

    `request.model` is the name that the client sent. `include_usage`: an OpenAI client asked for the usage
    chunk. `calls_functions`: it has sent `functions`, and reads a call as a `function_call` of the old form.
    `ignored_fields` names fields of the body that have no neutral equivalent and are dropped.
    """

    request: ModelRequest
    stream: bool = False
    include_usage: bool = False
    calls_functions: bool = False
    ignored_fields: tuple[str, ...] = ()
