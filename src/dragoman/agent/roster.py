"""The roster: which agents there are, and which provider answers for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from dragoman.agent.profile import Profile
from dragoman.errors import BadRequest, NotFound
from dragoman.providers.chain import Chain
from dragoman.providers.provider import Provider
from dragoman.providers.routing import Routing


class Pick(NamedTuple):
    """Who answers: the agent with its model, the provider, and the provider's name for the model."""

    agent: Profile
    provider: Provider
    model: str


class Roster:
    """Agents by name, and who answers for their models.

    The agent `default` answers where nothing else is said. `options` are what each provider is always given,
    `fell` hears of each fallback.
    """

    def __init__(
        self,
        agents: Mapping[str, Profile],
        routing: Routing,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        fell: Callable[[str, str], None] = lambda _, __: None,
    ) -> None:
        self.agents = agents
        self.routing = routing
        self._options = options or {}
        self._fell = fell

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
        try:
            chain = Chain(chosen.model, self.routing, options=self._options, fell=self._fell)
        except NotFound:
            known = _names({**self.routing.aliases, **self.routing.providers})
            raise BadRequest(
                f"no provider answers for {chosen.model!r}; the providers are {known}",
                field="model",
                hint="a model is written provider/model, or is an alias",
            ) from None
        return Pick(chosen, chain, chain.first.model)


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known)) or "none"
