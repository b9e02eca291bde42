"""The demonstration that `dragoman demo` runs: a hub, a question that needs tools, and what was stored."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import msgspec

from dragoman.cli import example_session
from dragoman.cli.chat.renderer import describe_answer, format_duration
from dragoman.cli.chat.renderer_choice import renderer_for
from dragoman.cli.chat.session import ChatSession
from dragoman.cli.config_discovery import local_config
from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.local import is_installed
from dragoman.cli.logging_setup import configure_logging
from dragoman.cli.serving.lifecycle import HostedHub, host_hub, watch_signals
from dragoman.cli.terminal import make_console, print_line
from dragoman.config import Config, ProviderConfig
from dragoman.errors import DragomanError
from dragoman.messages import Message, Part, ToolPart
from dragoman.server.console.pages import is_built as console_is_built
from dragoman.server.http.listener import bind_listener
from dragoman.session_ids import client_session_id
from dragoman.store.store import Store

OWNER = "demo"
QUESTIONS = ("What time is it in Lisbon, and what is 37 * 41?",)
LOCAL_QUESTIONS = ("What is 12 * 34?", "What time is it?")  # a small model handles one task at a time
LOCAL_MODEL_LABEL = "SmolLM2-135M, a real language model in a process here: small, and often wrong"
SIMULATOR_LABEL = (
    "SIMULATOR: no model; a script plays its part and makes up the token counts. The calls are real."
)
INSTALL_HINT = "`dragoman local install` brings a small real model"
INSTALL_LINE = "\n  dragoman local install                  a small real model, without a key"
KEEP_LINE = "\n  dragoman demo --keep                    this once more, with the web console"
NEXT_STEPS = """
Try next:{more}
  dragoman init                           write a dragoman.yaml for a provider of yours
  dragoman serve --no-auth                serve it, for this machine only
  dragoman chat                           talk to it, in another terminal
  dragoman ops list                       what it can call

