"""The operations that a hub has of itself: those built in, as far as they are configured, and yours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import Config
from dragoman.operations.artifact import Artifacts
from dragoman.operations.history import History
from dragoman.operations.loading import load
from dragoman.operations.registry import Registry
from dragoman.operations.search import Search
from dragoman.tools import history as said
from dragoman.tools.builtin import builtin
from dragoman.tools.guard import WebSettings

if TYPE_CHECKING:
    from dragoman.operations.meanings import Meanings


def registry_of(config: Config, artifacts: Artifacts, *, history: History) -> Registry:
    """The built-in operations and those of the configuration. ConfigError."""
    built = builtin(
        Path(config.files_root) if config.files_root else None,
        files={name: Path(folder) for name, folder in config.files.items()},
        artifacts=artifacts,
        web=web_of(config),
    )
    yours = (found for place in config.operations for found in load(place))
    return Registry(*built, *said.operations(history), *yours)


def web_of(config: Config) -> WebSettings | None:
    """What `web.fetch` may ask; None when it is off."""
    said = config.web
    if not said.enabled:
        return None
    return WebSettings(
        allow_hosts=said.allow_hosts,
        deny_hosts=said.deny_hosts,
        allow_networks=said.allow_networks,
        ports=said.ports,
        max_bytes=said.max_bytes,
        timeout=said.timeout,
    )


def search_of(config: Config, registry: Registry) -> tuple[Search, Meanings | None]:
    """The search over all operations; with embeddings also what keeps their meanings. ConfigError."""
    if config.search.embeddings == "none":
        return Search(registry), None
    from dragoman.operations.meanings import Meanings  # late: only with embeddings
    from dragoman.operations.wordllama import WordLlama  # late: it needs the extra

    meanings = Meanings(WordLlama())
    return Search(registry, meanings=meanings), meanings
