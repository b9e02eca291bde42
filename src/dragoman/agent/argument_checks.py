"""Type checks for the arguments of an agent and a run, most of which would otherwise fail in mid-run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import NoneType
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

    types: type | tuple[type, ...]
    example: str


AGENT_ARGUMENTS: Mapping[str, Expected] = {
    "instructions": Expected((str, NoneType), "instructions='Answer briefly.'"),
    "operations": Expected(Collection, "operations=[add]"),
    "mcp": Expected(Collection, "mcp=['https://example.com/mcp']"),
    "limits": Expected(RunLimits, "limits=RunLimits(max_steps=10)"),
    "name": Expected(str, "name='support'"),
    "hooks": Expected((Hooks, NoneType), "hooks=Hooks().on('pre_tool_use', check)"),
    "context": Expected((ContextPolicy, NoneType), "context=ContextPolicy('truncate')"),
    "retries": Expected((int, RetryPolicy), "retries=2"),
    "options": Expected(Mapping, "options={'temperature': 0}"),
    "client_tools": Expected(Collection, "client_tools=[Tool(...)]"),
    "manual": Expected(bool, "manual=True"),
    "meta_tools": Expected((bool, NoneType), "meta_tools=True"),
    "prices": Expected(Mapping, "prices={'openai/my-*': PriceOverride(input=1, output=2)}"),
    "policy": Expected((Policy, NoneType), "policy=Policy([Rule(decision='deny', operations=('files.*',))])"),
    "identity": Expected(Identity, "identity=Identity(owner='ann')"),
    "on_prepare_step": Expected((Callable, NoneType), "on_prepare_step=choose_model"),  # type: ignore[arg-type]
}

RUN_ARGUMENTS: Mapping[str, Expected] = {
    "session_id": Expected((str, NoneType), "session_id='s1'"),
    "context": Expected((Context, NoneType), "context=the context of the call that it is a part of"),
    "limits": Expected((RunLimits, NoneType), "limits=RunLimits(max_steps=10)"),
    "manual": Expected((bool, NoneType), "manual=True"),
    "client_tools": Expected((Collection, NoneType), "client_tools=[Tool(...)]"),
    "detached": Expected(bool, "detached=True"),
}


def check_arguments(arguments: Mapping[str, Any], table: Mapping[str, Expected]) -> None:
    """Check the types of these arguments. Raises ConfigError that says how to write one."""
    for name, value in arguments.items():
        expected = table.get(name)
        if expected is not None and not isinstance(value, expected.types):
            raise ConfigError(
                f"the argument {name} cannot be {value!r:.80}", hint=f"for example {expected.example}"
            )
    for tool in arguments.get("client_tools") or ():
        if not isinstance(tool, Tool):
            raise ConfigError(f"a client tool must be a Tool, not {tool!r:.80}")
