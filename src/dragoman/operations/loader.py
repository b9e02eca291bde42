"""Loading: operations out of a Python file or an importable module."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dragoman.errors import ConfigError
from dragoman.operations.operation import Operation
from dragoman.operations.registry import OperationSource, Registry, operations_in


def load_operations(reference: str | Path) -> list[Operation]:
    """The operations in `path/to/file.py`, in `package.module`, or of one name there: `module:name`.

    The code of the file or module is run. ConfigError when it cannot be found, fails, or has no operations.
    """
    text = str(reference)
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    is_file = place.endswith(".py") or "/" in place
    module = load_file(Path(place)) if is_file else load_module(place)
    if not name:
        return list(operations_in(module))
    thing = getattr(module, name, None)
    if thing is None:
        raise ConfigError(
            f"{place} has no {name!r}; {text!r} names an operation, a registry or a list of them"
        )
    return list(operations_of(thing))


def load_object(reference: str, expected_kind: str = "function") -> Any:
    """What `path/to/file.py:name` or `module:name` names; it is to be a `what`. ConfigError."""
    place, _, name = reference.rpartition(":")
    is_file = place.endswith(".py") or "/" in place
    thing: Any = load_file(Path(place)) if is_file else load_module(place)
    for step in name.split("."):
        thing = getattr(thing, step, None)
    if thing is None:
        raise ConfigError(f"{place} has no {expected_kind} {name!r}")
    return thing


def operations_of(value: Registry | OperationSource | Sequence[OperationSource]) -> list[Operation]:
    """The operations that one name of a module stands for."""
    if isinstance(value, Registry):
        return list(value.list())
    things = value if isinstance(value, Sequence) else [value]
    return [operation for each in things for operation in operations_in(each)]


def load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(
                f"there is no module {name!r}; a file is given by its path, like ./{name}.py"
            ) from None
        raise ConfigError(f"{name} cannot be loaded: {error}") from error
    except Exception as error:
        raise ConfigError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error


def load_file(path: Path) -> ModuleType:
    """The file's module, run anew; its directory is not put on the import path."""
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"dragoman_operations_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and type hints look for their module
    try:
        spec.loader.exec_module(module)
    except ConfigError as error:
        del sys.modules[name]
        raise ConfigError(f"{path}: {error.message}") from error
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
