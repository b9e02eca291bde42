"""Finds the configuration of a command: a file, the environment, or the local model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from dragoman.cli.local import is_installed
from dragoman.config import (
    DATABASE_VARIABLE,
    Config,
    ProviderConfig,
    config_variables,
    locate_error,
    parse_config,
    read_config,
)
from dragoman.errors import ConfigError

DEFAULT_FILE = Path("dragoman.yaml")
MISNAMED_FILES = ("dragoman.yml", ".dragoman.yaml", ".dragoman.yml", "dragoman.yaml.txt")
OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta/openai"
OPENROUTER_URL = "https://openrouter.ai/api/v1"
LOCAL_MODEL_SOURCE = "no configuration; the local model answers"
EXAMPLE = """set OPENAI_API_KEY or ANTHROPIC_API_KEY, try `dragoman local install` or
  `dragoman demo`, or write a dragoman.yaml such as this:

    providers:
      openai: {type: openai, base_url: https://api.openai.com/v1, api_key_env: OPENAI_API_KEY}
    model: openai/gpt-5-mini
"""


PINNED = ("math.calculate", "time.now")
INSTRUCTIONS = "Answer briefly. Use a tool to calculate or to tell the time."
LOCAL_STEPS = 4  # a small model repeats itself
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


def local_config() -> Config:
    """Return a configuration with the local model alone, all its tools listed: it is too small to search."""
    return Config(
        providers={"local": ProviderConfig(type="local")},
        model="local/smollm2",
        pinned=[*PINNED],
        instructions=INSTRUCTIONS,
        max_steps=LOCAL_STEPS,
    )


def config_from_keys(environ: Mapping[str, str]) -> tuple[Config, str] | None:
    """Return a configuration of the providers whose keys are set, and a description; None without any.

    The first model is the default, and the local model is there too if it is installed. As in the library,
    `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL` name other servers.
    """
    found = [variable for variable in DEFAULT_PROVIDERS if environ.get(variable, "").strip()]
    if not found:
        return None
    providers = {}
    for variable in found:
        provider, model = DEFAULT_PROVIDERS[variable]
        address = environ.get(variable.replace("_API_KEY", "_BASE_URL")) or provider.base_url
        providers[model.partition("/")[0]] = replace(provider, base_url=address)
    if is_installed():
        providers["local"] = ProviderConfig(type="local")
    config = Config(
        providers=providers,
        model=DEFAULT_PROVIDERS[found[0]][1],
        default_provider=next(iter(providers)),
        pinned=[*PINNED],
    )
    return config, f"no configuration; keys from {', '.join(found)}"


def is_file_source(source: str) -> bool:
    """Whether a source that `choose_config` returned is a file or the environment, not a default."""
    return not source.startswith("no configuration")


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


def choose_config(
    file: Path | None, operations: Sequence[str] = (), *, database: str | None = None
) -> tuple[Config, str]:
    """Return the configuration with further operations from `operations`, and where it comes from.

    Without one: the providers whose keys are in the environment, else the local model. ConfigError with an
    example when there is neither. `database`, else `DRAGOMAN_DATABASE`, goes over the file's URL.
    """
    config, source = find_config(file)
    url = database or os.environ.get(DATABASE_VARIABLE) or config.database
    parse_config({"database": url}, source="--database" if database else DATABASE_VARIABLE)
    return replace(add_operations(config, operations), database=url), source


def find_config(file: Path | None) -> tuple[Config, str]:
    """Return the configuration as it is, and where it comes from."""
    path = file or find_config_file()
    if path is not None:
        return read_config(path), str(path)
    if config_variables(os.environ):
        return read_config(None), "the environment"
    if (from_keys := config_from_keys(os.environ)) is not None:
        return from_keys
    if is_installed():
        return local_config(), LOCAL_MODEL_SOURCE
    raise ConfigError("No configuration was found, so no model could answer.", hint=EXAMPLE)


@contextmanager
def locating_errors(source: str) -> Iterator[None]:
    """Add file and line to a ConfigError of a hub that starts; `source` is that of `choose_config`."""
    try:
        yield
    except ConfigError as error:
        path = Path(source)
        raise (locate_error(error, path) if path.is_file() else error) from None


def read_config_if_any(file: Path | None) -> Config:
    """Return the configuration that `choose_config` finds, or an empty one."""
    path = file or find_config_file()
    return read_config(path) if path is not None or config_variables(os.environ) else Config()


def add_operations(config: Config, operations: Sequence[str]) -> Config:
    return replace(config, operations=[*config.operations, *operations])
