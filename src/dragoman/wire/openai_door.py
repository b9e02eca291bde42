"""OpenAI's chat.completions request in: a client's body as a model request.

What has no neutral word goes along as an option under its own name; what cannot be said to any provider is
refused by the name of its field. Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.errors import BadRequest
from dragoman.request import ModelRequest
from dragoman.wire.asked import Asked
from dragoman.wire.openai_door_fields import Ignored, decode, flag, mapping, name, wrong
from dragoman.wire.openai_door_messages import read_messages
from dragoman.wire.openai_door_tools import read_tools

_READ = frozenset(
    {
        *("model", "messages", "stream", "stream_options", "tools", "tool_choice", "functions"),
        *("function_call", "extra_body"),
    }
)
_HINT = 'send {"model": "provider/model", "messages": [{"role": "user", "content": "hi"}]}'


def read_chat(raw: bytes) -> Asked:
    """The request in a body; BadRequest names the field that is wrong."""
    try:
        body = decode(raw)
    except ValueError as error:
        raise BadRequest(f"the body cannot be read as JSON: {error}", hint=_HINT) from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint=_HINT)
    ignored = Ignored()
    model = name(body.get("model"), "model")
    messages = read_messages(body.get("messages"), ignored)
    tools, choice = read_tools(body, ignored)
    return Asked(
        request=ModelRequest(
            model=model, messages=messages, tools=tools, tool_choice=choice, options=_options(body)
        ),
        stream=flag(body.get("stream"), "stream"),
        include_usage=_include_usage(body.get("stream_options"), ignored),
        ignored=ignored.fields,
    )


def _include_usage(value: Any, ignored: Ignored) -> bool:
    if value is None:
        return False
    asked = mapping(value, "stream_options")
    ignored.rest(asked, ("include_usage",), field="stream_options")
    return flag(asked.get("include_usage"), "stream_options.include_usage")


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    """All other fields; null is the same as nothing. Those that OpenAI knows have the type that it says."""
    options = {key: value for key, value in body.items() if key not in _READ and value is not None}
    for key, value in options.items():
        check = _TYPES.get(key)
        if check is not None and not check[0](value):
            raise wrong(value, key, wanted=check[1])
    if "response_format" in options:
        _check_format(options["response_format"])
    return options


def _check_format(form: Mapping[str, Any]) -> None:
    """A response format that names a schema has one."""
    kind = name(form.get("type"), "response_format.type")
    if kind == "json_schema":
        named = mapping(form.get("json_schema"), "response_format.json_schema")
        if named.get("schema") is not None:
            mapping(named["schema"], "response_format.json_schema.schema")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value >= 1


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_string, value)))


Check = tuple[Callable[[Any], bool], str]
_COUNT: Check = (_is_count, "a whole number of at least 1")
_WHOLE: Check = (_is_whole, "a whole number")
_NUMBER: Check = (_is_number, "a number")
_STRING: Check = (_is_string, "a string")
_FLAG: Check = (lambda value: isinstance(value, bool), "true or false")
_OBJECT: Check = (_is_object, "an object")
_TYPES: Mapping[str, Check] = {
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "n": _COUNT,
    "seed": _WHOLE,
    "top_k": _WHOLE,
    "top_logprobs": _WHOLE,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "stop": (_is_stop, "a string or a list of strings"),
    "logprobs": _FLAG,
    "parallel_tool_calls": _FLAG,
    "store": _FLAG,
    "user": _STRING,
    "safety_identifier": _STRING,
    "reasoning_effort": _STRING,
    "verbosity": _STRING,
    "service_tier": _STRING,
    "prompt_cache_key": _STRING,
    "prompt_cache_retention": _STRING,
    "prompt_cache_options": _OBJECT,
    "logit_bias": _OBJECT,
    "metadata": _OBJECT,
    "response_format": _OBJECT,
    "prediction": _OBJECT,
    "audio": _OBJECT,
    "web_search_options": _OBJECT,
    "thinking": _OBJECT,
    "modalities": (lambda value: isinstance(value, list), "a list"),
}
