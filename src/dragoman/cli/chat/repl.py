"""The interactive chat: reads lines and slash commands, prints answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from dragoman.cli.access.questions import Question, resolve_answer
from dragoman.cli.chat.commands import COMMANDS, QuitChat, print_session, run_command
from dragoman.cli.chat.history import line_editing
from dragoman.cli.chat.renderer import MAX_SHOWN, EventRenderer
from dragoman.cli.chat.session import ChatSession
from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.terminal import print_error, print_line, print_note, truncate
from dragoman.errors import DragomanError

T = TypeVar("T")
PROMPT = "you> "


class ChatRepl:
    """Reads input, sends it and prints the answers until the user leaves. The session persists."""

    def __init__(self, url: str, key: str | None, *, new_renderer: Callable[[], EventRenderer]) -> None:
        self._url = url
        self._key = key
        self._new_renderer = new_renderer
        self._runner = asyncio.Runner()

    def run(self, session: str | None, model: str | None) -> None:
        """Run until the user leaves."""
        with line_editing([*COMMANDS]), self._runner:
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
            await print_session(talk)
        return talk

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
                self._run(run_command(chat, line) if line.startswith("/") else chat.send(line))
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

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)


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
