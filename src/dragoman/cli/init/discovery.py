"""Find what could answer: keys in the environment, model servers on this machine, the small local model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import msgspec

from dragoman.cli.configuration import DEFAULT_PROVIDERS
from dragoman.cli.local import is_installed

TIMEOUT = 1.0  # seconds for a server on this machine to list its models
MAX_ANSWER = 1_000_000
HUB_HEADER = "x-dragoman-request-id"  # of a hub that listens where vLLM would
OLLAMA = "http://127.0.0.1:11434"
SERVERS: Mapping[str, tuple[str, str]] = {
    "ollama": ("Ollama", OLLAMA),
    "lmstudio": ("LM Studio", "http://127.0.0.1:1234/v1"),
    "vllm": ("vLLM", "http://127.0.0.1:8000/v1"),
    "llamacpp": ("llama.cpp", "http://127.0.0.1:8080/v1"),
}
"""Model servers by the name of their provider: what they are, and where they listen by default."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that could answer: its fields, its default model, and where it was found."""

    name: str
    fields: Mapping[str, Any]
    model: str
    found: str
    models: Sequence[str] = ()

    @property
    def default_model(self) -> str:
        """The default model as the configuration names it."""
        return f"{self.name}/{self.model}"


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


async def find_servers(environ: Mapping[str, str]) -> list[ModelSource]:
    """Return the model servers that answer on this machine and have a model; asks all at once."""
    async with httpx2.AsyncClient(timeout=TIMEOUT, trust_env=False) as client:
        requests = [
            ask_server(client, name, address=server_address(name, environ), title=title)
            for name, (title, _) in SERVERS.items()
        ]
        found = await asyncio.gather(*requests)
    return [source for source in found if source is not None]


def server_address(name: str, environ: Mapping[str, str]) -> str:
    """Return where a server is looked for: OLLAMA_HOST names Ollama's."""
    host = environ.get("OLLAMA_HOST", "").strip()
    if name != "ollama" or not host:
        return SERVERS[name][1]
    host = host if "://" in host else f"http://{host}"
    address = host.replace("//0.0.0.0", "//127.0.0.1").rstrip("/")
    return address if ":" in address.partition("//")[2] else f"{address}:11434"


async def ask_server(
    client: httpx2.AsyncClient, name: str, *, address: str, title: str
) -> ModelSource | None:
    """Return a server with its models; None if it does not answer as one, or has none."""
    is_ollama = name == "ollama"
    try:
        response = await client.get(f"{address}{'/api/tags' if is_ollama else '/models'}")
        if response.status_code != 200 or HUB_HEADER in response.headers:
            return None
        if len(response.content) > MAX_ANSWER:
            return None
        listed = response.json()["models" if is_ollama else "data"]
        models = [str(each["name" if is_ollama else "id"]) for each in listed]
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError):
        return None
    chat = [model for model in models if "embed" not in model.lower()]
    if not chat:
        return None
    fields = {"type": "ollama" if is_ollama else "openai", "base_url": address}
    return ModelSource(name=name, fields=fields, model=chat[0], models=chat, found=f"{title} at {address}")
