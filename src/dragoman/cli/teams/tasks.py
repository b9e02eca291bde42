"""`dragoman teams run|tasks|pause|resume`: give tasks to teams, list and cancel them, pause teams."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.access.question_prompt import spell_invisible
from dragoman.cli.chat.command import read_message
from dragoman.cli.hub_client.connect import HubTarget, connect, run_with_client
from dragoman.cli.hub_client.url_quoting import path_segment
from dragoman.cli.options import DEFAULT_DATA, DEFAULT_HUB, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.errors import DragomanError
from dragoman.events import StartStep, TextDelta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dragoman.cli.chat.renderer import EventRenderer
    from dragoman.cli.hub_client.client import HubClient
    from dragoman.events import Event

Json: TypeAlias = dict[str, Any]
TeamName: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The team.")]
POLL_SECONDS = 0.25
ENDED = ("done", "failed", "cancelled")
EXIT_CODES: Mapping[str, int] = {"done": 0, "failed": 1, "cancelled": 130}
EXIT_LEFT = 130
WAITING_NOTES: Mapping[str, str] = {"queued": "it waits in the queue of its team", "waiting": "it waits"}

commands = typer.Typer()


@commands.command(
    "run",
    epilog=examples(
        ("dragoman teams run press 'Write a note on the release.'", "follows it; stdout is the result alone"),
        ("dragoman teams run press 'Check the links.' --detach", "prints the task's id, and returns"),
        ("git log -5 | dragoman teams run press", "the task from a pipe"),
    ),
)
def run(
    name: TeamName,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="What it is to do; read from stdin without it.")
    ] = None,
    *,
    priority: Annotated[str, typer.Option(help="low, normal, high or critical.")] = "normal",
    overlap: Annotated[
        str, typer.Option(help="While a task like it is active: allow, skip, queue or replace.")
    ] = "allow",
    topic: Annotated[str | None, typer.Option(help="A conversation of the team that it belongs to.")] = None,
    budget: Annotated[float | None, typer.Option(metavar="USD", help="What it may cost.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long it may take, with its wait.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave the task to the hub.")] = False,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Give a task to a team of a running hub, follow it, and print its result.

    What it does is shown while it works; stdout gets the result alone. Ctrl-C cancels it, with all below it;
    a second one leaves it to the hub. The exit code is 0 when it is done, 1 when it failed, 130 when it was
    cancelled.
    """
    fields: Json = {"priority": priority, "overlap": overlap, "topic": topic, "budget": budget}
    body: Json = {"team": name, "task": read_message(task), **fields, "seconds": seconds}
    body = {field: value for field, value in body.items() if value is not None}
    raise typer.Exit(asyncio.run(_run(HubTarget(hub or DEFAULT_HUB, key), body, detach=detach, as_json=json)))


async def _run(target: HubTarget, body: Json, *, detach: bool, as_json: bool) -> int:
    """Give a task and, unless it is left to the hub, follow it; return the exit code."""
    async with connect(target) as client:
        submitted = await client.request("POST", "/api/tasks", body=body)
        if not submitted["isNew"]:
            print_note(f"a task like it is active: {submitted['id']}")
        if detach:
            print_json(submitted) if as_json else print_line(submitted["id"])
            return 0
        print_note(f"task {submitted['id']}")
        follower = TaskFollower(client, submitted["id"])
        task = await follower.follow()
    if task is None:
        print_note(f"left; `dragoman teams tasks {submitted['id']}` shows it")
        return EXIT_LEFT
    if as_json:
        print_json(task)
    elif task["result"] and not follower.has_shown(task["result"]):
        print_line(task["result"])
    print_end(task)
    return EXIT_CODES[task["state"]]


def print_end(task: Json) -> None:
    """Print on stderr what stdout does not show of a task that has ended."""
    if task["artifact"]:
        print_note(f"the result is cut; the artifact {task['artifact']} has all of it")
    if task["state"] != "done":
        print_note(f"{task['id']} is {task['state']}" + (f": {task['error']}" if task["error"] else ""))


