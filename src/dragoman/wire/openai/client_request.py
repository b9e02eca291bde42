"""Parse a client's chat.completions request to a model request.

Fields without a neutral equivalent become options under their own name; a field that no provider supports is
rejected by name. Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool, ToolChoice
from dragoman.wire.client_request import MAX_FIELDS, ClientRequest, check_count
from dragoman.wire.openai.client_messages import parse_messages
from dragoman.wire.openai.field_reader import (
    IgnoredFields,
    decode_body,
    describe_value,
    invalid_field,
    read_boolean,
    read_cache_control,
    read_list,
    read_nonempty_string,
    read_object,
    read_optional_string,
)

_HANDLED_FIELDS = frozenset(
    {
        *("model", "messages", "stream", "stream_options", "tools", "tool_choice", "functions"),
        *("function_call", "extra_body"),
    }
)
_HINT = 'send {"model": "provider/model", "messages": [{"role": "user", "content": "hi"}]}'


def parse_chat_completions_request(raw: bytes) -> ClientRequest:
    """Parse a body; BadRequest names the invalid field."""
    try:
        body = decode_body(raw)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", hint=_HINT) from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint=_HINT)
    check_count(len(body), "the body", limit=MAX_FIELDS)
    ignored = IgnoredFields()
    model = read_nonempty_string(body.get("model"), "model")
    messages = parse_messages(body.get("messages"), ignored)
    tools, choice = parse_tools(body, ignored)
    ignored.add_unknown({"extra_body": body.get("extra_body")}, (), field="")
    options, calls_functions = _parse_options(body), bool(body.get("functions")) and not body.get("tools")
    if calls_functions:
        options["parallel_tool_calls"] = False  # the old form has room for one call
    return ClientRequest(
        request=ModelRequest(
            model=model, messages=messages, tools=tools, tool_choice=choice, options=options
        ),
        calls_functions=calls_functions,
        stream=read_boolean(body.get("stream"), "stream"),
        include_usage=_parse_include_usage(body.get("stream_options"), ignored),
        ignored_fields=ignored.fields,
    )


def _parse_include_usage(value: Any, ignored: IgnoredFields) -> bool:
    if value is None:
        return False
    stream_options = read_object(value, "stream_options")
    ignored.add_unknown(stream_options, ("include_usage",), field="stream_options")
    return read_boolean(stream_options.get("include_usage"), "stream_options.include_usage")


def _parse_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """All other fields; null counts as absent. The types of OpenAI's fields are checked."""
    options = {key: value for key, value in body.items() if key not in _HANDLED_FIELDS and value is not None}
    for key, value in options.items():
        check = _OPTION_TYPES.get(key)
        if check is not None and not check[0](value):
            raise invalid_field(value, key, expected=check[1])
    if "response_format" in options:
        _check_response_format(options["response_format"])
    return options


def _check_response_format(response_format: Mapping[str, Any]) -> None:
    """Check a response format that has a schema."""
    format_type = read_nonempty_string(response_format.get("type"), "response_format.type")
    if format_type == "json_schema":
        json_schema = read_object(response_format.get("json_schema"), "response_format.json_schema")
        if json_schema.get("schema") is not None:
            read_object(json_schema["schema"], "response_format.json_schema.schema")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive_integer(value: Any) -> bool:
    return _is_integer(value) and value >= 1


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_string, value)))


TypeCheck = tuple[Callable[[Any], bool], str]
_POSITIVE_INTEGER: TypeCheck = (_is_positive_integer, "an integer of at least 1")
_INTEGER: TypeCheck = (_is_integer, "an integer")
_NUMBER: TypeCheck = (_is_number, "a number")
_STRING: TypeCheck = (_is_string, "a string")
_BOOLEAN: TypeCheck = (lambda value: isinstance(value, bool), "true or false")
_OBJECT: TypeCheck = (_is_object, "an object")
_OPTION_TYPES: Mapping[str, TypeCheck] = {
    "max_tokens": _POSITIVE_INTEGER,
    "max_completion_tokens": _POSITIVE_INTEGER,
    "n": _POSITIVE_INTEGER,
    "seed": _INTEGER,
    "top_k": _INTEGER,
    "top_logprobs": _INTEGER,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "stop": (_is_stop, "a string or a list of strings"),
    "logprobs": _BOOLEAN,
    "parallel_tool_calls": _BOOLEAN,
    "store": _BOOLEAN,
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


# ---- Tools and the tool choice

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_CHOICE_MODES: Mapping[str, ToolChoice] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",  # Mistral's word
}


