"""The environment: `DRAGOMAN__section__field=value` says a field over what the file says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.config.document import Document, Unusable, read_document, read_text
from dragoman.config.faults import Fault, Path
from dragoman.errors import ConfigError

PREFIX = "DRAGOMAN__"


def said_in(environ: Mapping[str, str]) -> list[str]:
    """The variables that say fields, in a fixed order."""
    return sorted(name for name in environ if name.upper().startswith(PREFIX))


def override(document: Document, environ: Mapping[str, str]) -> None:
    """Put what the environment says into the document; faults are kept there."""
    if not isinstance(document.value, dict):
        return  # told as a fault of the file
    for name in said_in(environ):
        steps = [step for step in name[len(PREFIX) :].split("__") if step]
        if not steps:
            document.faults.append(Fault((), f"the environment variable {name} names no field"))
            continue
        _put(document, steps, name=name, text=environ[name])


def _put(document: Document, steps: list[str], *, name: str, text: str) -> None:
    path: Path = ()
    place: Any = document.value
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        key = _find(place, step)
        if key is None:
            fault = Fault((*path, step.lower()), "there is nothing of this name or number to set")
            document.origins.setdefault(fault.path, name)
            document.faults.append(fault)
            return
        path = (*path, key)
        if last:
            break
        if isinstance(place, dict) and place.get(key) is None:
            place[key] = {}
        place = place[key]
    if path in document.origins:
        first = document.origins[path]
        document.faults.append(Fault(path, f"{first} and {name} say the same field"))
        return
    document.origins[path] = name
    place[path[-1]] = _value(document, path, text=text)


def _find(place: Any, step: str) -> str | int | None:
    """The key that a step of a variable's name means: one that is there, or a new one in lower case."""
    if isinstance(place, list):
        return int(step) if step in map(str, range(len(place))) else None
    if not isinstance(place, dict):
        return None
    if step in place:
        return step
    spelt = _spelling(step)
    return next((key for key in place if _spelling(key) == spelt), step.lower())


def _spelling(name: str) -> str:
    """A name as a variable can spell it: `gpt-4.1` is GPT_4_1."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _value(document: Document, path: Path, *, text: str) -> Any:
    """The value in a variable: a list or mapping when it begins as one, else a scalar."""
    document.texts[path] = text
    try:
        if text.lstrip()[:1] in ("[", "{"):
            held = read_document(text, source=document.origins[path], environ={})
            document.faults.extend(replace(fault, path=(*path, *fault.path)) for fault in held.faults)
            return held.value
        return read_text(text)
    except ConfigError:
        return text
    except Unusable as error:
        document.faults.append(Fault(path, str(error)))
    return None
