"""Settings: the configuration that is named, the one that lies here, or else the local model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dragoman.cli.weights import installed
from dragoman.config import Config, ProviderConfig, read_config
from dragoman.errors import ConfigError

HERE = Path("dragoman.yaml")
EXAMPLE = """write a dragoman.yaml such as this, or try `dragoman local install` or `dragoman demo`:

    providers:
      openai: {type: openai, base_url: https://api.openai.com/v1, api_key_env: OPENAI_API_KEY}
    model: openai/gpt-5-mini
"""


def local_config() -> Config:
    """The small local model, and nothing else."""
    return Config(providers={"local": ProviderConfig(type="local")}, model="local/smollm2")


def choose(named: Path | None, places: Sequence[str] = ()) -> tuple[Config, str]:
    """The configuration with further operations from `places`, and where it comes from.

    ConfigError with an example when there is none and the local model is not installed.
    """
    path = named or (HERE if HERE.exists() else None)
    if path is not None:
        return with_operations(read_config(path), places), str(path)
    if installed():
        return with_operations(local_config(), places), "no configuration; the local model answers"
    raise ConfigError("there is no configuration, so no model could answer", hint=EXAMPLE)


def with_operations(config: Config, places: Sequence[str]) -> Config:
    return replace(config, operations=[*config.operations, *places])
