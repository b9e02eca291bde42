"""`dragoman chat`: an interactive chat in the terminal, or one turn for a script."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from dragoman.cli.completion import agent_names, model_names, session_ids
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import examples

commands = typer.Typer()
EPILOG = examples(
    ("dragoman chat", "chat with the hub at http://127.0.0.1:8000"),
    ("dragoman chat --session trip", "continue a session, also during an answer"),
    ("dragoman chat 'What time is it in Lisbon?' > answer.txt", "one turn; stdout is the answer alone"),
    ("git diff | dragoman chat --model up/any-model", "the message from a pipe"),
    ("dragoman chat --attach invoice.pdf 'What is the total?'", "with a file"),
)


@commands.command("chat", epilog=EPILOG)
def chat(
    *,
    message: Annotated[
        str | None, typer.Argument(help="One message; without it an interactive chat starts.")
    ] = None,
    hub: Hub = None,
    key: Key = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", autocompletion=session_ids, help="The session; a new one by default."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(autocompletion=model_names, help="`provider/model`, instead of the hub's choice."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(autocompletion=agent_names, help="The agent that answers.")
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A file that goes with the first message. May be repeated."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Chat with a running hub.

    The answer streams; reasoning is dimmed, tool calls are shown as they happen. Ctrl-C stops the answer and
    not the program. With a message, or with a pipe as input, it is one turn: exit code 0 when it went well, 1
    when it failed, 130 when it was stopped.
    """
    # late: --help needs none of it
    from dragoman.cli.chat.modes import ChatTarget, run_repl, run_turn

    place = ChatTarget(hub or DEFAULT_HUB, key, session=session, model=model, agent=agent, files=attach or ())
    if message is None and sys.stdin.isatty():
        asyncio.run(run_repl(place))
        return
    raise typer.Exit(run_turn(place, read_message(message), as_json=json))


def read_message(argument: str | None) -> str:
    """Return the message of the command line, else that of stdin. BadParameter when there is none."""
    is_piped = argument is None and not sys.stdin.isatty()
    text = sys.stdin.read() if is_piped else argument or ""
    if not text.strip():
        raise typer.BadParameter("no message was given; pass one as an argument or on stdin")
    return text
