"""A client of the hub's API, over HTTP or in this process.

All commands that read or change a hub's data use `HubClient`. `connect` chooses its transport:
HTTP where a hub is named, else the hub's own handlers over the data folder (`in_process`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, Self, TypeAlias
from urllib.parse import urlencode, urlsplit

import msgspec

from dragoman import events
from dragoman.cli.hub_client.url_quoting import path_segment
from dragoman.errors import (
    BadRequest,
    DragomanError,
    ProviderError,
    Unavailable,
    WireError,
    error_for_status,
)
from dragoman.http.transport import Timeouts, Transport, proxies_from
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.messages import Message, parse_message
from dragoman.wire.sse import SSEParser

Json: TypeAlias = dict[str, Any]
EventBatches: TypeAlias = AsyncGenerator[Sequence[events.Event], None]

MAX_RESPONSE = 64_000_000
RUNS_PAGE = 200  # the most that `GET /api/runs` returns at once
TRIGGERS_PAGE = 500  # the most that `GET /api/triggers` returns at once
TIMEOUTS = Timeouts(connect=5.0, first_byte=120.0, idle=300.0)
NO_HUB_HINT = "is it running? `dragoman serve` starts one, --hub or DRAGOMAN_HUB names another"
NOT_A_HUB_HINT = "another program may have the port; --hub or DRAGOMAN_HUB names the address of the hub"
NO_KEY_HINT = "`dragoman keys create --owner NAME` makes one; give it as DRAGOMAN_KEY"


class HubResponse(Protocol):
    """A response whose head has arrived. Use it in `async with`, or read it to the end."""

    @property
    def status(self) -> int: ...

    async def read(self, limit: int) -> bytes:
        """Return the whole body. ProviderError above `limit` bytes."""
        ...

    def iter_raw(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *failure: object) -> None: ...


class HubTransport(Protocol):
    """Carries requests to a hub's API: over HTTP (`HttpTransport`), or in this process (`AsgiTransport`)."""

    async def send(
        self, method: str, path: str, *, content_type: str | None, body: bytes | memoryview
    ) -> HubResponse:
        """Return the response as soon as its head has arrived. Unavailable when no hub answers."""
        ...

    async def close(self) -> None:
        """Release the connections."""
        ...


class HttpTransport:
    """Requests to the hub that runs at `url`, with a key."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """BadRequest when `url` is not an http or https URL."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise BadRequest(f"{url!r} is not the URL of a hub", hint="write it like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._transport = Transport(timeouts=TIMEOUTS, proxies=proxies_from(os.environ))

    async def send(
        self, method: str, path: str, *, content_type: str | None, body: bytes | memoryview
    ) -> HubResponse:
        """See `HubTransport.send`."""
        headers = {**self._headers, **({"content-type": content_type} if content_type else {})}
        try:
            return await self._transport.send(method, self.url + path, headers=headers, body=body)
        except ProviderError as error:
            raise Unavailable(f"No hub answers at {self.url}: {error.message}", hint=NO_HUB_HINT) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


