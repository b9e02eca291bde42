"""The roster: which agents there are, and which provider answers for a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.errors import BadRequest
from dragoman.providers.provider import Provider


class Pick(NamedTuple):
    """Who answers: the agent with its model, the provider, and the provider's name for the model."""

    agent: Agent
    provider: Provider
    model: str


class Roster:
    """Agents by name and providers by name, with the options that each provider is given always.

    The agent `default` answers where nothing else is said.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        providers: Mapping[str, Provider],
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.agents = agents
        self.providers = providers
        self._options = options or {}

    def pick(
        self, *, agent: str | None = None, model: str | None = None, max_steps: int | None = None
    ) -> Pick:
        """Who answers. BadRequest names what there is when the agent or the provider is unknown."""
        name = agent or "default"
        chosen = self.agents.get(name)
        if chosen is None:
            raise BadRequest(f"there is no agent {name!r}; there are {_names(self.agents)}", field="agent")
        if model or max_steps:
            chosen = replace(chosen, model=model or chosen.model, max_steps=max_steps or chosen.max_steps)
        if not chosen.model:
            hint = "say `model: provider/model` in dragoman.yaml, or send `model`"
            raise BadRequest(f"no model is chosen for the agent {name!r}", field="model", hint=hint)
        place, _, served = chosen.model.partition("/")
        provider = self.providers.get(place)
        if provider is None or not served:
            raise BadRequest(
                f"no provider answers for {chosen.model!r}; the providers are {_names(self.providers)}",
                field="model",
                hint="a model is written provider/model",
            )
        chosen = replace(chosen, options={**self._options.get(place, {}), **chosen.options})
        return Pick(chosen, provider, served)


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known)) or "none"
