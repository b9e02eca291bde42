"""Agents: that what they say of their answers can be: stop conditions, functions, a schema."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dragoman.config.faults import Fault, Path, listed, shorten
from dragoman.config.scalars import Unusable
from dragoman.config.sections import Config, StopConfig

REFERENCE = re.compile(r".*[^:\s]:[A-Za-z_][\w.]*")


def broken_agents(config: Config) -> Iterator[Fault]:
    """Everything of them that cannot be, though its types fit."""
    for name, agent in config.agents.items():
        path: Path = ("agents", name)
        for at, stop in enumerate(agent.stop_when):
            yield from _stop(stop, path=(*path, "stop_when", at))
        yield from _reference(agent.on_prepare_step, path=(*path, "on_prepare_step"))
        if agent.output == {}:
            yield Fault((*path, "output"), "expected a JSON Schema, or the path of a file that holds one")


def _stop(stop: StopConfig, *, path: Path) -> Iterator[Fault]:
    said = stop.said
    if not said:
        yield Fault(path, f"says no condition; there are {listed(stop.__struct_fields__)}")
    elif len(said) > 1:
        yield Fault(path, f"says {' and '.join(said)}; one at a time, or several under `all` or `any`")
    for word in ("all", "any"):
        for at, inner in enumerate(getattr(stop, word)):
            yield from _stop(inner, path=(*path, word, at))
    if stop.matches is not None:
        try:
            re.compile(stop.matches)
        except re.error as error:
            yield Fault((*path, "matches"), f"is no regular expression: {error}")
    try:
        stop.seconds  # noqa: B018 - reading it is the check
    except Unusable as error:
        yield Fault((*path, "time"), f"{shorten(str(stop.time))} {error}")
    yield from _reference(stop.use, path=(*path, "use"))


def _reference(said: str | None, *, path: Path) -> Iterator[Fault]:
    if said is not None and not REFERENCE.fullmatch(said):
        yield Fault(path, f"expected module:name or ./file.py:name, got {shorten(said)}")
