"""What an agent has open in one event loop: MCP connections, models, runs.

An agent can be used from any number of event loops at once, such as by `run_sync` in the threads of a web
server. Sockets, tasks and locks belong to the loop that made them, so each loop has its own set.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragoman.agent.tools.agent_tools import AgentTools
from dragoman.errors import Conflict
from dragoman.operations.worker_threads import running_loop
from dragoman.providers.model import Model
from dragoman.providers.provider import close_provider

if TYPE_CHECKING:
    from dragoman.agent.run import Run

TOOLS_LOCK = threading.Lock()  # guards the spare tools of all agents; held for a few instructions


class LoopResources:
    """The tools, models and runs of an agent in one event loop; `users` counts its `async with` blocks."""

    __slots__ = ("_open_lock", "models", "runs", "tools", "users")

    def __init__(self, tools: AgentTools) -> None:
        self.tools = tools
        self.models: dict[str, Model] = {}
        """Models resolved from names, which the agent closes."""
        self.runs: dict[Run[Any], None] = {}
        self.users = 0
        self._open_lock: asyncio.Lock | None = None

    @property
    def open_lock(self) -> asyncio.Lock:
        """Held while MCP servers are connected or disconnected."""
        if self._open_lock is None:
            self._open_lock = asyncio.Lock()
        return self._open_lock

    async def close(self, reason: str) -> None:
        """Abort the runs, disconnect the MCP servers and close the models. May be used again afterwards."""
        runs = list(self.runs)
        for run in runs:
            run.abort(reason)
        await asyncio.gather(*(run.wait_closed() for run in runs))
        models = list(self.models.values())
        self.models.clear()
        try:
            await self.tools.close()
        finally:
            for model in models:
                await close_provider(model.provider)


class ResourcesByLoop:
    """The resources of an agent by event loop. `make_tools` makes the tools for a further loop."""

    __slots__ = ("_by_loop", "_make_tools", "_spare_tools")

    def __init__(self, make_tools: Callable[[], AgentTools]) -> None:
        self._make_tools = make_tools
        self._spare_tools: AgentTools | None = make_tools()  # now, so that an invalid operation raises here
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopResources] = {}

    def here(self) -> LoopResources:
        """Return the resources of the running event loop. Raises Conflict without one."""
        loop = running_loop()
        if loop is None:
            raise Conflict("there is no event loop to run in", hint="in a script use run_sync")
        resources = self._by_loop.get(loop)
        if resources is None:
            self._drop_closed()
            resources = self._by_loop[loop] = LoopResources(self._take_tools())
        return resources

    def peek(self) -> AgentTools:
        """Return the tools of the running event loop if it has some, otherwise tools that no loop uses."""
        loop = running_loop()
        resources = None if loop is None else self._by_loop.get(loop)
        if resources is not None:
            return resources.tools
        tools = self._spare_tools
        if tools is None:
            tools = self._make_tools()
            self._give_back(tools)
        return tools

    def release(self) -> None:
        """Forget the closed resources of the running event loop; another loop may take their tools."""
        loop = running_loop()
        resources = None if loop is None else self._by_loop.pop(loop, None)
        if resources is not None:
            self._give_back(resources.tools)

    def _take_tools(self) -> AgentTools:
        with TOOLS_LOCK:
            tools, self._spare_tools = self._spare_tools, None
        return tools if tools is not None else self._make_tools()

    def _give_back(self, tools: AgentTools) -> None:
        with TOOLS_LOCK:
            self._spare_tools = self._spare_tools or tools

    def _drop_closed(self) -> None:
        """Drop the resources of event loops that ended without `cleanup`."""
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            resources = self._by_loop.pop(loop, None)
            if resources is not None:
                resources.tools.abandon()
