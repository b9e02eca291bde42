"""Switching: another model for one step of a run: found, permitted and paid for like the first."""

from __future__ import annotations

from dragoman.agent.preparing import Preparing
from dragoman.agent.profile import Profile
from dragoman.agent.roster import Roster
from dragoman.errors import BadRequest, Forbidden, NotFound, ProviderError
from dragoman.operations.identity import Identity
from dragoman.providers.model import Model
from dragoman.providers.routing import permit
from dragoman.runs.metered import Metered


class Switch:
    """Finds the models that `on_prepare_step` names. `metered` pays for the run."""

    def __init__(self, roster: Roster, metered: Metered, *, agent: str, identity: Identity) -> None:
        self._roster = roster
        self._metered = metered
        self._agent = agent
        self._identity = identity

    def __call__(self, model: Model | str) -> Model:
        """The model of this name. ProviderError when there is none, or the caller may not ask it."""
        if not isinstance(model, str):
            raise refused("in a hub a step names its model, as provider/model or an alias")
        try:
            pick = self._roster.pick(agent=self._agent, model=model)
            permit(self._identity.models, model, routing=self._roster.routing)
        except (BadRequest, Forbidden, NotFound) as error:
            raise refused(error.message) from None
        return Model(self._metered.other(pick.provider, pick.model, asked=model), pick.model)


def refused(why: str) -> ProviderError:
    return ProviderError(f"on_prepare_step: {why}", category="bad_request")


def preparing(agent: Profile, roster: Roster, *, metered: Metered, identity: Identity) -> Preparing | None:
    """What has a say before each step of the agent, if anything has."""
    if agent.prepare is None:
        return None
    return Preparing(agent.prepare, Switch(roster, metered, agent=agent.name, identity=identity))
