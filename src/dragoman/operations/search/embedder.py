"""Embedders: operations and queries as vectors, an optional second ranking beside the words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from dragoman.errors import ConfigError
from dragoman.json_decoding import well_formed
from dragoman.operations.operation import Operation
from dragoman.operations.search.tokenizer import terms

MAX_TEXT_LENGTH = 2_000  # characters of an operation that are embedded


class Embedder(Protocol):
    """Converts texts to vectors of one length; similar meanings have similar directions.

    It is called in threads: in one at a time for operations, and at the same time for queries.
    """

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...


class HashingEmbedder:
    """A trivial embedder: each word adds to the dimension that its hash selects. Knows no meanings."""

    def __init__(self, size: int = 64) -> None:
        self._size = size

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return [self._embed_text(text) for text in texts]

    def _embed_text(self, text: str) -> Sequence[float]:
        vector = [0.0] * self._size
        for term in terms(text):
            vector[int.from_bytes(hashlib.blake2b(term.encode(), digest_size=4).digest()) % self._size] += 1.0
        length = math.hypot(*vector) or 1.0
        return [each / length for each in vector]


def embedding_text(operation: Operation) -> str:
    """Return the text of an operation that is embedded: name, namespace, description, parameters."""
    properties = operation.input_schema.get("properties")
    parameter_names = " ".join(properties) if isinstance(properties, dict) else ""
    name = operation.name.replace("_", " ").replace("-", " ").replace(".", " ")
    text = f"{name} {operation.namespace}: {operation.description} ({parameter_names})"
    # tokenizers refuse lone surrogates, which spokes and MCP servers may send
    return well_formed(text[:MAX_TEXT_LENGTH])


def import_extra(module: str, *, extra: str = "semantic") -> Any:
    """Import a module of an extra. Raises ConfigError if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise not_installed(module, extra) from error


def package_files(package: str, names: Sequence[str], *, extra: str = "semantic") -> Sequence[Path]:
    """Return files of an installed package without importing it. Raises ConfigError if one is missing."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise not_installed(package, extra)
    paths = [Path(spec.origin).parent / name for name in names]
    for path, name in zip(paths, names, strict=True):
        if not path.is_file():
            raise ConfigError(
                f"This version of the package {package!r} has no {name}.",
                hint=f"Reinstall dragoman[{extra}].",
            )
    return paths


def not_installed(package: str, extra: str) -> ConfigError:
    """Return the error for a package of an extra that is not installed."""
    return ConfigError(
        f"Semantic search needs the package {package!r}.",
        hint=f"Install dragoman[{extra}], or set search.embeddings to none.",
    )