class TaskFollower:
    """Shows what a task does until it has ended: on stderr, but its text on stdout if that is a terminal."""

    def __init__(self, client: HubClient, id: str) -> None:
        self._client = client
        self._id = id
        self._text = ""
        """The text of the last step that was shown."""
        self._state = ""
        """The state at the last poll."""
        self._same_polls = 0
        """How many polls before the last one, in a row, found that state too."""

    async def follow(self) -> Json | None:
        """Return the task as it ended; None when the user leaves. The first Ctrl-C cancels the task."""
        from dragoman.cli.chat.session import on_interrupt  # late: --help needs none of these

        following = asyncio.ensure_future(self._follow())
        cancelling: list[asyncio.Task[Any]] = []

        def interrupt() -> None:
            if cancelling:
                following.cancel()
            else:
                print_note("cancelling …")
                cancelling.append(asyncio.create_task(self._cancel()))

        with on_interrupt(interrupt):
            await asyncio.wait([following])
            await asyncio.gather(*cancelling, return_exceptions=True)
        return None if following.cancelled() else following.result()

    def has_shown(self, result: str) -> bool:
        """Return whether a terminal shows this result already."""
        return sys.stdout.isatty() and self._text.strip() == result.strip()

    async def _cancel(self) -> None:
        await self._client.request("POST", f"/api/tasks/{path_segment(self._id)}/cancel")

    async def _follow(self) -> Json:
        from dragoman.cli.chat.renderer_choice import renderer_for  # late: as above

        shown: str | None = None
        while (task := await self._read())["state"] not in ENDED:
            self._note(task)
            if task["state"] == "running" and task["runId"] != shown:
                text = sys.stdout if sys.stdout.isatty() else sys.stderr
                if await self._show_run(task, renderer_for(text, sys.stderr)):
                    shown = task["runId"]
            await asyncio.sleep(POLL_SECONDS)
        return task

    async def _read(self) -> Json:
        found: Json = await self._client.request("GET", f"/api/tasks/{path_segment(self._id)}")
        return found

    async def _show_run(self, task: Json, screen: EventRenderer) -> bool:
        """Show the active answer of a task; return whether there was one."""
        from dragoman.cli.chat.renderer_choice import drawn_on  # late: as above

        is_shown = False
        try:
            async with drawn_on(screen, self._client.resume(task["sessionId"])) as batches:
                async for batch in batches:
                    screen.render(batch)
                    self._note_text(batch)
                    is_shown = True
        except DragomanError as error:  # the task's state says what became of it
            print_note(error.message)
        for approval, call in screen.waiting.items():
            print_note(f"{spell_invisible(call)} waits for a person: dragoman approvals show {approval}")
        return is_shown

    def _note_text(self, batch: Sequence[Event]) -> None:
        for event in batch:
            match event:
                case StartStep():
                    self._text = ""
                case TextDelta():
                    self._text += event.delta
                case _:
                    pass

    def _note(self, task: Json) -> None:
        """Print why a task makes no progress, when a second poll in a row finds it waiting."""
        self._same_polls = self._same_polls + 1 if task["state"] == self._state else 0
        self._state = task["state"]
        if self._same_polls == 1 and self._state in WAITING_NOTES:
            print_note(WAITING_NOTES[self._state])


@commands.command(
    "tasks",
    epilog=examples(
        ("dragoman teams tasks", "the last ones in .dragoman, of all owners"),
        ("dragoman teams tasks --team press --state queued", "what waits for a team"),
        ("dragoman teams tasks task_4f", "one task, with its result"),
        ("dragoman teams tasks task_4f --cancel", "stop it, with all below it"),
    ),
)
def list_tasks(
    id: Annotated[str | None, typer.Argument(metavar="TASK", help="Show this task.")] = None,
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop it, with all below it.")] = False,
    team: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this team.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only these: queued, running, waiting, done, failed, cancelled.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of rows.")] = 50,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """List tasks, the newest first; show or cancel one."""
    target = HubTarget(hub, key, data)
    if id is None:
        if cancel:
            raise typer.BadParameter("name the task to cancel")
        filters = {"team": team, "state": state, "limit": str(limit)}
        query = {name: value for name, value in filters.items() if value is not None}
        found = run_with_client(target, lambda client: client.request("GET", "/api/tasks", query=query))
        print_json(found) if json else print_tasks(found["tasks"])
        return
    path = f"/api/tasks/{path_segment(id)}" + ("/cancel" if cancel else "")
    task = run_with_client(target, lambda client: client.request("POST" if cancel else "GET", path))
    print_json(task) if json else print_task(task)


def print_tasks(found: list[Json]) -> None:
    """Print tasks as a table."""
    if not found:
        print_note("no task matches")
        return
    rows = [
        (
            each["id"],
            each["team"],
            each["state"],
            format_age(each["createdAt"]),
            spell_invisible(each["task"]),
        )
        for each in found
    ]
    print_table(("ID", "TEAM", "STATE", "GIVEN", "WHAT IT DOES"), rows)


def print_task(task: Json) -> None:
    """Print one task, its result last."""
    for name, value in task.items():
        if name != "result" and value not in (None, [], False):
            shown = " > ".join(value) if isinstance(value, list) else str(value)
            print_line(f"{name:<14} {spell_invisible(shown)}")
    if task["result"]:
        print_line(f"\n{task['result']}")


@commands.command(
    "pause", epilog=examples(("dragoman teams pause press", "it begins no task until it is resumed"))
)
def pause(
    name: TeamName, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Pause a team: it starts no tasks until it is resumed; running tasks continue."""
    change_pause(HubTarget(hub, key, data), name, action="pause", as_json=json)


@commands.command("resume", epilog=examples(("dragoman teams resume press", "it begins what has waited")))
def resume(
    name: TeamName, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Resume a paused team."""
    change_pause(HubTarget(hub, key, data), name, action="resume", as_json=json)


def change_pause(target: HubTarget, name: str, *, action: str, as_json: bool) -> None:
    """Pause or resume a team."""
    path = f"/api/teams/{path_segment(name)}/{action}"
    found = run_with_client(target, lambda client: client.request("POST", path))
    if as_json:
        print_json(found)
    else:
        print_note(f"{name} {'is paused' if found['paused'] else 'begins tasks again'}")
