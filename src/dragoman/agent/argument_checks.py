"""Checks the types of the arguments of an agent and of a run: most are used in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.agent.context.policy import ContextPolicy
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.settings import RunLimits
from dragoman.errors import ConfigError
from dragoman.identity import Identity
from dragoman.model_request import Tool
from dragoman.operations.context import Context
from dragoman.operations.permission.policy import Policy
from dragoman.providers.retry import RetryPolicy


class Expected(NamedTuple):
    """What an argument may be, and how to write it."""

    types: type | tuple[type | None, ...]
    example: str

    def allows(self, value: Any) -> bool:
        """Whether the value is of one of the types."""
        types = self.types if isinstance(self.types, tuple) else (self.types,)
        return any(value is None if each is None else isinstance(value, each) for each in types)


AGENT: Mapping[str, Expected] = {
    "instructions": Expected((str, None), "instructions='Answer briefly.'"),
    "operations": Expected(Sequence, "operations=[add]"),
    "mcp": Expected(Sequence, "mcp=['https://example.com/mcp']"),
    "limits": Expected(RunLimits, "limits=RunLimits(max_steps=10)"),
    "name": Expected(str, "name='support'"),
    "hooks": Expected((Hooks, None), "hooks=Hooks().on('pre_tool_use', check)"),
    "context": Expected((ContextPolicy, None), "context=ContextPolicy('truncate')"),
    "retries": Expected((int, RetryPolicy), "retries=2"),
    "options": Expected(Mapping, "options={'temperature': 0}"),
    "client_tools": Expected(Sequence, "client_tools=[Tool(...)]"),
    "manual": Expected(bool, "manual=True"),
    "meta_tools": Expected((bool, None), "meta_tools=True"),
    "prices": Expected(Mapping, "prices={'openai/my-*': PriceOverride(input=1, output=2)}"),
    "policy": Expected((Policy, None), "policy=Policy([Rule(decision='deny', operations=('files.*',))])"),
    "identity": Expected(Identity, "identity=Identity(owner='ann')"),
    "on_prepare_step": Expected((Callable, None), "on_prepare_step=choose_model"),  # type: ignore[arg-type]
}


RUN: Mapping[str, Expected] = {
    "session_id": Expected((str, None), "session_id='s1'"),
    "context": Expected((Context, None), "context=the context of the call that it is a part of"),
    "limits": Expected((RunLimits, None), "limits=RunLimits(max_steps=10)"),
    "manual": Expected((bool, None), "manual=True"),
    "client_tools": Expected((Sequence, None), "client_tools=[Tool(...)]"),
    "detached": Expected(bool, "detached=True"),
}


def check_arguments(arguments: Mapping[str, Any], table: Mapping[str, Expected]) -> None:
    """Check the types of these arguments. Raises ConfigError that says how to write one."""
    for name, value in arguments.items():
        expected = table.get(name)
        if expected is not None and not expected.allows(value):
            raise ConfigError(
                f"the argument {name} cannot be {value!r:.80}", hint=f"for example {expected.example}"
            )
    for tool in arguments.get("client_tools") or ():
        if not isinstance(tool, Tool):
            raise ConfigError(f"a client tool must be a Tool, not {tool!r:.80}")
