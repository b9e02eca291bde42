"""Settings: the configuration that is named, the one that lies here, or else the local model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dragoman.cli.local import installed
from dragoman.config import Config, ProviderConfig, read_config, said_in
from dragoman.errors import ConfigError

HERE = Path("dragoman.yaml")
NO_FILE = "no configuration; the local model answers"
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
    if said_in(os.environ):
        return with_operations(read_config(None), places), "the environment"
    if installed():
        return with_operations(local_config(), places), NO_FILE
    raise ConfigError("there is no configuration, so no model could answer", hint=EXAMPLE)


def said_so_far(named: Path | None) -> Config:
    """The configuration that `choose` takes, where there is one; for commands that need none."""
    path = named or (HERE if HERE.exists() else None)
    return read_config(path) if path is not None or said_in(os.environ) else Config()


def with_operations(config: Config, places: Sequence[str]) -> Config:
    return replace(config, operations=[*config.operations, *places])