class HubClient:
    """The API of a hub. Use it in `async with`; error responses are raised as the errors they name.

    With `all_owners`, lists and searches cover the sessions of all owners: for the operator of a data folder.
    """

    def __init__(self, transport: HubTransport, *, all_owners: bool = False) -> None:
        self._transport = transport
        self._owner = {"owner": "*"} if all_owners else {}

    @classmethod
    def over_http(cls, url: str, key: str | None = None) -> HubClient:
        """Return a client of the hub that runs at `url`. BadRequest when that is not a URL."""
        return cls(HttpTransport(url, key))

    async def __aenter__(self) -> HubClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        """Send a request and return the JSON value of its response; None for an empty one."""
        target = f"{path}?{urlencode(query)}" if query else path
        response = await self._send(method, target, body=body)
        raw = await response.read(MAX_RESPONSE)
        return msgspec.json.decode(raw) if raw else None

    async def sessions(self, limit: int = 50, *, filters: Mapping[str, str] | None = None) -> list[Json]:
        """List sessions, the last changed first; `filters` are query parameters of `GET /api/sessions`."""
        query = {"limit": str(limit), **self._owner, **(filters or {})}
        sessions: list[Json] = (await self.request("GET", "/api/sessions", query=query))["sessions"]
        return sessions

    async def session(self, id: str) -> Json:
        """Return a session's settings. NotFound."""
        session: Json = await self.request("GET", f"/api/sessions/{path_segment(id)}")
        return session

    async def change_session(self, id: str, body: Mapping[str, Any]) -> Json:
        """Change the fields of a session that the body has; return it. NotFound, Forbidden, BadRequest."""
        session: Json = await self.request("PATCH", f"/api/sessions/{path_segment(id)}", body=body)
        return session

    async def create_runner_session(self, id: str | None, *, title: str | None = None) -> Json:
        """Create a session that a runner answers. Conflict if the id is taken."""
        fields = {"id": id, "title": title}
        body = {name: value for name, value in fields.items() if value is not None}
        session: Json = await self.request("POST", "/api/sessions", body={**body, "runner": True})
        return session

    async def messages(self, id: str) -> list[Message]:
        """Return a session's messages, oldest first. NotFound."""
        response = await self.request("GET", f"/api/sessions/{path_segment(id)}/messages")
        return [parse_message(message) for message in response["messages"]]

    async def search(self, words: str, *, session: str | None = None, limit: int = 20) -> Json:
        """Search messages, in one session or in all; return the response of `GET /api/search`."""
        query = {"q": words, "limit": str(limit)}
        query |= self._owner if session is None else {"session": session}
        results: Json = await self.request("GET", "/api/search", query=query)
        return results

    async def chat(self, body: Mapping[str, Any]) -> EventBatches:
        """Send a chat request and yield the events of its answer."""
        async with await self._send("POST", "/api/chat?sdk=7", body=body) as response:
            async for batch in read_events(response):
                yield batch

    async def resume(self, id: str) -> EventBatches:
        """Yield the events of the session's active answer from its beginning; none without an active run."""
        async with await self._send("GET", f"/api/chat/{path_segment(id)}/stream?sdk=7") as response:
            async for batch in read_events(response):
                yield batch

    async def export_session(self, id: str, format: str) -> AsyncGenerator[bytes, None]:
        """Yield a session as a file. NotFound; Unavailable without a running hub."""
        path = f"/api/sessions/{path_segment(id)}/export?{urlencode({'format': format})}"
        async with await self._send("GET", path) as response, aclosing(response.iter_raw()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def import_sessions(self, file: memoryview, *, id: str | None) -> Json:
        """Create the sessions of a file. BadRequest, Conflict; Unavailable without a running hub."""
        path = "/api/sessions/import" if id is None else f"/api/sessions/import?{urlencode({'id': id})}"
        response = await self._transport.send("POST", path, content_type="application/json", body=file)
        raw = await read_success(response)
        created: Json = msgspec.json.decode(raw)
        return created

    async def links(self, id: str) -> list[Json]:
        """List the links to a session. NotFound."""
        found: list[Json] = (await self.request("GET", f"/api/sessions/{path_segment(id)}/share"))["shares"]
        return found

    async def create_link(self, id: str, body: Mapping[str, Any]) -> Json:
        """Create a link to a session. NotFound."""
        link: Json = await self.request("POST", f"/api/sessions/{path_segment(id)}/share", body=body)
        return link

    async def revoke_link(self, id: str, link: str) -> None:
        """Revoke a link. NotFound."""
        await self.request("DELETE", f"/api/sessions/{path_segment(id)}/share/{path_segment(link)}")

    async def grants(self, id: str) -> Json:
        """Return who else may use a session; the response of `GET /api/sessions/{id}/grants`. NotFound."""
        grants: Json = await self.request("GET", f"/api/sessions/{path_segment(id)}/grants")
        return grants

    async def grant(self, id: str, body: Mapping[str, str]) -> Json:
        """Let another owner or a key use a session; return all its grants. NotFound, Forbidden."""
        grants: Json = await self.request("PUT", f"/api/sessions/{path_segment(id)}/grants", body=body)
        return grants

    async def revoke_grant(self, id: str, grantee: Mapping[str, str]) -> None:
        """Revoke the grant to `owner` or `key`. NotFound, Forbidden."""
        await self.request("DELETE", f"/api/sessions/{path_segment(id)}/grants", query=grantee)

    async def start_run(self, body: Mapping[str, Any]) -> Json:
        """Send a chat request that is answered in the background; return the ids of its run and session."""
        started: Json = await self.request("POST", "/api/chat", body={**body, "background": True})
        return started

    async def runs(self, query: Mapping[str, str], *, limit: int) -> list[Json]:
        """List runs that match, the newest first. Reads further pages until there are `limit` runs."""
        page = {**query, "limit": str(RUNS_PAGE if "state" in query else limit)}
        found: list[Json] = []
        while True:
            response = await self.request("GET", "/api/runs", query=page)
            found += response["runs"]
            if response["next"] is None or len(found) >= limit:
                return found[:limit]
            page["before"] = response["next"]

    async def triggers(self, query: Mapping[str, str], *, limit: int | None = None) -> list[Json]:
        """List triggers that match, by team and name, page by page; all of them without a limit."""
        page = {**query, "limit": str(min(limit or TRIGGERS_PAGE, TRIGGERS_PAGE))}
        found: list[Json] = []
        while True:
            response = await self.request("GET", "/api/triggers", query=page)
            found += response["triggers"]
            if response["next"] is None or (limit is not None and len(found) >= limit):
                return found[:limit]
            page["after"] = response["next"]

    async def run(self, id: str) -> Json:
        """Return one run with its answer so far. NotFound."""
        run: Json = await self.request("GET", f"/api/runs/{path_segment(id)}")
        return run

    async def stop_run(self, id: str) -> bool:
        """Stop a run. False when it was not active. NotFound; Unavailable without a running hub."""
        return bool((await self.request("POST", f"/api/runs/{path_segment(id)}/stop"))["stopped"])

    async def stop(self, id: str) -> None:
        """Stop the session's run."""
        await self.request("POST", f"/api/chat/{path_segment(id)}/stop")

    async def approvals(self, status: str | None, *, limit: int) -> list[Json]:
        """List approvals, the newest first; of any status for None."""
        query = {"limit": str(limit), **({} if status is None else {"status": status})}
        approvals: list[Json] = (await self.request("GET", "/api/approvals", query=query))["approvals"]
        return approvals

    async def approval(self, id: str, *, compare: bool = False) -> Json:
        """Return an approval; `compare` adds what each operation was approved for last. NotFound."""
        query = {"compare": "1"} if compare else None
        approval: Json = await self.request("GET", f"/api/approvals/{path_segment(id)}", query=query)
        return approval

    async def decide(self, id: str, *, approved: bool, reason: str | None = None) -> Json:
        """Approve or deny a call. NotFound, Forbidden, Conflict."""
        body = {"approved": approved, "reason": reason}
        approval: Json = await self.request("POST", f"/api/approvals/{path_segment(id)}", body=body)
        return approval

    async def answer(self, id: str, text: str) -> Json:
        """Answer a question. BadRequest for an approval that is not a question; else as `decide`."""
        path = f"/api/approvals/{path_segment(id)}"
        approval: Json = await self.request("POST", path, body={"answer": text})
        return approval

    async def always_allow(self, approval_id: str) -> list[Json]:
        """Add standing rules for what an approval asks about, and return them."""
        body = {"approvalId": approval_id}
        rules: list[Json] = (await self.request("POST", "/api/policy/rules", body=body))["rules"]
        return rules

    async def policy_rules(self) -> list[Json]:
        """Return the standing rules."""
        rules: list[Json] = (await self.request("GET", "/api/policy/rules"))["rules"]
        return rules

    async def revoke_rule(self, id: str) -> None:
        """Revoke a standing rule."""
        await self.request("DELETE", f"/api/policy/rules/{path_segment(id)}")

    async def export_call(self, id: str) -> AsyncGenerator[bytes, None]:
        """Yield a run or a call with all below it as JSON lines. NotFound."""
        path = f"/api/calls/{path_segment(id)}/export"
        async with await self._send("GET", path) as response, aclosing(response.iter_raw()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def calls(self, query: Mapping[str, str]) -> Json:
        """List calls that match, the newest first; return the response of `GET /api/calls`."""
        calls: Json = await self.request("GET", "/api/calls", query=query)
        return calls

    async def call(self, id: str) -> Json:
        """Return one call with its input and result. NotFound."""
        call: Json = await self.request("GET", f"/api/calls/{path_segment(id)}")
        return call

    async def call_tree(self, id: str, *, since: str = "") -> Json:
        """Return the tree of a run or a call; without its nodes if its version is still `since`."""
        path = f"/api/calls/{path_segment(id)}/tree"
        tree: Json = await self.request("GET", path, query={"since": since})
        return tree

    async def abort(self, id: str) -> bool:
        """Stop a run or a call. False when it was not active. Unavailable without a running hub."""
        return bool((await self.request("POST", f"/api/calls/{path_segment(id)}/abort"))["aborted"])

    async def operations(self, **query: str | None) -> Json:
        """List operations, or with `q` search them; return the response of `GET /api/operations`."""
        found: Json = await self.request(
            "GET", "/api/operations", query={name: value for name, value in query.items() if value}
        )
        return found

    async def operation(self, id: str) -> Json:
        """Return an operation with its JSON Schemas. NotFound."""
        operation: Json = await self.request("GET", f"/api/operations/{path_segment(id)}")
        return operation

    async def call_operation(self, id: str, input: Any, *, approval: str | None = None) -> Json:
        """Call an operation, with an approval if it needs one; return the outcome, also when it failed."""
        path = f"/api/operations/{path_segment(id)}/call"
        query = {"approval": approval} if approval else None
        outcome: Json = await self.request("POST", path, query=query, body=input)
        return outcome

    async def hosts(self) -> list[Json]:
        """List the processes that share the hub's database. Unavailable without a running hub."""
        hosts: list[Json] = (await self.request("GET", "/api/hosts"))["hosts"]
        return hosts

    async def drain_host(self, id: str) -> Json:
        """Drain a host: it begins no more runs. Return it. NotFound."""
        host: Json = await self.request("POST", f"/api/hosts/{path_segment(id)}/drain")
        return host

    async def keys(self) -> list[Json]:
        """List all keys, the oldest first, without their secrets."""
        keys: list[Json] = (await self.request("GET", "/api/keys"))["keys"]
        return keys

    async def api_key(self, id: str) -> Json:
        """Return a key. NotFound."""
        key: Json = await self.request("GET", f"/api/keys/{path_segment(id)}")
        return key

    async def create_key(self, body: Mapping[str, Any]) -> Json:
        """Create a key; its field `key` is the secret. BadRequest."""
        key: Json = await self.request("POST", "/api/keys", body=body)
        return key

    async def change_key(self, id: str, body: Mapping[str, Any]) -> Json:
        """Change the fields of a key that the body has. NotFound, BadRequest."""
        key: Json = await self.request("PATCH", f"/api/keys/{path_segment(id)}", body=body)
        return key

    async def rotate_key(self, id: str, grace: float) -> Json:
        """Give a key a new secret (field `key`); the old one stays valid for `grace` seconds. NotFound."""
        key: Json = await self.request("POST", f"/api/keys/{path_segment(id)}/rotate", body={"grace": grace})
        return key

    async def revoke_key(self, id: str) -> None:
        """Revoke a key. NotFound."""
        await self.request("DELETE", f"/api/keys/{path_segment(id)}")

    async def tokens(self, limit: int) -> list[Json]:
        """List session tokens that have not expired, the newest first."""
        tokens: list[Json] = (await self.request("GET", "/api/tokens", query={"limit": str(limit)}))["tokens"]
        return tokens

    async def create_token(self, body: Mapping[str, Any]) -> Json:
        """Create a session token; its field `token` is the secret. BadRequest, Forbidden, RateLimited."""
        token: Json = await self.request("POST", "/api/tokens", body=body)
        return token

    async def revoke_token(self, id: str) -> None:
        """Revoke a session token. NotFound."""
        await self.request("DELETE", f"/api/tokens/{path_segment(id)}")

    async def revoke_tokens(self, owner: str) -> int:
        """Revoke the tokens of an app's user; return how many there were."""
        return int((await self.request("DELETE", "/api/tokens", query={"owner": owner}))["revoked"])

    async def events(
        self, query: Mapping[str, str], *, on_open: Callable[[], None]
    ) -> AsyncGenerator[Json, None]:
        """Yield events of sessions, as `GET /api/events` sends them; `on_open` is called before the first.

        Raises Unavailable without a running hub.
        """
        parser = SSEParser()
        path = f"/api/events?{urlencode(query)}"
        async with await self._send("GET", path) as response, aclosing(response.iter_raw()) as chunks:
            on_open()
            async for raw in chunks:
                for frame in parser.feed(raw):
                    yield msgspec.json.decode(frame)

    async def usage(self, query: Mapping[str, str]) -> Json:
        """Return the usage report of `GET /api/usage`."""
        report: Json = await self.request("GET", "/api/usage", query=query)
        return report

    async def usage_csv(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the usage report as CSV, page by page."""
        path = f"/api/usage?{urlencode({**query, 'format': 'csv'})}"
        async with await self._send("GET", path) as response, aclosing(response.iter_raw()) as pages:
            async for page in pages:
                yield page

    async def _send(self, method: str, path: str, *, body: Any = None) -> HubResponse:
        payload = b"" if body is None else msgspec.json.encode(body)
        content_type = "application/json" if payload else None
        response = await self._transport.send(method, path, content_type=content_type, body=payload)
        if response.status >= 400:
            raise error_from(response.status, await response.read(MAX_RESPONSE))
        return response


async def read_success(response: HubResponse) -> bytes:
    """Return the body of a response. Raises the error of an error response."""
    raw = await response.read(MAX_RESPONSE)
    if response.status >= 400:
        raise error_from(response.status, raw)
    return raw


async def read_events(response: HubResponse) -> EventBatches:
    """Yield the events of a stream, one batch per read."""
    parser = SSEParser()
    async with aclosing(response.iter_raw()) as chunks:
        async for raw in chunks:
            if batch := [decode_event(frame) for frame in parser.feed(raw) if frame != b"[DONE]"]:
                yield batch


def decode_event(frame: bytes) -> events.Event:
    """Decode an event of a stream. WireError."""
    try:
        return events.decode(frame)
    except DECODE_ERRORS as error:
        raise WireError(
            f"The hub sent an unknown event: {error}", hint="check that its version is the same"
        ) from None


def error_from(status: int, raw: bytes) -> DragomanError:
    """Build the error that an error response describes."""
    try:
        error = msgspec.json.decode(raw)["error"]
        message, hint = str(error["message"]), error.get("hint")
    except (KeyError, TypeError, *DECODE_ERRORS):
        message, hint = f"What answers at this address is not a hub (status {status}).", NOT_A_HUB_HINT
    if status == 401:
        hint = f"{hint}; this command reads it from DRAGOMAN_KEY" if hint else NO_KEY_HINT
    return error_for_status(status, message, hint=hint)
