"""The tools, prompts and resources that the conformance suite expects, behind the hub's HTTP endpoint.

They say nothing of the hub; with them the suite can look at how `/mcp` carries every kind of message.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from dragoman.errors import BadRequest
from tests.mcp.server import rounds, schemas
from tests.mcp.server.contents import CONTENTS, PNG, text

Request = ServerRequestContext[Any, Any]
Answer = dict[str, Any]
Tool = Callable[[Request, types.CallToolRequestParams], Awaitable[Answer]]
MODERN = "2026-07-28"


def build() -> Server[Any]:
    """A server with all of them."""
    server: Server[Any] = Server(
        "fixtures",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=nothing,
        on_unsubscribe_resource=nothing,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, nothing)
    return server


async def list_tools(request: Request, _params: Any) -> Any:
    names = [*CONTENTS, *ACTING, *rounds.QUESTIONS]
    tools = [{"name": name, "description": name, "inputSchema": schemas.of(name)} for name in names]
    special = {"name": schemas.NAME, "description": "2020-12", "inputSchema": schemas.SCHEMA_2020_12}
    return whole(request, {"tools": [*tools, special]}, cached=True)


async def call_tool(request: Request, params: types.CallToolRequestParams) -> Any:
    if params.name in CONTENTS:
        return whole(request, {"content": CONTENTS[params.name]})
    if params.name in rounds.QUESTIONS:
        return whole(request, asked_for(request, params))
    if params.name in ACTING:
        return whole(request, await ACTING[params.name](request, params))
    raise MCPError(types.INVALID_PARAMS, f"no tool {params.name}")


def asked_for(request: Request, params: types.CallToolRequestParams) -> Answer:
    """The next question of a tool that asks, or its result."""
    value = (request.params or {}).get("inputResponses") or {}
    capabilities = request.session.client_capabilities
    able = set() if capabilities is None else set(capabilities.model_dump(exclude_none=True))
    try:
        return rounds.answer(params.name, value, state=params.request_state, able=able)
    except BadRequest as error:
        raise MCPError(types.INVALID_PARAMS, error.message) from None


async def fail(_request: Request, _params: Any) -> Answer:
    return {"content": [text("This tool intentionally returns an error for testing")], "isError": True}


async def log(request: Request, _params: Any) -> Answer:
    for reply in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        note = types.LoggingMessageNotification(
            params=types.LoggingMessageNotificationParams(level="info", data=reply)
        )
        if request.protocol_version != MODERN:
            await request.session.send_notification(note, request.request_id)
    return {"content": [text("logged")]}


async def progress(request: Request, _params: Any) -> Answer:
    for done in (0, 50, 100):
        await request.session.report_progress(done, 100)
    return {"content": [text("progressed")]}


async def sample(request: Request, params: types.CallToolRequestParams) -> Answer:
    reply = {"type": "text", "text": (params.arguments or {})["prompt"]}
    wanted = {"messages": [{"role": "user", "content": reply}], "maxTokens": 100}
    create_message_request = types.CreateMessageRequest(
        params=types.CreateMessageRequestParams.model_validate(wanted)
    )
    answer = await ask(request, create_message_request, types.CreateMessageResult)
    return {"content": [text(f"LLM response: {answer.content.text}")]}


async def elicit(request: Request, params: types.CallToolRequestParams) -> Answer:
    message = (params.arguments or {}).get("message", "Please answer")
    form = types.ElicitRequestFormParams.model_validate(
        {"message": message, "requestedSchema": schemas.FORMS[params.name]}
    )
    answer = await ask(request, types.ElicitRequest(params=form), types.ElicitResult)
    reply = f"action={answer.action}, content={json.dumps(answer.content)}"
    return {"content": [text(f"Elicitation completed: {reply}")]}


async def ask(request: Request, question: Any, answer: Any) -> Any:
    """Ask the client, on the stream of its own request."""
    data = question.model_dump(by_alias=True, mode="json", exclude_none=True)
    raw = await request.session._request_outbound.send_raw_request(data["method"], data["params"])
    return answer.model_validate(raw, by_name=False)


async def need(request: Request, _params: Any) -> Answer:
    """A tool for clients that can be sampled."""
    capabilities = request.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        data: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "it needs sampling", data)
    return {"content": [text("it is there")]}


async def echo(_request: Request, params: types.CallToolRequestParams) -> Answer:
    return {"content": [text(json.dumps(params.arguments))]}


ACTING: Mapping[str, Tool] = {
    "test_error_handling": fail,
    "test_tool_with_logging": log,
    "test_logging_tool": log,
    "test_tool_with_progress": progress,
    "test_sampling": sample,
    "test_elicitation": elicit,
    "test_elicitation_sep1034_defaults": elicit,
    "test_elicitation_sep1330_enums": elicit,
    "test_missing_capability": need,
    "test_custom_headers": echo,
}


async def list_resources(request: Request, _params: Any) -> Any:
    names = ("static-text", "static-binary", "watched-resource")
    pending = [{"uri": f"test://{name}", "name": name, "description": name} for name in names]
    return whole(request, {"resources": pending}, cached=True)


async def list_templates(request: Request, _params: Any) -> Any:
    template = {"uriTemplate": "test://template/{id}/data", "name": "template", "description": "data by id"}
    return whole(request, {"resourceTemplates": [template]}, cached=True)


async def read_resource(request: Request, params: types.ReadResourceRequestParams) -> Any:
    uri = params.uri
    found: dict[str, Any]
    if uri == "test://static-text":
        found = {"mimeType": "text/plain", "text": "This is the content of the static text resource."}
    elif uri == "test://static-binary":
        found = {"mimeType": "image/png", "blob": PNG}
    elif uri.startswith("test://template/"):
        id = uri.split("/")[3]
        data = {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
        found = {"mimeType": "application/json", "text": json.dumps(data)}
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return whole(request, {"contents": [{"uri": uri, **found}]}, cached=True)


async def list_prompts(request: Request, _params: Any) -> Any:
    pending = [
        {
            "name": name,
            "description": name,
            "arguments": [{"name": each, "description": each, "required": True} for each in takes],
        }
        for name, takes in schemas.PROMPTS.items()
    ]
    return whole(request, {"prompts": pending}, cached=True)


async def get_prompt(request: Request, params: types.GetPromptRequestParams) -> Any:
    arguments = params.arguments or {}
    answers = (request.params or {}).get("inputResponses") or {}
    if params.name == rounds.PROMPT and "user_context" not in answers:
        return whole(request, rounds.question(rounds.PROMPT, rounds.CONTEXT))
    contents = schemas.prompt(params.name, arguments)
    return whole(request, {"messages": [{"role": "user", "content": each} for each in contents]})


async def complete(request: Request, _params: Any) -> Any:
    return whole(request, {"completion": {"values": [], "total": 0, "hasMore": False}})


async def nothing(request: Request, _params: Any) -> Any:
    return whole(request, {})


def whole(request: Request, result: Answer, *, cached: bool = False) -> Any:
    """The result with what the newer revision wants said."""
    if request.protocol_version != MODERN:
        return result
    hints = {"ttlMs": 1000, "cacheScope": "public"} if cached else {}
    return {"resultType": "complete", **hints, **result}
