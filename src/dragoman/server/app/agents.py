"""Builds the agents of a configuration, with the functions and schemas that they name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.accounts.context_sizes import Contexts
from dragoman.agent import stop_conditions
from dragoman.agent.context.policy import ContextPolicy
from dragoman.agent.spec import AgentSpec
from dragoman.agent.stop_conditions import Condition, Halt, SoFar
from dragoman.agent.structured_output import Output
from dragoman.config import AgentConfig, Config, StopConfig
from dragoman.errors import ConfigError
from dragoman.json_decoding import decode_json
from dragoman.operations.loader import load_object
from dragoman.operations.operation import NAME_PATTERN
from dragoman.wire.ui.client_request import parse_client_tools

JOINERS = {"all": " and ", "any": " or "}
STOP_REASONS = {
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


def build_agents(config: Config) -> dict[str, AgentSpec]:
    """Build the agents by name; `default` is the hub itself. ConfigError names the invalid field."""
    default = AgentConfig(instructions=config.instructions, operations=config.pinned)
    named = {"default": default, **config.agents}
    return {name: build_agent(name, agent, config=config) for name, agent in named.items()}


def build_agent(name: str, agent: AgentConfig, *, config: Config) -> AgentSpec:
    path = f"agents.{name}"
    if agent.description is not None and not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{path}: an agent that others can call must be named with 1 to 128 letters, digits, - _ . or /",
            hint="rename it, or omit its description",
        )
    return AgentSpec(
        name=name,
        model=agent.model or config.model or "",
        instructions=agent.instructions,
        operations=tuple(agent.operations),
        client_tools=parse_client_tools(agent.client_tools),
        max_steps=agent.max_steps or config.max_steps,
        options=agent.options,
        timeout=agent.timeout,
        max_calls=agent.max_calls,
        max_usd=agent.max_usd,
        context=context_policy(agent),
        context_sizes=context_size_lookup(config),
        stop_condition=build_stop_condition(agent.stop_when, path=f"{path}.stop_when"),
        on_prepare_step=load_function(agent.on_prepare_step, path=f"{path}.on_prepare_step"),
        output=build_output(agent.output, path=f"{path}.output"),
        description=agent.description,
        after_crash=agent.after_crash,
        when_busy=agent.when_busy or config.when_busy,
    )


def context_policy(agent: AgentConfig) -> ContextPolicy:
    """Return the policy that shortens an agent's conversations."""
    context = agent.context
    if context.policy == "off":
        return ContextPolicy()
    return ContextPolicy(kind=context.policy, limit=context.limit, margin=context.margin, keep=context.keep)


def context_size_lookup(config: Config) -> Callable[[str, str], int | None]:
    """Return a function that finds a model's context size, from the configuration or the price list."""
    listed = {
        f"{name}/{pattern}": size
        for name, provider in config.providers.items()
        for pattern, size in provider.contexts.items()
    }
    contexts = Contexts(listed)

    def size(provider: str, model: str) -> int | None:
        section = config.providers.get(provider)
        return contexts.find(
            provider,
            model,
            base_url=None if section is None else section.base_url,
            type=None if section is None else section.type,
        )

    return size


def build_stop_condition(configs: Sequence[StopConfig], *, path: str) -> Condition | None:
    """Build a condition that stops an answer when any of these is met; None for none."""
    if not configs:
        return None
    return stop_conditions.any_of(
        *(build_one_condition(each, path=f"{path}[{at}]") for at, each in enumerate(configs))
    )


def build_one_condition(config: StopConfig, *, path: str) -> Condition:
    """Build one condition, described by `describe_stop`."""
    for word, join in (("all", stop_conditions.all_of), ("any", stop_conditions.any_of)):
        if inner := getattr(config, word):
            return join(
                *(build_one_condition(each, path=f"{path}.{word}[{at}]") for at, each in enumerate(inner))
            )
    if config.use is not None:
        return load_condition(config.use, path=f"{path}.use")
    condition, why = builtin_condition(config), describe_stop(config)

    def check(so_far: SoFar) -> Halt | None:
        halt = condition.check(so_far)
        return None if halt is None else replace(halt, why=why)

    return Condition(check)


def load_condition(reference: str, *, path: str) -> Condition:
    """Load a stop condition that a configuration names. ConfigError."""
    function = load_function(reference, path=path)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{path}: {reference} is async; a stop condition is a plain function")
    if isinstance(function, Condition):
        return function
    return stop_conditions.make_condition(f"{reference.rpartition(':')[2]} says so", function)


def builtin_condition(config: StopConfig) -> Condition:
    """Build a stop condition of the library."""
    builders: dict[str, Callable[[], Condition]] = {
        "tool": lambda: stop_conditions.tool_called(config.tool or ""),
        "text": lambda: stop_conditions.text_matches(re.escape(config.text or "")),
        "matches": lambda: stop_conditions.text_matches(config.matches or ""),
        "steps": lambda: stop_conditions.steps(config.steps or 0),
        "tokens": lambda: stop_conditions.tokens(config.tokens or 0),
        "cost": lambda: stop_conditions.cost(config.cost or 0.0),
        "time": lambda: stop_conditions.seconds(config.seconds),
        "no_progress": lambda: stop_conditions.no_progress(config.no_progress or 0),
    }
    return builders[config.conditions[0]]()


def describe_stop(config: StopConfig) -> str:
    """Return the text of a condition as it follows `stopped: `."""
    word = config.conditions[0]
    value = getattr(config, word)
    if word in JOINERS:
        return JOINERS[word].join(
            f"({describe_stop(each)})" if each.all or each.any else describe_stop(each) for each in value
        )
    return STOP_REASONS[word].format(config.seconds if word == "time" else value)


def load_function(reference: str | None, *, path: str) -> Any:
    """Load the function that a field names; None without one. ConfigError."""
    if reference is None:
        return None
    try:
        found = load_object(reference)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None
    if not callable(found):
        raise ConfigError(f"{path}: {reference} is not a function")
    return found


def build_output(schema: dict[str, Any] | str | None, *, path: str) -> Output[Any] | None:
    """Build the output that an answer must match; None for text. ConfigError."""
    if schema is None:
        return None
    try:
        return Output(read_schema(schema) if isinstance(schema, str) else schema)  # type: ignore[arg-type]  # a schema
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None


_schema_decoder = msgspec.json.Decoder(dict[str, Any])


def read_schema(path: str) -> dict[str, Any]:
    """Read a JSON Schema from a file. ConfigError."""
    try:
        return decode_json(Path(path).read_bytes(), _schema_decoder)
    except OSError as error:
        raise ConfigError(f"cannot read {path!r}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path!r} does not contain a JSON Schema: {error}") from None
