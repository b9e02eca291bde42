"""`dragoman teams tail`: what teams do, as it happens."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer

from dragoman.cli.access.question_prompt import spell_invisible
from dragoman.cli.hub_client.connect import HubTarget, connect
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import escape_controls, examples, print_line, print_note, truncate
from dragoman.errors import DragomanError, NotFound, Unavailable

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]
NAMES = "task.,call.,approval.,trigger.,run.started,run.ended"
RETRY_SECONDS = 1.0
MAX_RETRIES = 60
META_TOOLS = "hub."  # the prefix of their ids; what they call has events of its own

commands = typer.Typer()


@commands.command(
    "tail",
    epilog=examples(
        ("dragoman teams tail", "tasks, calls, approvals and triggers of all teams, as they happen"),
        ("dragoman teams tail press", "of one team"),
        ("dragoman teams tail --after 1742", "from an event on, such as the last one that was seen"),
    ),
)
def tail(
    team: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this team.")] = None,
    *,
    after: Annotated[
        str | None, typer.Option(metavar="EVENT", help="Begin after this event instead of now.")
    ] = None,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Follow what the teams of a running hub do, until Ctrl-C.

    When the connection breaks, it reconnects and continues after the last event. With --json each event is
    a line of JSON.
    """
    feed = TeamTail(team, as_json=json, after=after)
    try:
        asyncio.run(feed.run(HubTarget(hub or DEFAULT_HUB, key)))
    finally:
        if feed.last is not None:
            print_note(f"`dragoman teams tail --after {feed.last}` continues from here")


class TeamTail:
    """Prints events of teams. `last` is the id of the last event that was read."""

    def __init__(self, team: str | None, *, as_json: bool, after: str | None) -> None:
        self.last = after
        self._team = team
        self._as_json = as_json
        self._is_open = False
        self._failures = 0
        self._names: set[str] = set()
        self._teams: dict[str, str | None] = {}
        """The teams that answer sessions, by session."""

    async def run(self, target: HubTarget) -> None:
        """Print until cancelled. Raises Unavailable when the hub cannot be reached for a minute."""
        async with connect(target) as client:
            found = (await client.request("GET", "/api/teams"))["teams"]
            self._names = {each["name"] for each in found}
            if self._team not in (None, *self._names):
                names = ", ".join(sorted(self._names)) or "none"
                raise NotFound(f"there is no team {self._team!r}; the teams are: {names}")
            async for event in self.read_events(client):
                team = await self._find_team(client, event)
                if team is not None and self._team in (None, team):
                    self._print(event, team)

    async def read_events(self, client: HubClient) -> AsyncIterator[Json]:
        """Yield events; connect again when a connection ends."""
        while True:
            try:
                async for event in self._read(client):
                    yield event
            except Unavailable:
                self._failures += 1
                if self._failures > MAX_RETRIES or not self._is_open:
                    raise
            print_note("the connection was lost; reconnecting")
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, client: HubClient) -> AsyncIterator[Json]:
        """Yield the events of one connection, from after the last event that was read."""
        query = {"name": NAMES} | ({} if self.last is None else {"after": self.last})
        async with aclosing(client.events(query, on_open=self._opened)) as events:
            async for event in events:
                yield event
                self.last = event.get("id") or self.last

    def _opened(self) -> None:
        self._is_open = True
        self._failures = 0
        print_note("following; Ctrl-C ends it")

    async def _find_team(self, client: HubClient, event: Json) -> str | None:
        """Return the team that an event is about; None if it is about none."""
        body, session = event["data"], event.get("sessionId")
        if event["name"] == "reset":
            print_note("events may be missing before this")
            return None
        if "team" in body:
            if body.get("sessionId"):
                self._teams[body["sessionId"]] = str(body["team"])
            return str(body["team"])
        if session is None:
            return None
        if session not in self._teams:
            self._teams[session] = await self._read_team(client, session)
        if event["name"] == "run.started" and body.get("agent") in self._names:
            self._teams[session] = body["agent"]  # a chat may name an agent that its session does not
        return self._teams[session]

    async def _read_team(self, client: HubClient, session: str) -> str | None:
        """Return the team that answers a session; None if none does, or the session cannot be read."""
        try:
            agent: str | None = (await client.session(session))["agent"]
        except DragomanError:
            return None
        return agent if agent in self._names else None

    def _print(self, event: Json, team: str) -> None:
        if self._as_json:
            typer.echo(escape_controls(msgspec.json.encode({**event, "team": team}).decode()))
            sys.stdout.flush()
            return
        line = describe(event)
        if line is not None:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            time = f"{datetime.fromtimestamp(event['createdAt'], UTC).astimezone():%H:%M:%S}"
            print_line(truncate(spell_invisible(f"{time} {team:<12} {line}"), width))
            sys.stdout.flush()


def describe(event: Mapping[str, Any]) -> str | None:
    """Describe an event on one line; None for an event that tells nothing new to a reader of the others."""
    kind, _, what = str(event["name"]).partition(".")
    body = event["data"]
    match kind:
        case "task":
            source = " by a trigger" if what == "queued" and body.get("source") == "trigger" else ""
            state = body["state"] if what == "ended" else what
            return with_error(f"task {body['taskId']} {state}{source}", body)
        case "call":
            if what == "started" or str(body["operation"]).startswith(META_TOOLS):
                return None
            return with_error(f"  call {body['operation']} {body.get('status')}", body)
        case "approval":
            answer = "asks a person" if what == "requested" else body["status"]
            return f"  {body['operation']} {answer} ({body['approvalId']})"
        case "trigger":
            return f"trigger {body.get('name')} {what}: {body.get('reason') or '-'}"
        case "run" if what == "ended" and body.get("status") != "finished":
            return with_error(f"  run {body['runId']} {body['status']}", body)
        case _:
            return None


def with_error(line: str, body: Mapping[str, Any]) -> str:
    """Return a line with the error of its event, if there is one."""
    return f"{line}: {body['error']}" if body.get("error") else line
