"""Base class of providers that wrap another provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from dragoman.model_request import ModelRequest
from dragoman.providers.provider import Provider

P = TypeVar("P", bound=Provider)


class ProviderWrapper(Generic[P]):
    """Delegates everything but `stream` to the wrapped provider."""

    def __init__(self, provider: P) -> None:
        self._provider = provider

    @property
    def name(self) -> str:
        """See `Provider.name`."""
        return self._provider.name

    @property
    def family(self) -> str:
        """See `Provider.family`."""
        return self._provider.family

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return self._provider.check(request)
