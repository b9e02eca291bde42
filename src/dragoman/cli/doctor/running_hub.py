"""Checks of a running hub, through the address that its clients use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from dragoman.cli.doctor.findings import Finding, Findings, ok
from dragoman.cli.hub_client.client import HubClient
from dragoman.errors import BadRequest, DragomanError, Forbidden, ProviderError, Unauthorized
from dragoman.http.transport import Response, Timeouts, Transport, proxies_from
from dragoman.http.websocket_client import open_websocket, websocket_url
from dragoman.ids import new_id
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.version import version

MAX_BODY = 1_000_000
STREAM_SECONDS = 5.0  # in which the first bytes of a stream arrive, unless a proxy keeps them
TIMEOUTS = Timeouts(connect=5.0, first_byte=30.0, idle=30.0)
DOCS = "see docs/reverse-proxies.md"
KEY_TODO = "`dragoman keys create --owner NAME --scope admin --scope chat`; give it as DRAGOMAN_KEY"
QUESTION = "Answer with the one word: ready"


async def check_hub(url: str, key: str | None, *, ask: bool) -> Findings:
    """Yield the findings about the hub at `url`."""
    found = await check_address(url)
    yield found
    if found.state == "failed":
        return
    async with HubClient.over_http(url, key) as client:
        yield await check_ready(client)
        access = await check_key(client, key)
        yield access
        if access.state != "ok":
            return
        yield await check_streaming(url, key)
        yield await check_websocket(url, key)
        async for finding in check_parts(client):
            yield finding
        if ask:
            yield await check_answer(client)
    yield await check_console(url)


async def get(url: str, path: str, *, accept: str = "application/json") -> tuple[Response, bytes]:
    """Return the response to a request without a key, and its body. Raises ProviderError."""
    transport = Transport(timeouts=TIMEOUTS, proxies=proxies_from(os.environ))
    try:
        async with await transport.send(
            "GET", url.rstrip("/") + path, headers={"accept": accept}
        ) as response:
            return response, await response.read(MAX_BODY)
    finally:
        await transport.close()


async def check_address(url: str) -> Finding:
    """Return whether a hub answers at the address, and whether it is of this version."""
    try:
        response, body = await get(url, "/")
    except ProviderError as error:
        todo = "is it running? `dragoman serve` starts one, --hub names another address"
        return Finding("hub", "failed", f"no hub answers at {url}: {error.message}", todo)
    try:
        about = decode_json(body)
    except DECODE_ERRORS:
        about = None
    if not isinstance(about, dict) or about.get("name") != "dragoman":
        todo = f"the address of the hub or the proxy's rules are wrong; {DOCS}"
        return Finding(
            "hub", "failed", f"what answers at {url} is not a hub (status {response.status})", todo
        )
    if about["version"] != version():
        message = f"{url} runs version {about['version']}, and this program is {version()}"
        return Finding("hub", "warning", message, "restart the hub after an upgrade")
    return ok("hub", f"{url} answers, version {about['version']}")


async def check_ready(client: HubClient) -> Finding:
    """Return whether the hub's store answers, and it is not draining."""
    try:
        body = await client.request("GET", "/readyz")
    except DragomanError as error:
        return Finding("ready", "failed", error.message, "the log of the hub says more")
    notes = [str(body[name]) for name in ("spool", "lost") if name in body]
    if notes:
        return Finding("ready", "warning", "; ".join(notes), "docs/reliability.md says what this means")
    return ok("ready", "the hub's database answers")


async def check_key(client: HubClient, key: str | None) -> Finding:
    """Return whether the key is valid and may chat."""
    try:
        await client.sessions(limit=1)
    except Unauthorized as error:
        if key is None:
            return Finding("key", "failed", "this hub requires a key, and none was given", KEY_TODO)
        return Finding("key", "failed", error.message, KEY_TODO)
    except Forbidden as error:
        return Finding("key", "failed", error.message, f"a key with the scope `chat`: {KEY_TODO}")
    except DragomanError as error:
        return Finding("key", "failed", error.message, error.hint)
    return ok("key", "it is valid" if key else "this hub requires none")


async def check_streaming(url: str, key: str | None) -> Finding:
    """Return whether a stream's first bytes arrive while it is open: a proxy that buffers keeps them.

    The request accepts compression as a browser's does, because compression is what collects events.
    """
    # late: takes 0.2 s, and only a running hub is asked
    import httpx2

    headers = {"authorization": f"Bearer {key}"} if key else {}
    address = url.rstrip("/") + "/api/events"
    try:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=STREAM_SECONDS) as client,
            client.stream("GET", address) as response,
        ):
            if response.status_code != 200:
                return Finding("streaming", "failed", f"GET /api/events answers {response.status_code}", DOCS)
            async with aclosing(response.aiter_raw()) as chunks:
                await anext(chunks)
    except httpx2.TimeoutException:
        message = f"nothing of a stream arrived in {STREAM_SECONDS:g} s: something in between buffers it"
        todo = f"switch off buffering and compression of text/event-stream in the proxy; {DOCS}"
        return Finding("streaming", "failed", message, todo)
    except (httpx2.HTTPError, httpx2.InvalidURL, StopAsyncIteration) as error:
        return Finding("streaming", "failed", f"a stream ended at once: {error}", DOCS)
    return ok("streaming", "events arrive as they are sent")


