"""Record a provider's requests and answers to files, and replay them.

`record(provider, folder)` calls the provider and writes one JSON file per request, without secrets;
`replay(folder)` answers from these files without a network, and rejects a request that was not recorded. Ids
and metadata of messages differ from run to run and are not sent, so they are ignored.
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
from dragoman.providers.provider import Provider, close_provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.wrapper import ProviderWrapper

MAX_DIFF_LINES = 80  # of a diff in an error message


class RecordingProvider(ProviderWrapper[Provider]):
    """A provider that records its traffic."""

    def __init__(self, provider: Provider, folder: Path, *, secrets: Collection[str]) -> None:
        super().__init__(provider)
        self._folder = folder
        self._secrets = [*secrets, *_secrets_of(provider)]
        self._count = 0

    def model(self, name: str, **options: Any) -> Model:
        """Return one of the provider's models, recorded."""
        return Model(self, name, options)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """See `Provider.stream`. An answer that the caller abandons is not recorded."""
        self._count += 1
        path = self._folder / f"{self._count:04}.json"
        batches: list[Sequence[e.Event]] = []
        recorded_error: RecordedError | None = None
        try:
            async with aclosing(self._provider.stream(request)) as answer:
                async for batch in answer:
                    batches.append(batch)
                    yield batch
        except ProviderError as error:
            recorded_error = RecordedError.from_error(error)
            raise
        finally:
            if recorded_error is not None or (batches and isinstance(batches[-1][-1], e.FinishStep)):
                await asyncio.to_thread(
                    self._write, path, self._cassette(request, batches, error=recorded_error)
                )

    async def close(self) -> None:
        """Close the provider."""
        await close_provider(self._provider)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _cassette(
        self, request: ModelRequest, batches: Sequence[Sequence[e.Event]], *, error: RecordedError | None
    ) -> Cassette:
        redacted = redact_answer(batches, self._secrets)
        return Cassette(
            provider=self.name,
            family=self.family,
            request=normalise_request(request, self._secrets),
            answer=[[msgspec.to_builtins(event) for event in batch] for batch in redacted],
            error=None if error is None else error.redacted(self._secrets),
        )

    def _write(self, path: Path, cassette: Cassette) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cassette.encode())


class ReplayProvider:
    """A provider that answers from recordings, each once. `async with` fails if some were not used."""

    def __init__(self, cassettes: Sequence[Cassette], folder: Path, *, secrets: Collection[str]) -> None:
        self.name = cassettes[0].provider
        self.family = cassettes[0].family
        self._remaining = list(cassettes)
        self._folder = folder
        self._secrets = list(secrets)

    def model(self, name: str, **options: Any) -> Model:
        """Return the recorded model; pass the same name and options."""
        return Model(self, name, options)

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """Replay the answer to an equal request. Raises ProviderError with a diff if there is none."""
        cassette = self._take(normalise_request(request, self._secrets))
        for batch in cassette.batches():
            await asyncio.sleep(0)  # let other tasks run, as a socket would
            yield batch
        if cassette.error is not None:
            raise cassette.error.to_error()

    def assert_complete(self) -> None:
        """Raise AssertionError if recordings were not used."""
        if self._remaining:
            names = ", ".join(cassette.file_name for cassette in self._remaining)
            raise AssertionError(f"{len(self._remaining)} recordings were not used: {names}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.assert_complete()

    def _take(self, request: Any) -> Cassette:
        """Return the first unused recording of this request: concurrent agents send requests in any order."""
        for index, cassette in enumerate(self._remaining):
            if cassette.request == request:
                return self._remaining.pop(index)
        if not self._remaining:
            raise ProviderError(
                f"all recordings in {str(self._folder)!r} were already used", category="bad_request"
            )
        expected = self._remaining[0]
        raise ProviderError(
            f"the request is not the one recorded in {expected.file_name!r}:\n"
            f"{diff_requests(expected.request, request)}",
            category="bad_request",
            hint="record again if the change is intended",
        )


def record(provider: Provider, folder: str | Path, *, secrets: Collection[str] = ()) -> RecordingProvider:
    """Return the provider with its traffic recorded in a folder; pass `.model(name)` to an agent.

    The provider's keys, strings that look like keys, and `secrets` are redacted. Raises ConfigError if the
    folder already contains recordings: they are never overwritten.
    """
    path = Path(folder)
    if any(path.glob("*.json")):
        raise ConfigError(
            f"the folder {str(path)!r} already contains recordings", hint="delete them, or use another folder"
        )
    return RecordingProvider(provider, path, secrets=secrets)


def replay(folder: str | Path, *, secrets: Collection[str] = ()) -> ReplayProvider:
    """Return a provider that answers from recordings; `secrets` as in `record`.

    Raises ConfigError if the folder has no readable recordings.
    """
    path = Path(folder)
    cassettes = read_cassettes(path)
    if not cassettes:
        raise ConfigError(
            f"there are no recordings in {str(path)!r}", hint="create them with record(provider, folder)"
        )
    return ReplayProvider(cassettes, path, secrets=secrets)


def diff_requests(expected: Any, actual: Any) -> str:
    """Return a unified diff of two requests: `-` is the recorded one, `+` the actual one."""
    before, after = (
        msgspec.json.format(msgspec.json.encode(request)).decode().splitlines()
        for request in (expected, actual)
    )
    diff = list(difflib.unified_diff(before, after, "recorded", "requested", lineterm="", n=2))
    rest = [f"… and {len(diff) - MAX_DIFF_LINES} more lines"] if len(diff) > MAX_DIFF_LINES else []
    return "\n".join(diff[:MAX_DIFF_LINES] + rest)


def _secrets_of(provider: Provider) -> list[str]:
    if not isinstance(provider, RemoteProvider):
        return []
    return [*provider.server.secrets, *provider.keys.secrets]
