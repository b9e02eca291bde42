"""The agents of a hub, as its configuration says them, with the functions and schemas that they name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.accounts.contexts import Contexts
from dragoman.agent import stops
from dragoman.agent.context.context import ContextPolicy
from dragoman.agent.profile import Profile
from dragoman.agent.stops import Condition, Halt, SoFar
from dragoman.agent.structured import Output
from dragoman.agent.subagent import NAMESPACE
from dragoman.config import AgentConfig, Config, StopConfig
from dragoman.errors import ConfigError
from dragoman.operations.loading import find
from dragoman.operations.operation import NAME, Operation
from dragoman.operations.registry import Registry
from dragoman.runs.delegation import Delegation
from dragoman.wire.chat import client_tools

JOINS = {"all": " and ", "any": " or "}
WORDS = {
    "tool": "{} was called",
    "text": "the model said {!r}",
    "matches": "what the model said fits {!r}",
    "steps": "it took {} steps",
    "tokens": "it used {:,} tokens",
    "cost": "it cost {:g} US dollars",
    "time": "it took {:g} seconds",
    "no_progress": "the same call failed {} times",
    "use": "{} says so",
}


def agents_of(config: Config) -> dict[str, Profile]:
    """The agents by name; `default` is the hub itself. ConfigError names the field that cannot be."""
    default = AgentConfig(instructions=config.instructions, operations=config.pinned)
    named = {"default": default, **config.agents}
    return {name: agent_of(name, agent, config=config) for name, agent in named.items()}


def agent_of(name: str, agent: AgentConfig, *, config: Config) -> Profile:
    path = f"agents.{name}"
    if agent.description is not None and not NAME.fullmatch(name):
        raise ConfigError(
            f"{path}: one that others can call is named with 1 to 128 letters, digits, - _ . or /",
            hint="name it otherwise, or leave its description out",
        )
    return Profile(
        name=name,
        model=agent.model or config.model or "",
        instructions=agent.instructions,
        operations=tuple(agent.operations),
        client_tools=client_tools(agent.client_tools),
        max_steps=agent.max_steps or config.max_steps,
        options=agent.options,
        timeout=agent.timeout,
        max_calls=agent.max_calls,
        max_usd=agent.max_usd,
        context=policy_of(agent),
        sizes=sizes_of(config),
        stops=stops_of(agent.stop_when, path=f"{path}.stop_when"),
        prepare=function(agent.on_prepare_step, path=f"{path}.on_prepare_step"),
        output=output_of(agent.output, path=f"{path}.output"),
        description=agent.description,
    )


def policy_of(agent: AgentConfig) -> ContextPolicy:
    """How an agent's conversations are shortened."""
    said = agent.context
    if said.policy == "off":
        return ContextPolicy()
    return ContextPolicy(kind=said.policy, limit=said.limit, margin=said.margin, keep=said.keep)


def sizes_of(config: Config) -> Callable[[str, str], int | None]:
    """How many tokens a provider's model takes: as the configuration says, or the price list."""
    listed = {
        f"{name}/{pattern}": size
        for name, provider in config.providers.items()
        for pattern, size in provider.contexts.items()
    }
    contexts = Contexts(listed)

    def size(provider: str, model: str) -> int | None:
        place = config.providers.get(provider)
        return contexts.find(
            provider,
            model,
            base_url=None if place is None else place.base_url,
            type=None if place is None else place.type,
        )

    return size


def stops_of(said: Sequence[StopConfig], *, path: str) -> Condition | None:
    """When an answer ends: any of these."""
    if not said:
        return None
    return stops.any_of(*(stop_of(each, path=f"{path}[{at}]") for at, each in enumerate(said)))


def stop_of(said: StopConfig, *, path: str) -> Condition:
    """One condition, which says what it is in the words of `in_words`."""
    for word, join in (("all", stops.all_of), ("any", stops.any_of)):
        if inner := getattr(said, word):
            return join(*(stop_of(each, path=f"{path}.{word}[{at}]") for at, each in enumerate(inner)))
    if said.use is not None:
        return own(said.use, path=f"{path}.use")
    made, why = plain(said), in_words(said)

    def look(so_far: SoFar) -> Halt | None:
        halt = made.find(so_far)
        return None if halt is None else replace(halt, why=why)

    return Condition(look)


def own(use: str, *, path: str) -> Condition:
    """A condition that somebody wrote, or made of the library's."""
    found = function(use, path=path)
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{path}: {use} is async; a stop condition is a plain function")
    says = f"{use.rpartition(':')[2]} says so"
    return found if isinstance(found, Condition) else stops.made(says, found)


def plain(said: StopConfig) -> Condition:
    """The condition of the library."""
    made: dict[str, Callable[[], Condition]] = {
        "tool": lambda: stops.tool_called(said.tool or ""),
        "text": lambda: stops.text_matches(re.escape(said.text or "")),
        "matches": lambda: stops.text_matches(said.matches or ""),
        "steps": lambda: stops.steps(said.steps or 0),
        "tokens": lambda: stops.tokens(said.tokens or 0),
        "cost": lambda: stops.cost(said.cost or 0.0),
        "time": lambda: stops.seconds(said.seconds),
        "no_progress": lambda: stops.no_progress(said.no_progress or 0),
    }
    return made[said.said[0]]()


def in_words(said: StopConfig) -> str:
    """A condition for people, as it follows `stopped: `."""
    word = said.said[0]
    value = getattr(said, word)
    if word in JOINS:
        return JOINS[word].join(
            f"({in_words(each)})" if each.all or each.any else in_words(each) for each in value
        )
    return WORDS[word].format(said.seconds if word == "time" else value)


def function(said: str | None, *, path: str) -> Any:
    """The function that a field names; None for none."""
    if said is None:
        return None
    try:
        found = find(said)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None
    if not callable(found):
        raise ConfigError(f"{path}: {said} is no function")
    return found


def output_of(said: dict[str, Any] | str | None, *, path: str) -> Output[Any] | None:
    """What an answer has to be."""
    if said is None:
        return None
    try:
        return Output(schema_in(said) if isinstance(said, str) else said)  # type: ignore[arg-type]  # a schema
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None


def schema_in(path: str) -> dict[str, Any]:
    """The JSON Schema in a file. ConfigError."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"cannot read {path!r}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path!r} holds no JSON Schema: {error}") from None


# ---- Delegates: the agents of a configuration that other agents can call, as operations in the registry.


class Delegates:
    """Keeps the registry's `agents.*` as the configuration wants them."""

    def __init__(self, registry: Registry, delegation: Delegation) -> None:
        self._registry = registry
        self._delegation = delegation
        self._held: list[str] = []  # small-letter ids

    def made(self, agents: Mapping[str, Profile]) -> Sequence[Operation]:
        """Those that have a description, as operations. ConfigError where one cannot be put in."""
        found: dict[str, Operation] = {}
        taken = {each.id.lower() for each in self._registry.list(NAMESPACE)} - set(self._held)
        for agent in agents.values():
            if agent.description is not None:
                operation = self._delegation.operation(agent)
                key = operation.id.lower()
                if key in taken or key in found:
                    raise ConfigError(f"agents.{agent.name}: there is an operation {operation.id!r} already")
                found[key] = operation
        return list(found.values())

    def put(self, operations: Sequence[Operation]) -> None:
        """Take out those of before, and in these."""
        while self._held:
            self._registry.remove(self._held.pop())
        for operation in operations:
            self._registry.add(operation)
            self._held.append(operation.id.lower())
