"""Routes: that models, aliases and fallbacks lead to providers there are, and in no circle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dragoman.config.faults import Fault, Path, listed, meant, shorten
from dragoman.config.sections import Config

ANY = "*"
_ANYTHING = re.compile(r"[*?[]")


def broken_routes(config: Config) -> Iterator[Fault]:
    """Every name of a model that leads nowhere, or back to itself."""
    if config.default_provider is not None and config.default_provider not in config.providers:
        yield Fault(("default_provider",), _nobody(config.default_provider, config))
    yield from _defaults(config)
    yield from _aliases(config)
    yield from _fallbacks(config)
    for pattern in config.prices:
        place = pattern.partition("/")[0]
        if "/" in pattern and not _ANYTHING.search(place) and place not in config.providers:
            yield Fault(("prices", pattern), _nobody(place, config))


def _defaults(config: Config) -> Iterator[Fault]:
    said: dict[Path, str | None] = {("model",): config.model}
    said |= {("agents", name, "model"): agent.model for name, agent in config.agents.items()}
    for path, model in said.items():
        if model and not _leads(model, config):
            yield Fault(path, _unled(model, config))


def _aliases(config: Config) -> Iterator[Fault]:
    for name, models in config.routes.items():
        path: Path = ("aliases", name)
        if not name or name == ANY or ("/" in name and name.partition("/")[0] in config.providers):
            yield Fault(path, "an alias has a name of its own, not that of a provider and a slash")
        for place, model in enumerate(models):
            at = path if isinstance(config.aliases[name], str) else (*path, place)
            if not _leads(model, config):
                yield Fault(at, _unled(model, config))
        circle = _circle(name, config)
        if circle:
            yield Fault(path, f"leads in a circle: {' -> '.join(circle)}")


def _circle(name: str, config: Config) -> Sequence[str]:
    """The shortest way from an alias back to itself, if there is one."""
    ways: list[Sequence[str]] = [(name,)]
    seen: set[str] = set()
    for way in ways:  # it grows
        for model in config.routes.get(way[-1], ()):
            if model == name:
                return (*way, name)
            if model not in seen:
                seen.add(model)
                ways.append((*way, model))
    return ()


def _fallbacks(config: Config) -> Iterator[Fault]:
    for name, others in config.fallbacks.items():
        path: Path = ("fallbacks", name)
        if name != ANY and not _leads(name, config):
            yield Fault(path, _unled(name, config))
        for place, model in enumerate(others):
            if not _leads(model, config):
                yield Fault((*path, place), _unled(model, config))
            elif model == name:
                yield Fault((*path, place), "falls back to itself")


def _leads(model: str, config: Config) -> bool:
    """Whether somebody answers for a model's name."""
    if model in config.aliases:
        return True
    place, slash, served = model.partition("/")
    if slash and place in config.providers:
        return bool(served)
    return config.default_provider is not None and bool(model) and not slash


def _unled(model: str, config: Config) -> str:
    place, slash, served = model.partition("/")
    if slash and served:
        return _nobody(place, config)
    return f"{shorten(model)} is neither provider/model nor an alias{meant(model, config.aliases)}"


def _nobody(name: str, config: Config) -> str:
    known = f"; there are {listed(config.providers)}" if config.providers else "; there are none"
    return f"there is no provider {shorten(name)}{meant(name, config.providers) or known}"
