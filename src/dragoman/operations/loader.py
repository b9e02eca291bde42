"""Load operations from a Python file or an importable module."""

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
    """Return the operations in `path/to/file.py` or `package.module`, or those of one name in it (`…:name`).

    Runs the code of the file or module. Raises ConfigError if it cannot be found, fails, or has no
    operations.
    """
    text = str(reference)
    location, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    is_file = location.endswith(".py") or "/" in location
    module = load_file(Path(location)) if is_file else load_module(location)
    if not name:
        return list(operations_in(module))
    value = getattr(module, name, None)
    if value is None:
        raise ConfigError(f"{location} has no {name!r}; name an operation, a registry or a list of them")
    return list(operations_of(value))


def load_object(reference: str, expected_kind: str = "function") -> Any:
    """Return the object that `path/to/file.py:name` or `module:name` names. Raises ConfigError."""
    location, _, name = reference.rpartition(":")
    is_file = location.endswith(".py") or "/" in location
    value: Any = load_file(Path(location)) if is_file else load_module(location)
    for attribute in name.split("."):
        value = getattr(value, attribute, None)
    if value is None:
        raise ConfigError(f"{location} has no {expected_kind} {name!r}")
    return value


def operations_of(value: Registry | OperationSource | Sequence[OperationSource]) -> list[Operation]:
    """Return the operations of an object in a module: a registry, an operation or function, or a list."""
    if isinstance(value, Registry):
        return list(value.list())
    sources = value if isinstance(value, Sequence) else [value]
    return [operation for source in sources for operation in operations_in(source)]


def load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(
                f"There is no module {name!r}; to load a file, give its path, like ./{name}.py."
            ) from None
        raise ConfigError(f"{name} cannot be loaded: {error}") from error
    except Exception as error:
        raise ConfigError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error


def load_file(path: Path) -> ModuleType:
    """Load a file as a new module; its folder is not added to the import path."""
    if not path.is_file():
        raise ConfigError(
            f"There is no file {str(path)!r}.",
            hint="create it, or correct the path, which is relative to where the hub is started",
        )
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"dragoman_operations_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up here
    try:
        spec.loader.exec_module(module)
    except ConfigError as error:
        del sys.modules[name]
        raise ConfigError(f"{path}: {error.message}") from error
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
