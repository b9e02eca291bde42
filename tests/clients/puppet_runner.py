"""A runner in a process of its own, whose answers are chosen by a word of the prompt.

`python puppet_runner.py HUB FOLDER SESSION...`: a gate is open when FOLDER has a file of its name.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dragoman.errors import ProviderError
from dragoman.runners.client.runner import Runner
from dragoman.runners.client.turn import RunnerTurn


class Puppet:
    """Answers prompts: `#tool`, `#gate:NAME`, `#ask`, `#approve`, `#fail`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def answer(self, turn: RunnerTurn) -> None:
        """Play what the prompt names, in this order."""
        if "#tool" in turn.text:
            await self._use_tool(turn)
        if "#approve" in turn.text:
            await self._act_with_approval(turn)
        if "#ask" in turn.text:
            reply = await turn.ask("Which colour?", ["red", "blue"])
            await turn.write_text(f"You chose {reply.answer}. ")
        if "#gate:" in turn.text:
            for word in ("one ", "two ", "three "):
                await turn.write_text(word)
            await self._pass(turn.text.partition("#gate:")[2].split()[0])
            await turn.write_text("four ")
            await turn.write_text("five")
        if "#fail" in turn.text:
            raise ProviderError("the agent fell over", category="api_error")
        if "#gate:" not in turn.text:
            await turn.write_text("Done.")

    async def _use_tool(self, turn: RunnerTurn) -> None:
        await turn.set_status("tool_calling", "read")
        await turn.update_tool("call_1", "read", status="pending")
        await turn.update_tool("call_1", "read", status="running", args={"path": "a.txt"})
        await turn.update_tool("call_1", "read", status="completed", result={"text": "forty-two"})

    async def _act_with_approval(self, turn: RunnerTurn) -> None:
        await turn.update_tool("call_2", "delete", status="pending")
        await turn.update_tool("call_2", "delete", status="running", args={"path": "a.txt"})
        reply = await turn.ask_approval("call_2", "Delete a.txt?")
        if reply.approved:
            await turn.update_tool("call_2", "delete", status="completed", result="deleted")
        else:
            await turn.update_tool("call_2", "delete", status="error", error="not allowed")

    async def _pass(self, gate: str) -> None:
        while not (self._folder / gate).exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.01)


async def main(hub: str, folder: str, *sessions: str) -> None:
    async with Runner(Puppet(Path(folder)).answer, hub=hub, sessions=sessions) as runner:
        print("ready", flush=True)
        await runner.finished()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
