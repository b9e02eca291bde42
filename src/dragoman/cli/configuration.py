"""Finds the configuration of a command: a file, the environment, or the local model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dragoman.cli.local import is_installed
from dragoman.config import Config, ProviderConfig, config_variables, read_config
from dragoman.errors import ConfigError

DEFAULT_FILE = Path("dragoman.yaml")
MISNAMED_FILES = ("dragoman.yml", ".dragoman.yaml", ".dragoman.yml", "dragoman.yaml.txt")
LOCAL_MODEL_SOURCE = "no configuration; the local model answers"
EXAMPLE = """write a dragoman.yaml such as this, or try `dragoman local install` or `dragoman demo`:

    providers:
      openai: {type: openai, base_url: https://api.openai.com/v1, api_key_env: OPENAI_API_KEY}
    model: openai/gpt-5-mini
"""


def local_config() -> Config:
    """Return a configuration with the local model alone."""
    return Config(providers={"local": ProviderConfig(type="local")}, model="local/smollm2")


def find_config_file() -> Path | None:
    """Return the configuration file of this folder, if there is one. ConfigError for one of another name."""
    if DEFAULT_FILE.exists():
        return DEFAULT_FILE
    for name in MISNAMED_FILES:
        if Path(name).exists():
            raise ConfigError(
                f"{name} is not read: the file is called {DEFAULT_FILE}",
                hint=f"rename it (`mv {name} {DEFAULT_FILE}`), or name it with --config {name}",
            )
    return None


def choose_config(file: Path | None, operations: Sequence[str] = ()) -> tuple[Config, str]:
    """Return the configuration with further operations from `operations`, and where it comes from.

    ConfigError with an example when none is found and the local model is not installed.
    """
    path = file or find_config_file()
    if path is not None:
        return add_operations(read_config(path), operations), str(path)
    if config_variables(os.environ):
        return add_operations(read_config(None), operations), "the environment"
    if is_installed():
        return add_operations(local_config(), operations), LOCAL_MODEL_SOURCE
    raise ConfigError("No configuration was found, so no model could answer.", hint=EXAMPLE)


def read_config_if_any(file: Path | None) -> Config:
    """Return the configuration that `choose_config` finds, or an empty one."""
    path = file or find_config_file()
    return read_config(path) if path is not None or config_variables(os.environ) else Config()


def add_operations(config: Config, operations: Sequence[str]) -> Config:
    return replace(config, operations=[*config.operations, *operations])
