"""The provider protocol: a model request in, batches of events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

from dragoman.events import Event
from dragoman.model_request import ModelRequest


class Provider(Protocol):
    """Answers model requests."""

    @property
    def name(self) -> str:
        """Its name in the hub: the first part of `provider/model`."""
        ...

    @property
    def family(self) -> str:
        """The family of its protocol: `openai`, `anthropic`, `ollama`, or a name of its own."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Send a request; yield the events of each socket read as one batch.

        Text, reasoning and tool-input blocks open, grow and close in order; a tool call ends with
        `tool-input-available`, or with `tool-input-error` when its arguments are not valid JSON. The last
        event of the last batch is a `finish-step` with reason, usage and the model that served. Block ids
        are unique within one answer. A failure raises ProviderError; a truncated answer never gets a finish.
        Retries happen inside, and only before the first byte of the answer. Closing the generator closes the
        socket at once.
        """
        ...

    def check(self, request: ModelRequest) -> Sequence[str]:
        """Return the names of the options that this provider does not support and drops.

        Raises BadRequest, with the field, for one that cannot be dropped without changing the request's
        meaning.
        """
        ...


@runtime_checkable
class ClosableProvider(Provider, Protocol):
    """A provider that opens sockets or child processes, and closes them."""

    async def close(self) -> None:
        """Close sockets and child processes."""
        ...


async def close_provider(provider: Provider) -> None:
    """Close a provider if it can be closed."""
    if isinstance(provider, ClosableProvider):
        await provider.close()
