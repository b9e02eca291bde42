"""The showcase that `dragoman demo` plays: a hub, a question that needs tools, and what was kept of it."""

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
from msgspec.structs import replace

from dragoman.cli.client import HubClient
from dragoman.cli.hosting import Hosted, bind, hosted
from dragoman.cli.logs import set_up
from dragoman.cli.screen import Screen, duration, summary
from dragoman.cli.settings import local_config
from dragoman.cli.talk import Talk
from dragoman.cli.terminal import console, say
from dragoman.cli.weights import installed
from dragoman.config import Config, ProviderConfig
from dragoman.errors import DragomanError
from dragoman.messages import Message, Part, ToolPart
from dragoman.store.store import Store

OWNER = "demo"
QUESTIONS = ("What time is it in Lisbon, and what is 37 * 41?",)
LOCAL_QUESTIONS = ("What is 12 * 34?", "What time is it?")  # a small model does one thing at a time
REAL = "SmolLM2-135M, a real language model in a process here: small, and often wrong"
SIMULATOR = "SIMULATOR: no model; a script plays its part and makes up the token counts. The calls are real."
HINT = "`dragoman local install` brings a small real model"
PINNED = ["math.calculate", "time.now"]
INSTRUCTIONS = "Answer briefly. Use a tool to calculate or to tell the time."
INSTALL = "\n  dragoman local install                  a small real model, without a key"
NEXT = """
Try next:{install}
  dragoman serve --config dragoman.yaml   a hub with your own provider (docs/configuration.md)
  dragoman keys create --owner you        a key for it
  dragoman chat                           talk to it in the terminal
  dragoman ops list                       what it can call

A useChat front end needs its address only:
  useChat({{ transport: new DefaultChatTransport({{
    api: 'http://127.0.0.1:8000/api/chat', headers: {{ Authorization: 'Bearer dgm_…' }} }}) }})"""


class Cast(msgspec.Struct, frozen=True):
    """Who plays the model, how that is said, and what is asked."""

    config: Config
    label: str
    questions: Sequence[str]


def run(*, scripted: bool, keep: bool) -> int:
    """Play it, and give the exit code. A simulator takes the place of a local model that cannot be used."""
    set_up("error", as_json=False)
    say("Dragoman demo: a hub, a model, and a question that needs tools.\n")
    with folder(keep=keep) as place:
        if installed() and not scripted:
            try:
                return asyncio.run(play(real(), place, keep=keep))
            except DragomanError as error:
                say(f"\nThe local model cannot be used, so a simulator plays its part: {error.message}\n")
        return asyncio.run(play(simulator(place), place, keep=keep))


@contextmanager
def folder(*, keep: bool) -> Iterator[Path]:
    """A temporary folder; it stays when it is to be kept."""
    if keep:
        yield Path(mkdtemp(prefix="dragoman-demo-"))
        return
    with TemporaryDirectory(prefix="dragoman-demo-") as name:
        yield Path(name)


def real() -> Cast:
    """The local model, which is shown the tools as they are: it is too small to look for them."""
    config = replace(local_config(), pinned=PINNED, instructions=INSTRUCTIONS, max_steps=4)
    return Cast(config, REAL, LOCAL_QUESTIONS)


def simulator(place: Path) -> Cast:
    """The script."""
    script = place / "demo.yaml"
    text = files("dragoman.cli").joinpath("demo.yaml").read_text(encoding="utf-8")
    script.write_text(text, encoding="utf-8")
    provider = ProviderConfig(type="scripted", script=str(script))
    label = SIMULATOR if installed() else f"{SIMULATOR}\n          {HINT}"
    return Cast(Config(providers={"simulator": provider}, model="simulator/script"), label, QUESTIONS)


async def play(cast: Cast, place: Path, *, keep: bool) -> int:
    data = place / "data"
    async with hosted(cast.config, data, listener=bind("127.0.0.1", 0), keys=True) as here:
        _, key = await here.hub.store.keys.create(OWNER, name="demo")
        say(f"  hub     {here.url}, started in this process; its data in {data}")
        say(f"  key     {key[:10]}…, made for the owner {OWNER!r}")
        say(f"  model   {cast.label}\n")
        done = await ask(cast.questions, here, key=key)
        await here.hub.meter.ledger.catch_up()  # usage is written a moment after the answer
        await show_kept(data)
        if done:
            say(NEXT.format(install="" if installed() else INSTALL))
        else:
            say("\nThe answer failed; `dragoman demo --scripted` shows the rest without a model.")
        if keep:
            await linger(here, key)
    return 0 if done else 1


async def ask(questions: Sequence[str], here: Hosted, *, key: str) -> bool:
    """Ask over HTTP, as any client would, and draw the streams; whether all were answered."""
    out = console(sys.stdout)
    async with HubClient(here.url, key) as client:
        for number, question in enumerate(questions, start=1):
            talk = Talk(client, lambda: Screen(out, out), session=f"demo-{number}")
            out.print("you> ", end="", style="bold magenta")
            out.print(question)
            if await talk.say(question) != "done":
                return False
    return True


async def show_kept(data: Path) -> None:
    """What the data folder holds now, as `dragoman sessions show` would read it."""
    async with await Store.open(data, exclusive=False) as store:
        sessions = await store.sessions.list(OWNER)
        say("\nKept in the data folder:")
        for session in sorted(sessions, key=lambda session: session.created_at):
            await show_session(store, session.id)
        used = await store.usage.totals(owner=OWNER)
    tokens = f"{used.tokens.input_tokens} tokens in, {used.tokens.output_tokens} out"
    say(f"  usage      {used.calls} model calls, {tokens if used.tokens.input_tokens else 'tokens unknown'}")


async def show_session(store: Store, id: str) -> None:
    messages = await store.messages.list(id)
    say(f"  session    {id}")
    for message in messages:
        say(f"  {message.role:<10} {listed(message)}")
    for run in await store.runs.list(id):
        say(f"  run        {run.status}, {summary(metadata_of(messages, run.message_id))}")
        for call in await store.calls.for_run(run.id):
            took = duration(call.ended_at - call.record.started_at) if call.ended_at else "running"
            name = f"  {call.record.operation}" if call.record.parent_id else call.record.operation
            say(f"  call       {name}: {call.status}, {took}")


def listed(message: Message) -> str:
    """The parts of a message, by name."""
    return ", ".join(called(part) for part in message.parts)


def called(part: Part) -> str:
    if isinstance(part, ToolPart):
        return f"{part.name} ({part.state})"
    return str(part.__struct_config__.tag or "data")


def metadata_of(messages: Sequence[Message], id: str) -> Mapping[str, Any]:
    found = next((message.metadata for message in messages if message.id == id), None)
    return found if isinstance(found, dict) else {}


async def linger(here: Hosted, key: str) -> None:
    """Leave the hub running until Ctrl-C."""
    say(f"\nThe hub stays up at {here.url} until Ctrl-C. Its key: {key}")
    await asyncio.Event().wait()
