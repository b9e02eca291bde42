"""The interactive chat: reads lines and slash commands, prints answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeVar

from dragoman.cli.access.questions import Question, resolve_answer
from dragoman.cli.chat.renderer import MAX_SHOWN, EventRenderer
from dragoman.cli.chat.session import ChatSession, new_session_id
from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.terminal import format_age, print_error, print_line, print_note, print_table, truncate
from dragoman.errors import DragomanError, NotFound

T = TypeVar("T")
PROMPT = "you> "
HELP = """\
  /new            begin a new session
  /sessions       list your sessions
  /open ID        continue one of them
  /model NAME     answer with this model from now on (provider/model)
  /help           this list
  /quit           leave (Ctrl-D does it too)
Ctrl-C while the hub answers stops the answer; at the prompt, twice, it leaves."""


class QuitChat(Exception):
    """The user wants to leave the chat."""


class ChatRepl:
    """Reads input, sends it and prints the answers until the user leaves. The session persists."""

    def __init__(self, url: str, key: str | None, *, new_renderer: Callable[[], EventRenderer]) -> None:
        self._url = url
        self._key = key
        self._new_renderer = new_renderer
        self._runner = asyncio.Runner()

    def run(self, session: str | None, model: str | None) -> None:
        """Run until the user leaves."""
        with suppress(ImportError):  # not every Python includes it
            import readline  # noqa: F401 # late: it gives input() a history, and only here

        with self._runner:
            talk = self._run(self._open(session, model))
            try:
                self._loop(talk)
            except QuitChat:
                print_note(f"session {talk.session}; `dragoman chat --session {talk.session}` continues it")
            finally:
                self._run(talk.client.close())

    async def _open(self, session: str | None, model: str | None) -> ChatSession:
        talk = ChatSession(
            HubClient.over_http(self._url, self._key), self._new_renderer, session=session, model=model
        )
        await talk.client.sessions(limit=1)  # fails early without a hub or a valid key
        print_note(f"{self._url}; /help lists the commands, Ctrl-D leaves")
        if session:
            await self._print_session(talk)
        return talk

    async def _print_session(self, chat: ChatSession) -> None:
        """Print the last messages of the session, and follow the active answer."""
        try:
            stored = await chat.client.session(chat.session)
        except NotFound:
            print_note(f"session {chat.session} is new")
            return
        messages = await chat.client.messages(chat.session)
        print_note(f"session {chat.session}: {stored['title'] or 'no title'}, {len(messages)} messages")
        chat.restore_pending(messages)
        if stored["running"]:
            print_note("an answer is active:")
            await chat.resume()

    def _loop(self, chat: ChatSession) -> None:
        self._handle_line(chat, "")
        while True:
            line = read_line().strip()
            if line:
                self._handle_line(chat, line)

    def _handle_line(self, chat: ChatSession, line: str) -> None:
        """Run a command or send a message, then ask about pending approvals."""
        try:
            if line:
                self._run(self._run_command(chat, line) if line.startswith("/") else chat.send(line))
            self._ask_approvals(chat)
        except DragomanError as error:
            print_error(error.message, hint=error.hint)
        except KeyboardInterrupt:
            print_break()

    def _ask_approvals(self, chat: ChatSession) -> None:
        """Ask about pending approvals and questions, and print how the chat continues."""
        while chat.pending_approvals:
            waiting, chat.pending_approvals = chat.pending_approvals, {}
            for approval, call in waiting.items():
                decision = self._read_reply(chat, approval, call=call)
                if decision is not None:
                    self._run(chat.answer_approval(approval, decision))

    def _read_reply(self, chat: ChatSession, approval: str, *, call: str) -> bool | str | None:
        """Show what runs and read a decision, or read the answer to a question; None for later."""
        question = chat.questions.get(approval)
        if question is not None:
            return read_answer(question)
        for line in self._run(chat.calls_to_approve(approval)):
            print_line(f"  {truncate(line, MAX_SHOWN)}")
        return read_decision(call)

    async def _run_command(self, chat: ChatSession, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "/new":
                chat.session, chat.pending_approvals = new_session_id(), {}
                print_note(f"session {chat.session}")
            case "/sessions":
                await print_sessions(chat.client)
            case "/open" if rest:
                chat.session, chat.pending_approvals = rest.strip(), {}
                await self._print_session(chat)
            case "/model":
                chat.model = rest.strip() or None
                print_note(f"model: {chat.model or 'as the hub is configured'}")
            case "/quit" | "/exit":
                raise QuitChat
            case _:
                print_note(f"commands:\n{HELP}")

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)


async def print_sessions(client: HubClient) -> None:
    found = await client.sessions(limit=20)
    if not found:
        print_note("you have no sessions yet")
        return
    rows = [(each["id"], format_age(each["updatedAt"]), each["title"] or "-") for each in found]
    print_table(("ID", "CHANGED", "TITLE"), rows)


def read_decision(call: str) -> bool | None:
    """Read yes or no; None for later or Ctrl-D."""
    try:
        typed = input(f"{call}: approve? [y]es, [n]o, anything else: later> ")
    except EOFError:
        print_break()
        return None
    match typed.strip().lower():
        case "y" | "yes":
            return True
        case "n" | "no":
            return False
        case _:
            return None


def read_answer(question: Question) -> str | Literal[False] | None:
    """Read the answer to a question; False for an empty line, None for Ctrl-D."""
    hint = "a number, or your words" if question["options"] else "your words"
    try:
        typed = input(f"answer ({hint}; an empty line declines)> ")
    except EOFError:
        print_break()
        return None
    return resolve_answer(question, typed) if typed.strip() else False


def read_line() -> str:
    """Read a line. QuitChat at Ctrl-D, or at the second Ctrl-C."""
    for warned in (False, True):
        try:
            return input(PROMPT)
        except EOFError:
            print_break()
            raise QuitChat from None
        except KeyboardInterrupt:
            print_break()
            if not warned:
                print_note("Ctrl-C again, or Ctrl-D, leaves")
    raise QuitChat


def print_break() -> None:
    """Start a new line after the prompt."""
    print()  # noqa: T201 - where input() wrote the prompt
