"""The sources of the API's reports on the hub: its present configuration and model setup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dragoman.config import Config
from dragoman.identity import Identity
from dragoman.providers.remote import RemoteProvider
from dragoman.server.app.config_summary import explain_config
from dragoman.server.app.model_setup import ModelSetup
from dragoman.server.app.providers import ProviderSet
from dragoman.server.app.services import HubServices
from dragoman.server.system import ProviderStatus, SystemSources

ReadState: TypeAlias = Callable[[], tuple[Config, ModelSetup]]
"""Returns the configuration and the model setup in force."""


def system_sources(read: ReadState, *, services: HubServices) -> SystemSources:
    """Return the sources that the handlers of `server/system.py` read."""
    environ = services.environment.environ

    def allowed_models(identity: Identity) -> Sequence[str]:
        return read()[1].catalog.allowed_models(identity)

    return SystemSources(
        agents=lambda: read()[1].agent_registry.agents,
        providers=lambda: provider_statuses(read()[1].providers),
        config=lambda: explain_config(read()[0], environ),
        models=allowed_models,
        default_model=lambda: read()[0].model,
        retention=lambda: read()[0].retention_periods,
        database=lambda: read()[0].database,
    )


def provider_statuses(providers: ProviderSet) -> Sequence[ProviderStatus]:
    """Return the state of each provider."""
    return [
        ProviderStatus(name, each.family, each.server.display_url, each.keys.statuses())
        if isinstance(each, RemoteProvider)
        else ProviderStatus(name, each.family)
        for name, each in providers.providers.items()
    ]
