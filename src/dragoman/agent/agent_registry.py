"""The agents of a hub by name, resolved to a model and the providers that serve it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from dragoman.agent.spec import AgentSpec
from dragoman.errors import BadRequest, NotFound
from dragoman.providers.routing import ModelRoutes, Routing
from dragoman.suggestions import suggest
from dragoman.wire.ui.client_request import WhenBusy


class ResolvedAgent(NamedTuple):
    """An agent, the routes of its model, and the registry of both: a step may name another model."""

    agent: AgentSpec
    routes: ModelRoutes
    registry: AgentRegistry


class AgentRegistry:
    """Agents by name, with the routing of their models.

    The agent `default` is used when a request names none. `options` are sent with every request to a
    provider; `on_fallback` is called at each fallback with the failed and the next route.
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

    def when_busy(self, agent: str | None) -> WhenBusy:
        """Return what becomes of a message that arrives while the agent answers."""
        agent_spec = self.agents.get(agent or "default")
        return "refuse" if agent_spec is None else agent_spec.when_busy

    def resolve(
        self,
        *,
        agent: str | None = None,
        model: str | None = None,
        max_steps: int | None = None,
        select: bool = True,
    ) -> ResolvedAgent:
        """Return the agent with its model and provider; without `select` no run follows, so none is counted.

        Raises BadRequest for an unknown agent or model; the text lists those that exist.
        """
        name = agent or "default"
        agent_spec = self.agents.get(name)
        if agent_spec is None:
            similar = suggest(name, self.agents)
            raise BadRequest(
                f"there is no agent {name!r}; there are {_name_list(self.agents)}{similar}", field="agent"
            )
        if model or max_steps:
            agent_spec = replace(
                agent_spec, model=model or agent_spec.model, max_steps=max_steps or agent_spec.max_steps
            )
        if not agent_spec.model:
            hint = "say `model: provider/model` in dragoman.yaml, or send `model`"
            raise BadRequest(f"no model is chosen for the agent {name!r}", field="model", hint=hint)
        try:
            routes = self.routing.model_routes(
                agent_spec.model, options=self._options, on_fallback=self._on_fallback, select=select
            )
        except NotFound:
            models = _name_list({**self.routing.aliases, **self.routing.providers})
            raise BadRequest(
                f"no provider answers for {agent_spec.model!r}; the providers are {models}"
                f"{self.routing.suggest(agent_spec.model)}",
                field="model",
                hint="a model is written provider/model, or is an alias",
            ) from None
        return ResolvedAgent(agent_spec, routes, self)


def _name_list(entries: Mapping[str, object]) -> str:
    return ", ".join(sorted(entries)) or "none"
