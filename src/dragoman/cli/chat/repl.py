"""The interactive chat: reads lines and slash commands, prints answers."""

from __future__ import annotations

import asyncio
from typing import Literal

from dragoman.cli.access.call_preview import print_items
from dragoman.cli.access.question_prompt import Question, resolve_answer
from dragoman.cli.chat.prompt import ChatPrompt, Interrupted
from dragoman.cli.chat.session import ChatSession, run_interruptible
from dragoman.cli.chat.slash_commands import Choices, QuitChat, list_choices, print_session, run_command
from dragoman.cli.terminal import print_error, print_note
from dragoman.errors import DragomanError, NotFound

PROMPT = "you> "
MAX_PREVIEW = 60  # lines of what an approval would run
MAX_LOOKUP = 2.0  # seconds, when the user leaves


class ChatRepl:
    """Reads input, sends it and prints the answers until the user leaves. The session persists."""

    def __init__(self, chat: ChatSession) -> None:
        self._chat = chat
        self._prompt = ChatPrompt(self._choose)

    async def run(self) -> None:
        """Run until the user leaves."""
        try:
            await self._handle_line("")
            while True:
                if line := (await self._read_line()).strip():
                    await self._handle_line(line)
        except QuitChat:
            if await self._is_stored():
                session = self._chat.session
                print_note(f"session {session}; `dragoman chat --session {session}` continues it")

    async def _is_stored(self) -> bool:
        """Return whether the session exists: its first message creates it, and it may be deleted later."""
        try:
            async with asyncio.timeout(MAX_LOOKUP):
                await self._chat.client.session(self._chat.session)
        except NotFound:
            return False
        except (DragomanError, TimeoutError):
            pass  # a hub that does not answer now may have the session
        return True

    async def _choose(self, choices: Choices) -> list[str]:
        return [*await list_choices(self._chat, choices)]

    async def _read_line(self) -> str:
        """Read a line. QuitChat at Ctrl-D, or at the second Ctrl-C."""
        for warned in (False, True):
            try:
                return await self._prompt.read_message(PROMPT)
            except EOFError:
                raise QuitChat from None
            except Interrupted:
                if not warned:
                    print_note("Ctrl-C again, or Ctrl-D, leaves")
        raise QuitChat

    async def _handle_line(self, line: str) -> None:
        """Run a command or send a message, then ask about pending approvals."""
        try:
            if line.startswith("/"):
                await run_interruptible(run_command(self._chat, line))
            elif line:
                await self._chat.send(line)
            await self._ask_approvals()
        except DragomanError as error:
            print_error(error.message, hint=error.hint)
        except Interrupted:
            pass

    async def _ask_approvals(self) -> None:
        """Ask about pending approvals and questions, and print how the chat continues."""
        chat = self._chat
        while chat.pending_approvals:
            waiting, chat.pending_approvals = chat.pending_approvals, {}
            for approval, call in waiting.items():
                decision = await self._read_reply(approval, call=call)
                if decision is not None:
                    await chat.answer_approval(approval, decision)

    async def _read_reply(self, approval: str, *, call: str) -> bool | str | None:
        """Show what runs and read a decision, or read the answer to a question; None for later."""
        try:
            question = self._chat.questions.get(approval)
            if question is not None:
                return await self._read_answer(question)
            print_items(await self._chat.calls_to_approve(approval), id=approval, limit=MAX_PREVIEW)
            return await self._read_decision(call)
        except EOFError:
            return None

    async def _read_decision(self, call: str) -> bool | None:
        """Read yes or no; None for later."""
        typed = await self._prompt.read_answer(f"{call}: approve? [y]es, [n]o, anything else: later> ")
        match typed.strip().lower():
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
            case _:
                return None

    async def _read_answer(self, question: Question) -> str | Literal[False]:
        """Read the answer to a question; False for an empty line."""
        hint = "a number, or your words" if question["options"] else "your words"
        typed = await self._prompt.read_answer(f"answer ({hint}; an empty line declines)> ")
        return resolve_answer(question, typed) if typed.strip() else False


async def open_chat(chat: ChatSession, *, url: str, is_stored: bool) -> None:
    """Check that the hub answers, and print the state of the session if it `is_stored`."""
    await chat.client.sessions(limit=1)  # fails early without a hub or a valid key
    print_note(f"{url}; /help lists the commands, Ctrl-D leaves")
    if is_stored:
        await print_session(chat)
