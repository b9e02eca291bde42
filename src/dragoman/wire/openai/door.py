"""OpenAI's chat.completions request in: a client's body as a model request.

What has no neutral word goes along as an option under its own name; what cannot be said to any provider is
refused by the name of its field. Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragoman.errors import BadRequest
from dragoman.request import ModelRequest, Named, Tool, ToolChoice
from dragoman.wire.head import Asked
from dragoman.wire.openai.door_fields import (
    Ignored,
    cache_mark,
    decode,
    flag,
    listing,
    mapping,
    name,
    show,
    text,
    wrong,
)
from dragoman.wire.openai.door_messages import read_messages

# ---- Tools in: the tools of a chat.completions request, and which of them the model may or must call.

_NO_INPUT: Mapping[str, Any] = {"type": "object", "properties": {}}
_MODES: Mapping[str, ToolChoice] = {"auto": "auto", "none": "none", "required": "required"}


def read_tools(body: Mapping[str, Any], ignored: Ignored) -> tuple[tuple[Tool, ...], ToolChoice | None]:
    """The tools and the choice among them; `functions` and `function_call` are their old names.

    A choice of `allowed_tools` leaves the others out.
    """
    tools = [
        _tool(tool, f"tools[{index}]", ignored=ignored)
        for index, tool in enumerate(listing(body.get("tools"), "tools"))
    ]
    tools += [
        _function(function, f"functions[{index}]", ignored=ignored)
        for index, function in enumerate(listing(body.get("functions"), "functions"))
    ]
    given = body.get("tool_choice")
    if given is None:
        return tuple(tools), _old_choice(body.get("function_call"), tools)
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(given.get("allowed_tools"), tools)
    return tuple(tools), _choice(given, tools)


def _tool(value: Any, field: str, *, ignored: Ignored) -> Tool:
    tool = mapping(value, field)
    kind = tool.get("type")
    if kind not in (None, "function"):
        raise BadRequest(
            f"{field}.type must be 'function', got {show(kind)}",
            field=f"{field}.type",
            hint="only function tools are understood by every provider",
        )
    ignored.rest(tool, ("type", "function", "cache_control", "prompt_cache_breakpoint"), field="tools[]")
    read = _function(tool.get("function"), f"{field}.function", ignored=ignored)
    mark = cache_mark(tool, field)
    return read if mark is None else Tool(read.name, read.description, read.input_schema, read.strict, mark)


def _function(value: Any, field: str, *, ignored: Ignored) -> Tool:
    function = mapping(value, field)
    known = ("name", "description", "parameters", "strict", "cache_control")
    ignored.rest(function, known, field="tools[].function")
    schema, strict = function.get("parameters"), function.get("strict")
    return Tool(
        name(function.get("name"), f"{field}.name"),
        text(function.get("description"), f"{field}.description"),
        dict(_NO_INPUT) if schema is None else mapping(schema, f"{field}.parameters"),
        None if strict is None else flag(strict, f"{field}.strict"),
        cache_mark(function, field),
    )


def _choice(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    if isinstance(value, dict):
        if value.get("type") != "function":
            raise _unknown(value.get("type"), "tool_choice.type", wanted="'function' or 'allowed_tools'")
        function = mapping(value.get("function"), "tool_choice.function")
        return _named(function.get("name"), "tool_choice.function.name", tools=tools)
    return _mode(value, "tool_choice", tools=tools)


def _old_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return _named(value.get("name"), "function_call.name", tools=tools)
    return _mode(value, "function_call", tools=tools)


def _mode(value: Any, field: str, *, tools: Sequence[Tool]) -> ToolChoice:
    if not isinstance(value, str) or value not in _MODES:
        raise _unknown(value, field, wanted="'auto', 'none', 'required' or an object that names a tool")
    if value == "required" and not tools:
        raise BadRequest(f"{field} is 'required', but there are no tools", field=field)
    return _MODES[value]


def _named(value: Any, field: str, *, tools: Sequence[Tool]) -> Named:
    called = name(value, field)
    if not any(tool.name == called for tool in tools):
        raise BadRequest(f"{field}: {show(called)} is not among the tools", field=field)
    return Named(called)


def _allowed(value: Any, tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], ToolChoice]:
    field = "tool_choice.allowed_tools"
    allowed = mapping(value, field)
    names = set()
    for index, entry in enumerate(listing(allowed.get("tools"), f"{field}.tools")):
        place = f"{field}.tools[{index}]"
        function = mapping(mapping(entry, place).get("function"), f"{place}.function")
        names.add(_named(function.get("name"), f"{place}.function.name", tools=tools).name)
    chosen = tuple(tool for tool in tools if tool.name in names)
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise _unknown(mode, f"{field}.mode", wanted="'auto' or 'required'")
    return chosen, _mode(mode, f"{field}.mode", tools=chosen)


def _unknown(value: Any, field: str, *, wanted: str) -> BadRequest:
    return BadRequest(f"{field} must be {wanted}, got {show(value)}", field=field)


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
