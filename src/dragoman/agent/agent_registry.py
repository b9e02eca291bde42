"""The roster: which agents there are, and which provider answers for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from dragoman.agent.spec import AgentSpec
from dragoman.errors import BadRequest, NotFound
from dragoman.providers.fallback import FallbackProvider
from dragoman.providers.provider import Provider
from dragoman.providers.routing import Routing


class ResolvedAgent(NamedTuple):
    """Who answers: the agent with its model, the provider, and the provider's name for the model."""

    agent: AgentSpec
    provider: Provider
    model: str


class AgentRegistry:
    """Agents by name, and who answers for their models.

    The agent `default` answers where nothing else is said. `options` are what each provider is always given,
    `fell` hears of each fallback.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSpec],
        routing: Routing,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_fallback: Callable[[str, str], None] = lambda _, __: None,
    ) -> None:
        self.agents = agents
        self.routing = routing
        self._options = options or {}
        self._on_fallback = on_fallback

    def resolve(
        self, *, agent: str | None = None, model: str | None = None, max_steps: int | None = None
    ) -> ResolvedAgent:
        """Who answers. BadRequest names what there is when the agent or the provider is unknown."""
        name = agent or "default"
        chosen = self.agents.get(name)
        if chosen is None:
            raise BadRequest(
                f"there is no agent {name!r}; there are {_name_list(self.agents)}", field="agent"
            )
        if model or max_steps:
            chosen = replace(chosen, model=model or chosen.model, max_steps=max_steps or chosen.max_steps)
        if not chosen.model:
            hint = "say `model: provider/model` in dragoman.yaml, or send `model`"
            raise BadRequest(f"no model is chosen for the agent {name!r}", field="model", hint=hint)
        try:
            chain = FallbackProvider(
                chosen.model, self.routing, options=self._options, on_fallback=self._on_fallback
            )
        except NotFound:
            known = _name_list({**self.routing.aliases, **self.routing.providers})
            raise BadRequest(
                f"no provider answers for {chosen.model!r}; the providers are {known}",
                field="model",
                hint="a model is written provider/model, or is an alias",
            ) from None
        return ResolvedAgent(chosen, chain, chain.first_route.model)


def _name_list(entries: Mapping[str, object]) -> str:
    return ", ".join(sorted(entries)) or "none"