def parse_tools(
    body: Mapping[str, Any], ignored: IgnoredFields
) -> tuple[tuple[Tool, ...], ToolChoice | None]:
    """Parse the tools and the tool choice; `functions` and `function_call` are their old names.

    A choice of `allowed_tools` removes the other tools.
    """
    tools = [
        _parse_tool(tool, f"tools[{index}]", ignored=ignored)
        for index, tool in enumerate(read_list(body.get("tools"), "tools"))
    ]
    tools += [
        _parse_function(function, f"functions[{index}]", ignored=ignored)
        for index, function in enumerate(read_list(body.get("functions"), "functions"))
    ]
    choice = body.get("tool_choice")
    if choice is None:
        return tuple(tools), _parse_function_call_choice(body.get("function_call"), tools)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _parse_allowed_tools(choice.get("allowed_tools"), tools)
    return tuple(tools), _parse_choice(choice, tools)


def _parse_tool(value: Any, field: str, *, ignored: IgnoredFields) -> Tool:
    tool = read_object(value, field)
    tool_type = tool.get("type")
    if tool_type not in (None, "function"):
        raise BadRequest(
            f"{field}.type must be 'function', got {describe_value(tool_type)}",
            field=f"{field}.type",
            hint="other tool types are not supported by every provider",
        )
    ignored.add_unknown(
        tool, ("type", "function", "cache_control", "prompt_cache_breakpoint"), field="tools[]"
    )
    parsed = _parse_function(tool.get("function"), f"{field}.function", ignored=ignored)
    cache_metadata = read_cache_control(tool, field)
    return (
        parsed
        if cache_metadata is None
        else Tool(parsed.name, parsed.description, parsed.input_schema, parsed.strict, cache_metadata)
    )


def _parse_function(value: Any, field: str, *, ignored: IgnoredFields) -> Tool:
    function = read_object(value, field)
    supported = ("name", "description", "parameters", "strict", "cache_control")
    ignored.add_unknown(function, supported, field="tools[].function")
    schema, strict = function.get("parameters"), function.get("strict")
    return Tool(
        read_nonempty_string(function.get("name"), f"{field}.name"),
        read_optional_string(function.get("description"), f"{field}.description"),
        dict(_EMPTY_SCHEMA) if schema is None else read_object(schema, f"{field}.parameters"),
        None if strict is None else read_boolean(strict, f"{field}.strict"),
        read_cache_control(function, field),
    )


def _parse_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    if isinstance(value, dict):
        if value.get("type") != "function":
            raise _invalid_choice(
                value.get("type"), "tool_choice.type", expected="'function' or 'allowed_tools'"
            )
        function = read_object(value.get("function"), "tool_choice.function")
        return _parse_named_tool(function.get("name"), "tool_choice.function.name", tools=tools)
    return _parse_mode(value, "tool_choice", tools=tools)


def _parse_function_call_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return _parse_named_tool(value.get("name"), "function_call.name", tools=tools)
    return _parse_mode(value, "function_call", tools=tools)


def _parse_mode(value: Any, field: str, *, tools: Sequence[Tool]) -> ToolChoice:
    if not isinstance(value, str) or value not in _CHOICE_MODES:
        raise _invalid_choice(
            value, field, expected="'auto', 'none', 'required' or an object that names a tool"
        )
    if _CHOICE_MODES[value] == "required" and not tools:
        raise BadRequest(f"{field} is {describe_value(value)}, but there are no tools", field=field)
    return _CHOICE_MODES[value]


def _parse_named_tool(value: Any, field: str, *, tools: Sequence[Tool]) -> NamedToolChoice:
    tool_name = read_nonempty_string(value, field)
    if not any(tool.name == tool_name for tool in tools):
        raise BadRequest(f"{field}: {describe_value(tool_name)} is not among the tools", field=field)
    return NamedToolChoice(tool_name)


def _parse_allowed_tools(value: Any, tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], ToolChoice]:
    field = "tool_choice.allowed_tools"
    allowed_tools = read_object(value, field)
    names = set()
    for index, entry in enumerate(read_list(allowed_tools.get("tools"), f"{field}.tools")):
        entry_field = f"{field}.tools[{index}]"
        function = read_object(read_object(entry, entry_field).get("function"), f"{entry_field}.function")
        names.add(_parse_named_tool(function.get("name"), f"{entry_field}.function.name", tools=tools).name)
    allowed_subset = tuple(tool for tool in tools if tool.name in names)
    mode = allowed_tools.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise _invalid_choice(mode, f"{field}.mode", expected="'auto' or 'required'")
    return allowed_subset, _parse_mode(mode, f"{field}.mode", tools=allowed_subset)


def _invalid_choice(value: Any, field: str, *, expected: str) -> BadRequest:
    return BadRequest(f"{field} must be {expected}, got {describe_value(value)}", field=field)
