"""The prompt: lines from the keyboard to a talk, and the commands that begin with a slash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeVar

from dragoman.cli.approvals import Question, chosen
from dragoman.cli.client import HubClient
from dragoman.cli.screen import Screen
from dragoman.cli.talk import Talk, new_session
from dragoman.cli.terminal import ago, complain, note, show_table
from dragoman.errors import DragomanError, NotFound

T = TypeVar("T")
PROMPT = "you> "
HELP = """\
  /new            begin a new session
  /sessions       list your sessions
  /open ID        go on in one of them
  /model NAME     answer with this model from now on (provider/model)
  /help           this list
  /quit           leave (Ctrl-D does it too)
Ctrl-C while the hub answers stops the answer; at the prompt, twice, it leaves."""


class Leave(Exception):
    """The user wants to go."""


class Prompt:
    """Reads, says, draws, until the user leaves. The session outlives it."""

    def __init__(self, url: str, key: str | None, *, screens: Callable[[], Screen]) -> None:
        self._url = url
        self._key = key
        self._screens = screens
        self._runner = asyncio.Runner()

    def run(self, session: str | None, model: str | None) -> None:
        """Talk until the user leaves."""
        with suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401 # late: it gives input() a history, and only here

        with self._runner:
            talk = self._do(self._open(session, model))
            try:
                self._loop(talk)
            except Leave:
                note(f"session {talk.session}; `dragoman chat --session {talk.session}` goes on")
            finally:
                self._do(talk.client.close())

    async def _open(self, session: str | None, model: str | None) -> Talk:
        talk = Talk(HubClient(self._url, self._key), self._screens, session=session, model=model)
        await talk.client.sessions(limit=1)  # is there a hub, and does it let us in?
        note(f"{self._url}; /help lists the commands, Ctrl-D leaves")
        if session:
            await self._greet(talk)
        return talk

    async def _greet(self, talk: Talk) -> None:
        """Say what was last said in the session, and follow what is being said."""
        try:
            known = await talk.client.session(talk.session)
        except NotFound:
            note(f"session {talk.session} is new")
            return
        messages = await talk.client.messages(talk.session)
        note(f"session {talk.session}: {known['title'] or 'no title'}, {len(messages)} messages")
        talk.recall(messages)
        if known["running"]:
            note("an answer is under way:")
            await talk.resume()

    def _loop(self, talk: Talk) -> None:
        self._guarded(talk, "")
        while True:
            line = read_line().strip()
            if line:
                self._guarded(talk, line)

    def _guarded(self, talk: Talk, line: str) -> None:
        """Do what a line says, and ask about what waits then."""
        try:
            if line:
                self._do(self._obey(talk, line) if line.startswith("/") else talk.say(line))
            self._approve(talk)
        except DragomanError as error:
            complain(error.message, hint=error.hint)
        except KeyboardInterrupt:
            print_break()

    def _approve(self, talk: Talk) -> None:
        """Ask about what waits for approval, and draw how the talk goes on."""
        while talk.waiting:
            waiting, talk.waiting = talk.waiting, {}
            for approval, call in waiting.items():
                question = talk.questions.get(approval)
                said = read_word(call) if question is None else read_reply(question)
                if said is not None:
                    self._do(talk.answer(approval, said))

    async def _obey(self, talk: Talk, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "/new":
                talk.session, talk.waiting = new_session(), {}
                note(f"session {talk.session}")
            case "/sessions":
                await show_sessions(talk.client)
            case "/open" if rest:
                talk.session, talk.waiting = rest.strip(), {}
                await self._greet(talk)
            case "/model":
                talk.model = rest.strip() or None
                note(f"model: {talk.model or 'as the hub is configured'}")
            case "/quit" | "/exit":
                raise Leave
            case _:
                note(f"commands:\n{HELP}")

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


async def show_sessions(client: HubClient) -> None:
    found = await client.sessions(limit=20)
    if not found:
        note("you have no sessions yet")
        return
    rows = [(each["id"], ago(each["updatedAt"]), each["title"] or "-") for each in found]
    show_table(("ID", "CHANGED", "TITLE"), rows)


def read_word(call: str) -> bool | None:
    """Yes or no; None for later, as is Ctrl-D."""
    try:
        said = input(f"{call}: approve? [y]es, [n]o, anything else: later> ")
    except EOFError:
        print_break()
        return None
    match said.strip().lower():
        case "y" | "yes":
            return True
        case "n" | "no":
            return False
        case _:
            return None


def read_reply(question: Question) -> str | Literal[False] | None:
    """The answer to a question; False for an empty line, None for Ctrl-D."""
    hint = "a number, or your words" if question["options"] else "your words"
    try:
        said = input(f"answer ({hint}; an empty line declines)> ")
    except EOFError:
        print_break()
        return None
    return chosen(question, said) if said.strip() else False


def read_line() -> str:
    """A line from the keyboard. Leave at Ctrl-D, or at the second Ctrl-C."""
    for warned in (False, True):
        try:
            return input(PROMPT)
        except EOFError:
            print_break()
            raise Leave from None
        except KeyboardInterrupt:
            print_break()
            if not warned:
                note("Ctrl-C again, or Ctrl-D, leaves")
    raise Leave


def print_break() -> None:
    """The cursor stands behind the prompt: begin a new line."""
    print()  # noqa: T201 - where input() wrote the prompt
