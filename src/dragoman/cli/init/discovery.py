"""Finds models: keys in the environment, model servers on this machine, the small local model."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.cli.local import is_installed
from dragoman.config import ProviderConfig
from dragoman.json_decoding import DECODE_ERRORS, decode_json

TIMEOUT = 1.0  # seconds for a server on this machine to list its models
MAX_ANSWER = 1_000_000
HUB_HEADER = "x-dragoman-request-id"  # of a hub that listens where vLLM would
OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta/openai"
OPENROUTER_URL = "https://openrouter.ai/api/v1"
OLLAMA = "http://127.0.0.1:11434"
SERVERS: Mapping[str, tuple[str, str]] = {
    "ollama": ("Ollama", OLLAMA),
    "lmstudio": ("LM Studio", "http://127.0.0.1:1234/v1"),
    "vllm": ("vLLM", "http://127.0.0.1:8000/v1"),
    "llamacpp": ("llama.cpp", "http://127.0.0.1:8080/v1"),
}
"""Model servers by the name of their provider: what they are, and where they listen by default."""

DEFAULT_PROVIDERS: Mapping[str, tuple[ProviderConfig, str]] = {
    "OPENAI_API_KEY": (
        ProviderConfig(type="openai", base_url=OPENAI_URL, api_key_env="OPENAI_API_KEY"),
        "openai/gpt-5-mini",
    ),
    "ANTHROPIC_API_KEY": (
        ProviderConfig(type="anthropic", base_url=ANTHROPIC_URL, api_key_env="ANTHROPIC_API_KEY"),
        "anthropic/claude-haiku-4-5",
    ),
    "GEMINI_API_KEY": (
        ProviderConfig(type="openai", base_url=GEMINI_URL, api_key_env="GEMINI_API_KEY"),
        "gemini/gemini-3.5-flash",
    ),
    "OPENROUTER_API_KEY": (
        ProviderConfig(type="openai", base_url=OPENROUTER_URL, api_key_env="OPENROUTER_API_KEY"),
        "openrouter/openai/gpt-5-mini",
    ),
}
"""What a key in the environment stands for without a configuration: a provider, and its default model."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that could answer: its fields, its default model, and where it was found."""

    name: str
    fields: Mapping[str, Any]
    model: str
    found: str
    models: Sequence[str] = ()

    @property
    def is_key(self) -> bool:
        """Whether a key in the environment stands for it."""
        return "api_key_env" in self.fields

    @property
    def default_model(self) -> str:
        """The default model as the configuration names it."""
        return f"{self.name}/{self.model}"


def find_sources(environ: Mapping[str, str]) -> list[ModelSource]:
    """Return all sources of models, the best first: hosted models, servers of this machine, the small model.

    Servers are asked for the list of their models. Nothing is sent to a hosted provider.
    """
    return [*find_keys(environ), *find_servers(environ), *find_local_model()]


def find_keys(environ: Mapping[str, str]) -> list[ModelSource]:
    """Return the providers whose keys are in the environment, as `dragoman serve` would use them."""
    sources = []
    for variable, (provider, model) in DEFAULT_PROVIDERS.items():
        if not environ.get(variable, "").strip():
            continue
        name, _, served = model.partition("/")
        address = environ.get(variable.replace("_API_KEY", "_BASE_URL")) or provider.base_url
        fields = {"type": provider.type, "base_url": address, "api_key_env": variable}
        sources.append(ModelSource(name=name, fields=fields, model=served, found=f"${variable}"))
    return sources


def find_local_model() -> list[ModelSource]:
    """Return the small local model if it is installed."""
    if not is_installed():
        return []
    found = "installed here, works offline"
    return [ModelSource(name="local", fields={"type": "local"}, model="smollm2", found=found)]


def find_servers(environ: Mapping[str, str]) -> list[ModelSource]:
    """Return the model servers that answer on this machine and have a model; asks all at once."""
    names = [name for name in SERVERS if listens(server_address(name, environ))]
    if not names:
        return []
    with ThreadPoolExecutor(len(names)) as threads:
        found = threads.map(lambda name: ask_server(name, address=server_address(name, environ)), names)
        return [source for source in found if source is not None]


def listens(address: str) -> bool:
    """Whether something listens at an address."""
    try:
        parts = urlsplit(address)
        place = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        with socket.create_connection(place, timeout=TIMEOUT):
            return True
    except (OSError, ValueError):
        return False


def server_address(name: str, environ: Mapping[str, str]) -> str:
    """Return the address at which a server is expected: OLLAMA_HOST names Ollama's."""
    host = environ.get("OLLAMA_HOST", "").strip()
    if name != "ollama" or not host:
        return SERVERS[name][1]
    host = host if "://" in host else f"http://{host}"
    address = host.replace("//0.0.0.0", "//127.0.0.1").rstrip("/")
    return address if ":" in address.partition("//")[2] else f"{address}:11434"


def ask_server(name: str, *, address: str) -> ModelSource | None:
    """Return a server with its models; None if it does not answer as one, or has none."""
    # late: takes 0.2 s, and most machines have no such server
    import httpx2

    is_ollama = name == "ollama"
    try:
        with (
            httpx2.Client(timeout=TIMEOUT, trust_env=False) as client,
            client.stream("GET", f"{address}{'/api/tags' if is_ollama else '/models'}") as response,
        ):
            if response.status_code != 200 or HUB_HEADER in response.headers:
                return None
            body = read_within(response.iter_bytes(), seconds=TIMEOUT)
        listed = decode_json(body)["models" if is_ollama else "data"]
        chat = [model for model in listed_models(listed) if "embed" not in model.lower()]
    except (
        httpx2.HTTPError,
        httpx2.InvalidURL,
        *DECODE_ERRORS,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):
        return None
    if not chat:
        return None
    fields = {"type": "ollama" if is_ollama else "openai", "base_url": address}
    title = SERVERS[name][0]
    return ModelSource(name=name, fields=fields, model=chat[0], models=chat, found=f"{title} at {address}")


def read_within(chunks: Iterator[bytes], *, seconds: float) -> bytes:
    """Return a body. ValueError for one that takes longer, or has more than MAX_ANSWER bytes."""
    body, ends_at = b"", time.monotonic() + seconds
    for chunk in chunks:
        body += chunk
        if len(body) > MAX_ANSWER or time.monotonic() > ends_at:
            raise ValueError("it is not a list of models")
    return body


def listed_models(listed: Any) -> Iterator[str]:
    """Return the names of listed models, as Ollama and as the others list them."""
    for each in listed:
        yield str(each["name"] if "name" in each else each["id"])
