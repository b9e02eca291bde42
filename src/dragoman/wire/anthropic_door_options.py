"""Options: what else a request in Anthropic's manner asks for, in neutral words where there are some.

Anthropic's own settings keep their names; a provider of another family says what it makes of them.
"""

from __future__ import annotations

from typing import Any

from dragoman.wire.anthropic_door_fields import Fields, wrong

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
