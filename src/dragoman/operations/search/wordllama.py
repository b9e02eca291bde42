"""WordLlama: static word vectors from a wheel, for semantic search without a server or a key."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragoman.operations.search.embedder import import_extra, package_files

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
TENSOR = "embedding.weight"


class WordLlamaEmbedder:
    """The mean of a text's token vectors, 256 numbers.

    The wheel's own loader looks for its tokenizer in a folder that the wheel lacks and then on the network;
    therefore its two files are read here and its code is never imported. Raises ConfigError if one is
    missing.
    """

    def __init__(self) -> None:
        self._numpy = import_extra("numpy")
        tokenizers = import_extra("tokenizers")
        weights, tokenizer = package_files("wordllama", (WEIGHTS, TOKENIZER))
        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._vectors = read_tensor(weights, self._numpy)

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector of length 1 for each text; zeros for a text without words."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        means = self._numpy.zeros((len(encoded), self._vectors.shape[1]), dtype="float32")
        for row, each in enumerate(encoded):
            if each.ids:
                means[row] = self._vectors[each.ids].mean(axis=0, dtype="float32")
        lengths = self._numpy.linalg.norm(means, axis=1, keepdims=True)
        vectors: Sequence[Sequence[float]] = means / self._numpy.where(lengths == 0, 1, lengths)
        return vectors


def read_tensor(path: Path, numpy: Any) -> Any:
    """Read the matrix of a half-precision safetensors file: eight bytes of length, JSON, numbers."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = msgspec.json.decode(data[8 : 8 + length])[TENSOR]
    first, last = header["data_offsets"]
    return numpy.frombuffer(data[8 + length + first : 8 + length + last], dtype="<f2").reshape(
        header["shape"]
    )