A useChat front end needs its address only:
  useChat({{ transport: new DefaultChatTransport({{
    api: 'http://127.0.0.1:8000/api/chat', headers: {{ Authorization: 'Bearer dgm_…' }} }}) }})"""


class DemoSetup(msgspec.Struct, frozen=True):
    """The model of the demo, its label, and the questions."""

    config: Config
    label: str
    questions: Sequence[str]


def run_demo(*, scripted: bool, keep: bool) -> int:
    """Run the demo, return the exit code. A simulator replaces a local model that cannot be used."""
    configure_logging("error", as_json=False)
    print_line("Dragoman demo: a hub, a model, and a question that needs tools.\n")
    with demo_folder(keep=keep) as place:
        if is_installed() and not scripted:
            try:
                return asyncio.run(run_setup(local_model_setup(), place, keep=keep))
            except DragomanError as error:
                print_line(
                    f"\nThe local model cannot be used, so a simulator plays its part: {error.message}\n"
                )
        return asyncio.run(run_setup(simulator_setup(place), place, keep=keep))


@contextmanager
def demo_folder(*, keep: bool) -> Iterator[Path]:
    """Create a temporary folder; delete it at the end unless `keep` is set."""
    if keep:
        yield Path(mkdtemp(prefix="dragoman-demo-"))
        return
    with TemporaryDirectory(prefix="dragoman-demo-") as name:
        yield Path(name)


def local_model_setup() -> DemoSetup:
    """Set up the local model as `dragoman serve` without a configuration does."""
    return DemoSetup(local_config(), LOCAL_MODEL_LABEL, LOCAL_QUESTIONS)


def simulator_setup(folder: Path) -> DemoSetup:
    """Set up the simulator, with its script in `folder`."""
    script = folder / "demo.yaml"
    text = files("dragoman.cli").joinpath("demo.yaml").read_text(encoding="utf-8")
    script.write_text(text, encoding="utf-8")
    provider = ProviderConfig(type="scripted", script=str(script))
    label = SIMULATOR_LABEL if is_installed() else f"{SIMULATOR_LABEL}\n          {INSTALL_HINT}"
    return DemoSetup(Config(providers={"simulator": provider}, model="simulator/script"), label, QUESTIONS)


async def run_setup(setup: DemoSetup, folder: Path, *, keep: bool) -> int:
    data = folder / "data"
    async with host_hub(
        example_session.add_example(setup.config, folder),
        data,
        listener=bind_listener("127.0.0.1", 0),
        require_keys=True,
    ) as here:
        # With all scopes, so that every screen of the console works; the key ends with the demonstration.
        _, key = await here.hub.store.keys.create(
            OWNER, name="demo", scopes=("gateway", "chat", "operations", "admin")
        )
        print_line(f"  hub     {here.url}, started in this process; its data in {data}")
        print_line(f"  key     {key[:10]}…, made for the owner {OWNER!r}")
        print_line(f"  model   {setup.label}\n")
        done = await ask_questions(setup.questions, here, key=key)
        await play_examples(here, key)
        await here.hub.meter.ledger.flush()  # usage rows are written after the answer
        await print_stored(data)
        if done:
            more = ("" if is_installed() else INSTALL_LINE) + ("" if keep else KEEP_LINE)
            print_line(NEXT_STEPS.format(more=more))
        else:
            print_line("\nThe answer failed; `dragoman demo --scripted` shows the rest without a model.")
        if keep:
            await print_console(here, key)
            await serve_until_interrupted(here, key)
    return 0 if done else 1


async def play_examples(hosted: HostedHub, key: str) -> None:
    """Store the example session."""
    async with HubClient.over_http(hosted.url, key) as client:
        await example_session.play_example(client)


async def print_console(hosted: HostedHub, key: str) -> None:
    """Print a link to the example session in the console, signed in."""
    if not console_is_built():
        print_line("\nThis installation has no web console: it was built where npm was missing.")
        return
    async with HubClient.over_http(hosted.url, key) as client:
        link = await client.request("POST", "/api/console/links")
    url = link["url"].replace("/console/#", f"/console/chat/{example_session.SESSION}#")
    print_line("\nThe web console, at a session with tools, a failed call, an approval and a sub-agent:")
    print_line(f"  {url}\n  (it signs you in, once, within two minutes)")


async def ask_questions(questions: Sequence[str], hosted: HostedHub, *, key: str) -> bool:
    """Ask over HTTP, as any client would, and print the streams. True when all were answered."""
    out = make_console(sys.stdout)
    async with HubClient.over_http(hosted.url, key) as client:
        for number, question in enumerate(questions, start=1):
            talk = ChatSession(client, lambda: renderer_for(sys.stdout, sys.stdout), session=f"demo-{number}")
            out.print("you> ", end="", style="bold magenta")
            out.print(question)
            if await talk.send(question) != "done":
                return False
    return True


async def print_stored(data: Path) -> None:
    """Print what the data folder holds now, as `dragoman sessions show` would."""
    async with await Store.open(data, exclusive=False) as store:
        sessions = await store.sessions.list(OWNER)
        print_line("\nStored in the data folder:")
        for session in sorted(sessions, key=lambda session: session.created_at):
            await print_session(store, session.id)
        used = await store.usage.totals(owner=OWNER)
    tokens = f"{used.tokens.input_tokens} tokens in, {used.tokens.output_tokens} out"
    print_line(
        f"  usage      {used.calls} model calls, {tokens if used.tokens.input_tokens else 'tokens unknown'}"
    )


async def print_session(store: Store, id: str) -> None:
    messages = await store.messages.list(id)
    print_line(f"  session    {client_session_id(id)}")
    for message in messages:
        print_line(f"  {message.role:<10} {list_parts(message)}")
    runs = await store.runs.list(id)
    last_runs = {run.message_id: run.id for run in runs}
    for run in runs:
        answer = describe_answer(find_metadata(messages, run.message_id))
        is_last = last_runs[run.message_id] == run.id  # an answer that waited for somebody has several
        print_line(f"  run        {run.status}, {answer}" if is_last else f"  run        {run.status}")
        for call in await store.calls.list_for_run(run.id):
            took = format_duration(call.ended_at - call.record.started_at) if call.ended_at else "running"
            name = f"  {call.record.operation}" if call.record.parent_id else call.record.operation
            print_line(f"  call       {name}: {call.status}, {took}")


def list_parts(message: Message) -> str:
    """List the parts of a message by name."""
    return ", ".join(part_label(part) for part in message.parts)


def part_label(part: Part) -> str:
    if isinstance(part, ToolPart):
        return f"{part.name} ({part.state})"
    return str(part.__struct_config__.tag or "data")


def find_metadata(messages: Sequence[Message], id: str) -> Mapping[str, Any]:
    found = next((message.metadata for message in messages if message.id == id), None)
    return found if isinstance(found, dict) else {}


async def serve_until_interrupted(hosted: HostedHub, key: str) -> None:
    """Leave the hub running until Ctrl-C."""
    stop = asyncio.Event()
    watch_signals(stop.set)
    print_line(f"\nThe hub stays up at {hosted.url} until Ctrl-C. Its key: {key}")
    await stop.wait()