async def check_websocket(url: str, key: str | None) -> Finding:
    """Return whether WebSockets get through. The session does not exist, so the hub closes it at once."""
    try:
        address = websocket_url(url, f"/api/sessions/{new_id('doctor')}/socket")
        connection = await open_websocket(address, key, scope="chat")
        await connection.close()
    except DragomanError as error:
        todo = f"let the proxy pass `Upgrade` and `Connection`; {DOCS}"
        return Finding("websockets", "failed", error.message, todo)
    return ok("websockets", "they get through")


async def check_parts(client: HubClient) -> Findings:
    """Yield what the hub says of its providers, operations and MCP servers, as far as the key may ask."""
    try:
        found = (await client.operations())["operations"]
        yield ok("operations", f"{len(found)} that this key can call")
    except DragomanError as error:
        yield Finding("operations", "skipped", error.message, "a key with the scope `operations` may ask")
    try:
        providers = (await client.request("GET", "/api/providers"))["providers"]
        servers = (await client.request("GET", "/api/mcp/servers"))["servers"]
    except DragomanError as error:
        yield Finding(
            "providers and MCP servers", "skipped", error.message, "a key with the scope `admin` may ask"
        )
        return
    for each in providers:
        yield judge_provider(each)
    for each in servers:
        yield judge_server(each)


def judge_provider(provider: Mapping[str, Any]) -> Finding:
    """Return the state of a provider of the hub."""
    check, recent = f"provider {provider['name']} in the hub", provider["lastHour"]
    if provider["state"] != "up":
        return Finding(check, "failed", "it is cooling down after failures", "the log of the hub names them")
    recently = f"{recent['requests']} requests in the last hour, {recent['failed']} failed"
    if recent["failed"] * 2 > recent["requests"]:
        return Finding(
            check, "warning", recently, "the log of the hub names the errors; `dragoman calls list`"
        )
    return ok(check, recently)


def judge_server(server: Mapping[str, Any]) -> Finding:
    """Return the state of an MCP server of the hub."""
    check, state = f"MCP server {server['name']}", server["state"]
    reason = str(server.get("error") or server.get("lastError") or "")
    if state in ("failed", "quarantined"):
        todo = f"mend it, then `dragoman servers reconnect {server['name']}`"
        return Finding(check, "failed", f"{state} {reason}".strip(), todo)
    if server.get("waiting"):
        todo = f"`dragoman servers show {server['name']}` shows them, `dragoman servers approve` approves"
        return Finding(check, "warning", f"{server['waiting']} definitions wait for approval", todo)
    return ok(check, f"{state}, {server.get('tools', 0)} tools")


async def check_answer(client: HubClient) -> Finding:
    """Return whether the hub's default model answers."""
    body = {"model": await default_model(client), "messages": [{"role": "user", "content": QUESTION}]}
    try:
        answer = await client.request("POST", "/v1/chat/completions", body={**body, "max_tokens": 200})
        usage = answer.get("usage") or {}
    except DragomanError as error:
        return Finding("answer", "failed", f"{body['model']}: {error.message}", error.hint)
    return ok("answer", f"{answer['model']} answers ({usage.get('completion_tokens', 'unknown')} tokens)")


async def default_model(client: HubClient) -> str:
    """Return the model of the agent that answers where none is named. BadRequest."""
    agents: Sequence[Mapping[str, Any]] = (await client.request("GET", "/api/agents"))["agents"]
    models = [agent["model"] for agent in agents if agent["name"] == "default" and agent["model"]]
    if not models:
        raise BadRequest("the hub has no default model", hint="name one in `model:` of its configuration")
    return str(models[0])


async def check_console(url: str) -> Finding:
    """Return whether the hub serves its web console."""
    try:
        response, body = await get(url, "/console/", accept="text/html")
    except ProviderError as error:
        return Finding("console", "failed", error.message, DOCS)
    if response.status != 200 or b"<html" not in body.lower():
        todo = "it is in the wheel; a checkout builds it with `make console`"
        return Finding("console", "warning", f"{url}/console/ answers {response.status}", todo)
    return ok("console", f"{url.rstrip('/')}/console/")
