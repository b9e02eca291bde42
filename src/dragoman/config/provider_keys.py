"""Keys of providers: where each lies, and what lies there. They are read here, and never shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from dragoman.config.sections import Config, KeyConfig, ProviderConfig
from dragoman.errors import ConfigError

log = logging.getLogger(__name__)
NO_SECRETS: Mapping[str, str] = {}


def key_sources(provider: ProviderConfig) -> dict[str, KeyConfig]:
    """Where a provider's keys lie, by the name that people see; empty when it has none.

    A key without a name is called by its number, and the only key of a provider `default`.
    """
    if provider.keys:
        return {key.name or str(place): key for place, key in enumerate(provider.keys, start=1)}
    only = KeyConfig(
        api_key_env=provider.api_key_env,
        api_key_file=provider.api_key_file,
        api_key_secret=provider.api_key_secret,
    )
    return {} if only == KeyConfig() else {"default": only}


def read_key(
    key: KeyConfig, *, name: str, environ: Mapping[str, str], secrets: Mapping[str, str] = NO_SECRETS
) -> str | None:
    """What lies at a key's place, `secrets` being the encrypted table; None and a warning when nothing does.

    A hub that serves several providers is not kept from starting by one. ConfigError when a file cannot be
    read, or when what is there could not be sent.
    """
    if key.api_key_env is not None:
        value, place = environ.get(key.api_key_env), f"the environment variable {key.api_key_env} is not set"
    elif key.api_key_file is not None:
        value, place = _read_key_file(key.api_key_file, name=name), "the key file is empty"
    else:
        place = f"there is no secret {key.api_key_secret} (`dragoman secrets set` puts one there)"
        value = secrets.get(key.api_key_secret or "")
    if not value or not (value := value.strip()):
        log.warning("providers.%s: %s: its requests go without a key", name, place)
        return None
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(f"providers.{name}: the key has a character that no header can carry")
    return value


def first_key(
    provider: ProviderConfig,
    *,
    name: str,
    environ: Mapping[str, str],
    secrets: Mapping[str, str] = NO_SECRETS,
) -> str | None:
    """A provider's key, the first of several that there is; None when it has none. Errors as `read_key`."""
    found = (
        read_key(key, name=name, environ=environ, secrets=secrets) for key in key_sources(provider).values()
    )
    return next((value for value in found if value is not None), None)


def master_key(config: Config, environ: Mapping[str, str]) -> str | None:
    """The key to the encrypted table of secrets; None: there is none.

    From `master_key_file`, else from the variable `master_key_env`, else from the file that the variable of
    this name with `_FILE` behind it names. ConfigError when the file cannot be read.
    """
    held = environ.get(config.master_key_env, "").strip()
    path = config.master_key_file
    if path is None and not held:
        path = environ.get(f"{config.master_key_env}_FILE")
    if not path:
        return held or None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file with the master key cannot be read: {_reason(error)}") from None


def _read_key_file(path: str, *, name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"providers.{name}: cannot read the key file: {_reason(error)}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or "it fails" if isinstance(error, OSError) else "it is no text"
