"""The prompt of a run: the instructions, the tools and the messages that its model calls are made from.

Requests to providers are not stored. The prompt is rebuilt from the agent's present configuration and the
stored session. Hooks, briefings and context limits may have changed the actual requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from dragoman.agent.spec import AgentSpec
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.errors import BadRequest
from dragoman.identity import Identity
from dragoman.messages import Message, encode_messages, messages_size
from dragoman.offload import offload
from dragoman.operations.context import Context
from dragoman.runs.run_factory import RunFactory
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store

Json: TypeAlias = dict[str, Any]


class PromptReader:
    """Reads prompts for one caller, who may see the runs."""

    def __init__(self, store: Store, factory: RunFactory | None, *, caller: Identity) -> None:
        """`factory` is None in an app beside a hub, which has no agents."""
        self._store = store
        self._factory = factory
        self._caller = caller

    async def read(self, run: RunRecord) -> Json:
        """Return what the first model call of a run is made from.

        Instructions are for administrators: an agent's users may chat with it, not read its configuration.
        `tools` is None for an agent that is no longer configured.
        """
        stored = await self._store.messages.list(run.session_id)
        before = messages_before(stored, run.message_id)
        agent = self._find_agent(run)
        tools = None if agent is None else await self._list_tools(agent, run)
        is_shown = self._caller.may("admin")
        return {
            "runId": run.id,
            "agent": run.agent,
            "model": run.model,
            "instructions": agent.instructions if agent is not None and is_shown else None,
            "hidden": [] if is_shown else ["instructions"],
            "tools": tools,
            "messages": msgspec.Raw(await offload(messages_size(before), partial(encode_messages, before))),
        }

    def _find_agent(self, run: RunRecord) -> AgentSpec | None:
        if self._factory is None:
            return None
        try:
            found = self._factory.agents.resolve(agent=run.agent, model=run.model, select=False)
        except BadRequest:  # the agent or its model is gone, or a runner's own agent answered
            return None
        return found.agent

    async def _list_tools(self, agent: AgentSpec, run: RunRecord) -> Sequence[Json] | None:
        if self._factory is None:
            return None
        identity = msgspec.structs.replace(self._caller, owner=run.owner)
        context = Context(identity=identity, session_id=run.session_id, agent=agent.name, for_model=True)
        client = (*agent.client_tools, *run.tools)
        toolbox = await self._factory.toolbox(agent.operations, client, context=context)
        return tools_to_json(toolbox)


def tools_to_json(toolbox: Toolbox) -> Sequence[Json]:
    """Return tools as a model is offered them, each with the operation that it calls."""
    operations: Mapping[str, str] = toolbox.operation_ids
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.input_schema,
            "operation": operations.get(tool.name),
        }
        for tool in toolbox.tools
    ]


def messages_before(messages: Sequence[Message], id: str) -> Sequence[Message]:
    """Return the messages before an answer; none if it is not among them."""
    at = next((at for at, message in enumerate(messages) if message.id == id), 0)
    return messages[:at]
