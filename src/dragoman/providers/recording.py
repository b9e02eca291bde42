"""Recordings: what a provider was asked and answered, as files without secrets, and their replay.

`record(provider, folder)` asks the provider and writes one JSON file a request; `replay(folder)` answers out
of these files, without a network, and refuses a request that was not recorded. Ids and metadata of messages
differ from run to run and are not sent: they do not count.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

import msgspec

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderError
from dragoman.model_request import ModelRequest
from dragoman.providers.cassette import (
    Cassette,
    RecordedError,
    normalise_request,
    read_cassettes,
    redact_answer,
)
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.wrapper import ProviderWrapper

MAX_DIFF_LINES = 80  # of a difference that is shown


class RecordingProvider(ProviderWrapper[Provider]):
    """A provider whose traffic is written down."""

    def __init__(self, provider: Provider, folder: Path, *, secrets: Collection[str]) -> None:
        super().__init__(provider)
        self._folder = folder
        self._secrets = [*secrets, *_secrets_of(provider)]
        self._count = 0

    def model(self, name: str, **options: Any) -> Model:
        """A model of the provider's, recorded."""
        return Model(self, name, options)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """See `Provider.stream`. What was given up in the middle is not written down."""
        self._count += 1
        place = self._folder / f"{self._count:04}.json"
        batches: list[Sequence[e.Event]] = []
        failed: RecordedError | None = None
        try:
            async with aclosing(self._provider.stream(request)) as answer:
                async for batch in answer:
                    batches.append(batch)
                    yield batch
        except ProviderError as error:
            failed = RecordedError.from_error(error)
            raise
        finally:
            if failed is not None or (batches and isinstance(batches[-1][-1], e.FinishStep)):
                await asyncio.to_thread(self._write, place, self._cassette(request, batches, error=failed))

    async def close(self) -> None:
        """Close the provider."""
        await self._provider.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _cassette(
        self, request: ModelRequest, batches: Sequence[Sequence[e.Event]], *, error: RecordedError | None
    ) -> Cassette:
        clean = redact_answer(batches, self._secrets)
        return Cassette(
            provider=self.name,
            family=self.family,
            request=normalise_request(request, self._secrets),
            answer=[[msgspec.to_builtins(event) for event in batch] for batch in clean],
            error=None if error is None else error.redacted(self._secrets),
        )

    def _write(self, path: Path, cassette: Cassette) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cassette.encode())


class ReplayProvider:
    """A provider that answers out of recordings, each once. `async with` fails when some are left."""

    resting = False

    def __init__(self, cassettes: Sequence[Cassette], folder: Path, *, secrets: Collection[str]) -> None:
        self.name = cassettes[0].provider
        self.family = cassettes[0].family
        self._remaining = list(cassettes)
        self._folder = folder
        self._secrets = list(secrets)

    def model(self, name: str, **options: Any) -> Model:
        """The model that was recorded, by the same name and options."""
        return Model(self, name, options)

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """The answer to the same request. ProviderError with the difference when there is none."""
        cassette = self._take(normalise_request(request, self._secrets))
        for batch in cassette.batches():
            await asyncio.sleep(0)  # as a socket would, let others run
            yield batch
        if cassette.error is not None:
            raise cassette.error.to_error()

    def assert_complete(self) -> None:
        """AssertionError when recordings were not asked for."""
        if self._remaining:
            names = ", ".join(cassette.file_name for cassette in self._remaining)
            raise AssertionError(f"{len(self._remaining)} recordings were not asked for: {names}")

    async def close(self) -> None:
        """Nothing: no socket was opened."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.assert_complete()

    def _take(self, request: Any) -> Cassette:
        """The first recording of this very request: agents that work at a time ask in any order."""
        for at, cassette in enumerate(self._remaining):
            if cassette.request == request:
                return self._remaining.pop(at)
        if not self._remaining:
            raise ProviderError(
                f"all recordings in {str(self._folder)!r} were asked for already", category="bad_request"
            )
        expected = self._remaining[0]
        raise ProviderError(
            f"the request is not the one recorded in {expected.file_name!r}:\n"
            f"{diff_requests(expected.request, request)}",
            category="bad_request",
            hint="record again if the change is meant",
        )


def record(provider: Provider, folder: str | Path, *, secrets: Collection[str] = ()) -> RecordingProvider:
    """The provider, with its traffic written into the folder; give it to an agent by `.model(name)`.

    Left out are the provider's keys, what looks like one, and the `secrets`. ConfigError when the folder
    holds recordings already: they are never overwritten.
    """
    place = Path(folder)
    if any(place.glob("*.json")):
        raise ConfigError(
            f"the folder {str(place)!r} holds recordings already", hint="delete them, or name another folder"
        )
    return RecordingProvider(provider, place, secrets=secrets)


def replay(folder: str | Path, *, secrets: Collection[str] = ()) -> ReplayProvider:
    """A provider that answers as the recorded one did; `secrets` as in `record`. ConfigError if it cannot."""
    place = Path(folder)
    cassettes = read_cassettes(place)
    if not cassettes:
        raise ConfigError(
            f"there are no recordings in {str(place)!r}", hint="make some with record(provider, folder)"
        )
    return ReplayProvider(cassettes, place, secrets=secrets)


def diff_requests(expected: Any, actual: Any) -> str:
    """What is not alike, line by line: `-` was recorded, `+` is asked."""
    before, now = (msgspec.json.format(msgspec.json.encode(it)).decode() for it in (expected, actual))
    lines = before.splitlines(), now.splitlines()
    found = list(difflib.unified_diff(lines[0], lines[1], "recorded", "asked", lineterm="", n=2))
    more = [f"… and {len(found) - MAX_DIFF_LINES} lines more"] if len(found) > MAX_DIFF_LINES else []
    return "\n".join(found[:MAX_DIFF_LINES] + more)


def _secrets_of(provider: Provider) -> list[str]:
    if not isinstance(provider, RemoteProvider):
        return []
    return [*provider.server.secrets, *provider.keys.secrets]
