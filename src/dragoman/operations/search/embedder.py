"""Embedders: operations and queries as vectors, an optional second ranking beside the words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from dragoman.errors import ConfigError
from dragoman.operations.operation import Operation
from dragoman.operations.search.tokenizer import terms

MAX_TEXT_LENGTH = 2_000  # characters of an operation that are embedded


class Embedder(Protocol):
    """Turns texts into vectors of one length; similar meanings have similar directions.

    It embeds operations in a thread, and queries on the event loop: those must be fast.
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
    return f"{name} {operation.namespace}: {operation.description} ({parameter_names})"[:MAX_TEXT_LENGTH]


def import_extra(module: str) -> Any:
    """Import a module of the extra. Raises ConfigError if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Semantic search needs the package {module!r}.",
            hint="Install dragoman[semantic], or set search.embeddings to none.",
        ) from error
