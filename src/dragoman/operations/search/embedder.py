"""Embeddings: operations and questions as vectors, an optional second opinion beside the words."""

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
    """Turns texts into vectors of one length, so that what means the same points the same way.

    For operations it is asked from a thread, for a question in the event loop: that must be quick.
    """

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...


class HashingEmbedder:
    """The trivial embedder: each word turns the vector one way, chosen by its hash. It knows no meanings."""

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
    """The text of an operation that is embedded: what it is called, where it belongs, what it does."""
    properties = operation.input_schema.get("properties")
    named = " ".join(properties) if isinstance(properties, dict) else ""
    name = operation.name.replace("_", " ").replace("-", " ").replace(".", " ")
    return f"{name} {operation.namespace}: {operation.description} ({named})"[:MAX_TEXT_LENGTH]


def import_extra(module: str) -> Any:
    """A module of the extra. ConfigError when it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"search by embeddings needs the package {module!r}",
            hint="install dragoman[semantic], or set search.embeddings to none",
        ) from error
