"""The document of a LiteLLM configuration: the file, what it includes, and its scalars."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dragoman.errors import ConfigError

VARIABLE = re.compile(r"os\.environ/([A-Za-z_]\w*)")


class ImportedConfig(msgspec.Struct, frozen=True):
    """The fields of a configuration, and a sentence for each setting of the file that was left out."""

    fields: Mapping[str, Any]
    left_out: Sequence[str]


def read_document(path: Path, left_out: list[str]) -> Mapping[str, Any]:
    """Read a file with what it includes. Raises ConfigError if it is not a LiteLLM configuration."""
    document = read_mapping(path)
    includes = document.pop("include", None)
    for include in includes if isinstance(includes, list) else [includes] if includes else []:
        try:
            included = read_mapping(path.parent / str(include))
        except ConfigError as error:
            left_out.append(f"include: {error.message.splitlines()[0]}")
            continue
        for name, value in included.items():
            if isinstance(value, list) and isinstance(document.get(name), list):
                document[name] = [*document[name], *value]
            else:
                document[name] = value
    if not isinstance(document.get("model_list"), list):
        raise ConfigError(f"{path} has no model_list, so it is not a LiteLLM configuration")
    return document


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. Raises ConfigError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:  # without the line itself, which may hold a key
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigError(f"{path}:{line}: {error.problem or error.context}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a mapping, so it is not a LiteLLM configuration")
    return {str(name): value for name, value in document.items()}


def number_of(value: Any) -> float | int | None:
    """Return a finite number, also one that is written as text; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value) if re.search(r"[.eE]", value) else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def variable_reference(text: str) -> str:
    """Return a text with LiteLLM's reference to a variable in the hub's form."""
    return VARIABLE.sub(lambda match: f"${{{match[1]}}}", text)
