"""The environment: `DRAGOMAN__section__field=value` overrides a field of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.config.problems import ConfigProblem, FieldPath
from dragoman.config.yaml_document import ConfigDocument, InvalidScalar, parse_text, read_document
from dragoman.errors import ConfigError
from dragoman.json_decoding import well_formed

PREFIX = "DRAGOMAN__"


def config_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that set fields, sorted."""
    return sorted(name for name in environ if name.upper().startswith(PREFIX))


def apply_environment(document: ConfigDocument, environ: Mapping[str, str]) -> None:
    """Override fields of the document with the environment; problems are added to the document."""
    if not isinstance(document.value, dict):
        return  # reported as a problem of the file
    for name in config_variables(environ):
        steps = [step for step in name[len(PREFIX) :].split("__") if step]
        if not steps:
            document.problems.append(
                ConfigProblem((), f"the environment variable {name} does not name a field")
            )
            continue
        _set_field(document, steps, name=name, text=well_formed(environ[name]))


def _set_field(document: ConfigDocument, steps: list[str], *, name: str, text: str) -> None:
    path: FieldPath = ()
    container: Any = document.value
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        key = _find_key(container, step)
        if key is None:
            problem = ConfigProblem((*path, step.lower()), "there is no field or item of this name")
            document.variables.setdefault(problem.path, name)
            document.problems.append(problem)
            return
        path = (*path, key)
        if last:
            break
        if isinstance(container, dict) and container.get(key) is None:
            container[key] = {}
        container = container[key]
    if path in document.variables:
        first = document.variables[path]
        document.problems.append(ConfigProblem(path, f"{first} and {name} set the same field"))
        return
    document.variables[path] = name
    container[path[-1]] = _parse_value(document, path, text=text)


def _find_key(container: Any, step: str) -> str | int | None:
    """Return the key that a part of a variable's name stands for: an existing one, else a new one.

    None for an item that a list does not have, and for a value that is not a collection.
    """
    if isinstance(container, list):
        return int(step) if step in map(str, range(len(container))) else None
    if not isinstance(container, dict):
        return None
    if step in container:
        return step
    spelling = _variable_spelling(step)
    return next((key for key in container if _variable_spelling(key) == spelling), step.lower())


def _variable_spelling(name: str) -> str:
    """Return a name as a variable can spell it: `gpt-4.1` as GPT_4_1 (in lower case)."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _parse_value(document: ConfigDocument, path: FieldPath, *, text: str) -> Any:
    """Return the value of a variable: YAML if it begins like a list or mapping, else a scalar."""
    document.variable_texts[path] = text
    try:
        if text.lstrip()[:1] in ("[", "{"):
            nested = read_document(text, source=document.variables[path], environ={})
            document.problems.extend(
                replace(problem, path=(*path, *problem.path)) for problem in nested.problems
            )
            return nested.value
        return parse_text(text)
    except ConfigError:
        return text
    except InvalidScalar as error:
        document.problems.append(ConfigProblem(path, str(error)))
    return None
