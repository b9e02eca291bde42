"""Keys of providers: where each is stored, and its value. Neither errors nor logs contain a value."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from dragoman.config.sections import Config, KeyConfig, ProviderConfig
from dragoman.errors import ConfigError

log = logging.getLogger(__name__)
NO_SECRETS: Mapping[str, str] = {}


def key_sources(provider: ProviderConfig) -> dict[str, KeyConfig]:
    """Return where each of a provider's keys is stored, by display name; empty when it has none.

    A key without a name is named by its number, and a provider's only key `default`.
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
    """Return a key's value; None, with a warning, when it is not set. `secrets` is the decrypted table.

    A missing key does not keep the hub from starting: other providers may work. Raises ConfigError when a
    file cannot be read, or when the value cannot be sent as a header.
    """
    if key.api_key_env is not None:
        value = environ.get(key.api_key_env)
        problem = f"the environment variable {key.api_key_env} is not set"
    elif key.api_key_file is not None:
        value, problem = _read_key_file(key.api_key_file, name=name), "the key file is empty"
    else:
        problem = f"there is no secret {key.api_key_secret} (`dragoman secrets set` stores one)"
        value = secrets.get(key.api_key_secret or "")
    if not value or not (value := value.strip()):
        log.warning("providers.%s: %s: requests are sent without a key", name, problem)
        return None
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(f"providers.{name}: the key contains a character that is not allowed in a header")
    return value


def first_key(
    provider: ProviderConfig,
    *,
    name: str,
    environ: Mapping[str, str],
    secrets: Mapping[str, str] = NO_SECRETS,
) -> str | None:
    """Return the first of a provider's keys that is set, or None. Raises like `read_key`."""
    values = (
        read_key(key, name=name, environ=environ, secrets=secrets) for key in key_sources(provider).values()
    )
    return next((value for value in values if value is not None), None)


def master_key(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the master key of the secrets table, or None.

    It is read from `master_key_file`, else from the variable that `master_key_env` names, else from the file
    whose path is in the variable of that name with `_FILE` appended. Raises ConfigError when the file cannot
    be read.
    """
    value = environ.get(config.master_key_env, "").strip()
    path = config.master_key_file
    if path is None and not value:
        path = environ.get(f"{config.master_key_env}_FILE")
    if not path:
        return value or None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the master key file: {_reason(error)}") from None


def _read_key_file(path: str, *, name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"providers.{name}: cannot read the key file: {_reason(error)}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
