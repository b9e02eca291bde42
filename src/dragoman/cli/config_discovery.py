"""Finds the configuration of a command: a file, the environment, or model servers of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from dragoman.cli.init.discovery import ModelSource, find_sources
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
LOCAL_MODEL_SOURCE = "no configuration; the local model answers"
EXAMPLE = """set OPENAI_API_KEY or ANTHROPIC_API_KEY, start Ollama, try `dragoman local install` or
  `dragoman demo`, or write a dragoman.yaml such as this:

    providers:
      openai: {type: openai, base_url: https://api.openai.com/v1, api_key_env: OPENAI_API_KEY}
    model: openai/gpt-5-mini
"""


PINNED = ("math.calculate", "time.now")
INSTRUCTIONS = "Answer briefly. Use a tool to calculate or to tell the time."
LOCAL_STEPS = 4  # a small model repeats itself


def local_config() -> Config:
    """Return a configuration with the local model alone, all its tools listed: it is too small to search."""
    return Config(
        providers={"local": ProviderConfig(type="local")},
        model="local/smollm2",
        pinned=[*PINNED],
        instructions=INSTRUCTIONS,
        max_steps=LOCAL_STEPS,
    )


def config_from_sources(sources: Sequence[ModelSource]) -> tuple[Config, str] | None:
    """Return a configuration of what was found on this machine, and a description; None without any.

    The default model is that of the first source. The small local model alone has a configuration of its own.
    """
    if not sources:
        return None
    if [source.name for source in sources] == ["local"]:
        return local_config(), LOCAL_MODEL_SOURCE
    first = sources[0]
    config = Config(
        providers={source.name: ProviderConfig(**source.fields) for source in sources},
        model=first.default_model,
        default_provider=first.name,
        pinned=[*PINNED],
    )
    keys = ", ".join(source.found.removeprefix("$") for source in sources if source.is_key)
    servers = [source.found for source in sources if not source.is_key and source.name != "local"]
    return config, "; ".join(["no configuration", *([f"keys from {keys}"] if keys else []), *servers])


def is_file_source(source: str) -> bool:
    """Return whether a source that `choose_config` returned is a file or the environment, not a default."""
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

    Without one: the providers whose keys are in the environment, the model servers that answer on this
    machine, and the small local model. ConfigError with an example when there is none of them. `database`,
    else `DRAGOMAN_DATABASE`, replaces the file's URL.
    """
    config, source = find_config(file)
    url = database or os.environ.get(DATABASE_VARIABLE) or config.database
    parse_config({"database": url}, source="--database" if database else DATABASE_VARIABLE)
    return replace(add_operations(config, operations), database=url), source


class ServedConfig:
    """The configuration of a hub that begins, and what is found in its place later.

    `source` says where it comes from. `found_file` is its file, if no option names one.
    """

    def __init__(self, named: Path | None, *, operations: Sequence[str], database: str | None) -> None:
        """See `choose_config`; `named` is the file of an option. Raises ConfigError."""
        self._file = named or find_config_file()
        self._operations = operations
        self._database = database
        self.found_file = None if named is not None else self._file
        self.current, self.source = choose_config(self._file, operations, database=database)

    def read_again(self) -> Config:
        """Return the configuration as it is now. ConfigError.

        It is an error, too, when the file is gone, says nothing any more, or is a pipe: perhaps somebody is
        just writing it, and without it the hub would go on without its policy and its limits.
        """
        file = self._file
        if file is not None and file.exists() and not file.is_file():
            raise ConfigError(f"cannot read {str(file)!r} again: it is not a regular file")
        config, _ = choose_config(file, self._operations, database=self._database)
        if file is not None and self._is_empty(config) and not self._is_empty(self.current):
            raise ConfigError(f"{file} is empty", hint="restart the hub to run it without a configuration")
        return config

    def _is_empty(self, config: Config) -> bool:
        defaults = add_operations(read_config(None), self._operations)
        return config == replace(defaults, database=config.database)


def find_config(file: Path | None) -> tuple[Config, str]:
    """Return the configuration as it is, and where it comes from."""
    path = file or find_config_file()
    if path is not None:
        return read_config(path), str(path)
    if config_variables(os.environ):
        return read_config(None), "the environment"
    if (found := config_from_sources(find_sources(os.environ))) is not None:
        return found
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
