"""Anthropic's door: the body of a POST to /v1/messages or /v1/messages/count_tokens as a model request."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.request import ModelRequest, Named, Tool, ToolChoice
from dragoman.wire.anthropic.door_fields import Fields, names, wrong
from dragoman.wire.anthropic.door_history import History
from dragoman.wire.estimate import ANTHROPIC, estimate_input
from dragoman.wire.head import Asked

# ---- Options: what else a request in Anthropic's manner asks for, in neutral words where there are some.
# Anthropic's own settings keep their names; a provider of another family says what it makes of them.

_ELSEWHERE = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "stream",
        "max_tokens",
        "stop_sequences",
        "metadata",
        "extra_body",
    }
)


def read_options(body: Fields, *, counting: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The options, and the names of what is left out. `counting`: nothing is asked, so no limit need be."""
    _check(body)
    options = {
        name: value for name, value in body.raw.items() if name not in _ELSEWHERE and value is not None
    }
    limit = body.count("max_tokens")
    if limit is not None:
        options["max_tokens"] = limit
    elif not counting:
        raise wrong("max_tokens", "this field is required", hint="it is the most that the answer may take")
    if body.has("stop_sequences"):
        options |= _stops(body)
    if not body.has("metadata"):
        return options, []
    metadata = body.fields("metadata")
    if metadata.maybe_text("user_id"):
        options["user"] = metadata.text("user_id")
    return options, [metadata.at(name) for name in metadata.raw if name != "user_id"]


def _check(body: Fields) -> None:
    """Refuse settings that are not even of the right kind."""
    for name in ("temperature", "top_p"):
        body.number(name)
    for name in ("thinking", "output_config", "context_management", "cache_control"):
        if body.has(name):
            body.fields(name)
    if body.has("thinking"):
        body.fields("thinking").text("type")
    body.count("top_k")
    body.maybe_text("service_tier")


def _stops(body: Fields) -> dict[str, list[str]]:
    stops = body.items("stop_sequences")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            raise wrong(f"stop_sequences[{index}]", "must be a string that is not empty")
    return {"stop": stops} if stops else {}


DEEPEST = 200  # levels of lists and objects in a body
_CHOICES = ("auto", "any", "tool", "none")
_ONLY_THEIRS = ("allowed_callers", "defer_loading", "eager_input_streaming", "input_examples")


def read_messages(raw: bytes) -> Asked:
    """What the body of a POST to /v1/messages asks; BadRequest names the field that is wrong."""
    body = _decode(raw)
    request, ignored = _request(body, counting=False)
    return Asked(request=request, stream=body.flag("stream"), ignored=ignored)


def read_count(raw: bytes) -> ModelRequest:
    """The request whose tokens a POST to /v1/messages/count_tokens wants counted; it needs no max_tokens."""
    return _request(_decode(raw), counting=True)[0]


def count_tokens(request: ModelRequest) -> int:
    """About how many input tokens Anthropic would count, for providers that cannot say."""
    return estimate_input(request, factor=ANTHROPIC)


def _decode(raw: bytes) -> Fields:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    if _is_deep(body):
        raise BadRequest(f"the body is nested deeper than {DEEPEST} levels")
    return Fields(body, "")


def _is_deep(body: Any) -> bool:
    """Whether encoders, which wrap what they are given, would fail at what the decoder just managed."""
    level = [body]
    for _ in range(DEEPEST):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _request(body: Fields, *, counting: bool) -> tuple[ModelRequest, tuple[str, ...]]:
    model = body.text("model")
    options, ignored = read_options(body, counting=counting)
    tools = _tools(body) if body.has("tools") else ()
    choice = _choice(body.fields("tool_choice"), tools) if body.has("tool_choice") else None
    if choice is not None and body.fields("tool_choice").flag("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    history = History()
    if body.has("system"):
        history.system(body)
    messages = body.objects("messages")
    if not messages:
        raise wrong("messages", "there must be at least one message")
    for message in messages:
        history.add(message)
    request = ModelRequest(
        model=model, messages=history.messages(), tools=tools, tool_choice=choice, options=options
    )
    return request, (*ignored, *history.ignored)


def _tools(body: Fields) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for said in body.objects("tools"):
        tool = _tool(said)
        if tool.name in tools:
            raise wrong(said.at("name"), f"there is another tool {tool.name!r:.60}")
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(said: Fields) -> Tool:
    kind = said.maybe_text("type") or "custom"
    if kind != "custom":
        raise wrong(
            said.at("type"),
            f"{kind!r:.60} is a tool of Anthropic's own, and the model that answers here does not have it",
            hint="only a provider of type anthropic runs it; ask one of its models, or bring your own tool",
        )
    return Tool(
        said.text("name"),
        said.maybe_text("description"),
        said.fields("input_schema").raw,
        strict=said.flag("strict") if said.has("strict") else None,
        metadata=said.metadata(*_ONLY_THEIRS),
    )


def _choice(said: Fields, tools: tuple[Tool, ...]) -> ToolChoice:
    match said.text("type"):
        case "auto":
            return "auto"
        case "none":
            return "none"
        case "any" if tools:
            return "required"
        case "any":
            raise wrong("tool_choice", "a call is demanded, but there are no tools")
        case "tool":
            name = said.text("name")
            if not any(tool.name == name for tool in tools):
                raise wrong(said.at("name"), f"there is no tool {name!r:.60}")
            return Named(name)
        case kind:
            raise wrong(said.at("type"), f"must be one of {names(_CHOICES)}, got {kind!r:.40}")
