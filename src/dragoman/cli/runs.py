"""`dragoman run` and `dragoman runs`: start a run, list runs, follow one, stop one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.calls import compact_json
from dragoman.cli.chat.command import read_message
from dragoman.cli.completion import agent_names, model_names, run_ids, session_ids
from dragoman.cli.hub_client.connect import HubTarget, connect, run_with_client
from dragoman.cli.options import DEFAULT_DATA, DEFAULT_HUB, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.cli.chat.renderer import EventRenderer
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]
POLL_SECONDS = 0.25
EXIT_CODES: Mapping[str, int] = {"failed": 1, "interrupted": 1, "aborted": 130}
runs = typer.Typer(no_args_is_help=True, help="Runs: answers that are made or were made; follow, stop.")
Id = Annotated[str, typer.Argument(metavar="ID", autocompletion=run_ids, help="A run.")]
commands = typer.Typer()
EPILOG = examples(
    ("dragoman run 'What time is it in Lisbon?'", "streams the answer to stdout"),
    ("dragoman run 'Write the report.' --session report --detach", "prints the run's id, and returns"),
    ("git diff | dragoman run --agent reviewer", "the question from a pipe"),
)


@commands.command("run", epilog=EPILOG)
def run(
    *,
    question: Annotated[str | None, typer.Argument(help="The question; read from stdin without it.")] = None,
    hub: Hub = None,
    key: Key = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", autocompletion=session_ids, help="The session; a new one by default."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", autocompletion=agent_names, help="The agent that answers.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(autocompletion=model_names, help="`provider/model`, instead of the hub's choice."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave the run to the hub.")] = False,
    json: AsJson = False,
) -> None:
    """Ask a running hub one question.

    The answer is streamed; Ctrl-C stops it. With --detach the hub makes it in the background: the run's id is
    printed once the question is stored, and the run continues without this command.
    """
    from dragoman.cli.chat.modes import ChatTarget, run_turn  # late: drawing takes 0.1 s

    target = ChatTarget(hub or DEFAULT_HUB, key, session=session, model=model, agent=agent)
    text = read_message(question)
    if not detach:
        raise typer.Exit(run_turn(target, text, as_json=json))
    from dragoman.cli.chat.session import chat_request, new_session_id  # late: as above

    body = chat_request(text, session=session or new_session_id(), model=model, agent=agent)
    started = run_with_client(HubTarget(target.hub, key), lambda client: client.start_run(body))
    if json:
        print_json(started)
        return
    print_line(started["runId"])
    print_note(f"session {started['sessionId']}; `dragoman runs follow {started['runId']}` prints the answer")


@runs.command(
    "list",
    epilog=examples(
        ("dragoman runs list", "the last ones in .dragoman, of all owners"),
        ("dragoman runs list --state running --hub http://127.0.0.1:8000", "yours, in a running hub"),
    ),
)
def list_runs(
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only of this session.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Only these: queued, running, waiting, done, failed, aborted, interrupted."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of rows.")] = 50,
    json: AsJson = False,
) -> None:
    """List runs, the newest first. Queued ones are listed by --state queued."""
    filters = {"session": session, "state": state}
    query = {name: value for name, value in filters.items() if value is not None}
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.runs(query, limit=limit))
    if json:
        print_json({"runs": found})
        return
    if not found:
        print_note("no run matches")
        return
    print_table(
        ("ID", "BEGAN", "STATE", "STEPS", "SESSION", "MODEL"),
        [
            (
                each["id"],
                "-" if each["startedAt"] is None else format_age(each["startedAt"]),
                each["state"],
                str(each["steps"]),
                each["sessionId"],
                each["model"] or "-",
            )
            for each in found
        ],
    )


@runs.command("show", epilog=examples(("dragoman runs show run_01", "its state, usage, cost and answer")))
def show(
    id: Id, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Show one run with its answer so far."""
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.run(id))
    if json:
        print_json(found)
        return
    for name, value in found.items():
        if name != "message" and value not in (None, [], {}):
            print_line(f"{name:<13} {value if isinstance(value, str) else compact_json(value)}")
    if text := answer_text(found):
        print_line(f"\n{text}")


@runs.command(
    "follow", epilog=examples(("dragoman runs follow run_01", "its answer from the beginning, as it is made"))
)
def follow(id: Id, *, hub: Hub = DEFAULT_HUB, key: Key = None) -> None:
    """Print the answer of a run as it is made, or whole if it has ended; Ctrl-C leaves the run active.

    The exit code is 0 when it is done or waits for somebody, 1 when it failed, 130 when it was stopped.
    """
    raise typer.Exit(asyncio.run(_follow(HubTarget(hub, key), id)))


@runs.command("stop", epilog=examples(("dragoman runs stop run_01", "what it has said so far is stored")))
def stop(id: Id, *, hub: Hub = DEFAULT_HUB, key: Key = None) -> None:
    """Stop a run in a running hub, or withdraw one that is queued."""
    if not run_with_client(HubTarget(hub, key), lambda client: client.stop_run(id)):
        print_note(f"{id} is not active; nothing was stopped")
        raise typer.Exit(1)
    print_line(f"{id} was stopped")


async def _follow(target: HubTarget, id: str) -> int:
    """Print a run's answer and return the exit code."""
    from dragoman.cli.chat.renderer_choice import make_renderer  # late: drawing takes 0.1 s

    is_noted = False
    async with connect(target) as client:
        while (run := await client.run(id))["state"] in ("queued", "running"):
            if run["state"] == "queued" and not is_noted:
                print_note("it is queued")
                is_noted = True
            screen = make_renderer()
            if run["state"] == "running" and await stream_answer(client, run, screen=screen):
                return end_code(id, rendered_state(screen), error=None)
            await asyncio.sleep(POLL_SECONDS)
    if text := answer_text(run):
        print_line(text)
    return end_code(id, run["state"], error=run["error"])


async def stream_answer(client: HubClient, run: Json, *, screen: EventRenderer) -> bool:
    """Print the answer of an active run; False if the session's stream is not that of this run.

    Between the two requests the run may end and the next one of the session begin.
    """
    from dragoman.cli.chat.renderer_choice import drawn_on  # late: as above
    from dragoman.events import Start  # late: as above

    is_shown = False
    async with drawn_on(screen, client.resume(run["sessionId"])) as batches:
        async for batch in batches:
            if any(isinstance(each, Start) and each.message_id != run["messageId"] for each in batch):
                return False
            screen.render(batch)
            is_shown = True
    if is_shown and screen.reason is None and not screen.failed:
        raise DragomanError(
            "the stream ended during the answer; the hub may still continue it",
            hint=f"`dragoman runs follow {run['id']}` follows it again",
        )
    return is_shown


def rendered_state(screen: EventRenderer) -> str:
    """Return the state of a run whose end was rendered."""
    if screen.failed:
        return "failed"
    if screen.reason == "aborted":
        return "aborted"
    return "waiting" if screen.waiting else "done"


def end_code(id: str, state: str, *, error: str | None) -> int:
    """Return the exit code for a run's state; unless it is done, print on stderr how it ended."""
    if state == "waiting":
        print_note(f"{id} waits for an approval or an answer; `dragoman approvals list` shows it")
    elif state != "done":
        print_note(f"{id} is {state}" + (f": {error}" if error else ""))
    return EXIT_CODES.get(state, 0)


def answer_text(run: Json) -> str:
    """Return the text of a run's answer so far."""
    parts = (run["message"] or {}).get("parts", ())
    return "\n\n".join(part["text"] for part in parts if part["type"] == "text" and part["text"])
