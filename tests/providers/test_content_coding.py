"""Compressed answers, of servers and proxies that compress though nobody asked."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.errors import ProviderError
from dragoman.http.content_coding import PIECE, decode_body
from dragoman.http.transport import Response, Timeouts, Transport
from dragoman.providers.remote import MAX_ERROR_BYTES
from tests.providers.servers import Peer, ok, serving

brotli = pytest.importorskip("brotli")
zstandard = pytest.importorskip("zstandard")

TEXT = b'data: {"choices": [{"delta": {"content": "h\xc3\xa9llo"}}]}\n\n' * 400


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


CODINGS: Mapping[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "gzip of two members": ("gzip", lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:])),
    "gzip and padding": ("gzip", lambda data: gzip.compress(data) + b"\0" * 20),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", lambda data: brotli.compress(data, quality=9)),  # the default, 11, takes 30 times as long
    "zstd": ("zstd", zstandard.compress),
    "zstd of two frames": (
        "zstd",
        lambda data: zstandard.compress(data[:700]) + zstandard.compress(data[700:]),
    ),
    "gzip within br": ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
    "identity": ("identity", bytes),
    "nothing": ("", bytes),
    "gzip in name only": ("gzip", bytes),
    "zstd in name only": ("zstd", bytes),
}
DOCUMENT = b'{"choices": [{"message": {"content": "h\xc3\xa9llo {}"}}]}\n'


async def decode(coding: str, pieces: list[bytes]) -> list[bytes]:
    """What a body in these pieces yields."""
    waiting = [piece for piece in pieces if piece]

    async def receive() -> bytes:
        return waiting.pop(0) if waiting else b""

    decoded = decode_body(receive, coding, peer="up")
    found = []
    while piece := await decoded():
        found.append(piece)
    return found


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("case", CODINGS)
async def test_a_coded_body_is_decoded_however_it_is_cut(case: str, size: int) -> None:
    coding, encode = CODINGS[case]
    body = encode(TEXT)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert b"".join(await decode(coding, pieces)) == TEXT


@pytest.mark.parametrize("is_coded", [True, False])
@pytest.mark.parametrize("coding", ["gzip", "zlib", "raw deflate", "br", "zstd"])
async def test_a_document_is_read_in_its_coding_or_as_it_is_however_it_is_cut_in_two(
    coding: str, is_coded: bool
) -> None:
    name, encode = CODINGS[coding]
    body = encode(DOCUMENT) if is_coded else DOCUMENT
    for place in range(len(body)):
        assert b"".join(await decode(name, [body[:place], body[place:]])) == DOCUMENT, place


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("body", [TEXT, b"event: x\n" + TEXT, b"\n " + DOCUMENT])
async def test_a_body_that_is_coded_in_name_only_is_read_as_it_is(coding: str, body: bytes) -> None:
    assert b"".join(await decode(coding, [body])) == body


@pytest.mark.parametrize("case", [case for case in CODINGS if CODINGS[case][1] is not bytes])
async def test_a_coded_body_that_is_cut_is_an_error(case: str) -> None:
    coding, encode = CODINGS[case]
    body = encode(TEXT).rstrip(b"\0")
    with pytest.raises(ProviderError, match="in the middle of its") as error:
        await decode(coding, [body[: len(body) - 5]])
    assert (error.value.category, error.value.transient) == ("network", True)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_an_empty_body_is_empty_in_every_coding(coding: str) -> None:
    assert await decode(coding, []) == []


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", b"\x1f\x8bgarbage" * 20),
        ("deflate", b"\xff" * 90),
        ("br", b"\xff" * 90),
        ("zstd", b"\x28\xb5\x2f\xfd" + b"\xff" * 90),
    ],
)
async def test_garbage_is_an_error_that_names_the_coding(coding: str, body: bytes) -> None:
    with pytest.raises(ProviderError, match=f"up sent data that is not valid {coding}") as error:
        await decode(coding, [body])
    assert error.value.category == "api_error"


@pytest.mark.parametrize("coding", ["lzma", "gzip, compress", ", ".join(["gzip"] * 5), "g\x7fzip"])
async def test_a_coding_that_nobody_decodes_is_an_error_with_a_fix(coding: str) -> None:
    with pytest.raises(ProviderError, match="cannot be decoded") as error:
        await decode(coding, [b"x"])
    assert error.value.hint is not None


@pytest.mark.parametrize("case", ["gzip", "zlib", "raw deflate", "br", "zstd"])
async def test_a_bomb_is_decoded_in_small_pieces(case: str) -> None:
    coding, encode = CODINGS[case]
    pieces = await decode(coding, [encode(b"\0" * 30_000_000)])
    assert sum(map(len, pieces)) == 30_000_000
    assert max(map(len, pieces)) <= PIECE + 128 * 1024 * 64


@asynccontextmanager
async def response(reply: bytes) -> AsyncIterator[Response]:
    """The response of a server that replies so."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply)

    async with serving(script) as server:
        transport = Transport(timeouts=Timeouts())
        try:
            yield await transport.send("GET", server.url, headers={})
        finally:
            await transport.close()


@pytest.mark.parametrize("case", CODINGS)
async def test_a_response_is_decoded_and_keeps_its_connection(case: str) -> None:
    coding, encode = CODINGS[case]
    async with response(ok(encode(TEXT), f"content-encoding: {coding}")) as answer:
        assert await answer.read(len(TEXT)) == TEXT
        assert answer.complete


async def test_the_limit_of_a_body_counts_what_is_decoded() -> None:
    bomb = gzip.compress(b"\0" * 10 * MAX_ERROR_BYTES)
    async with response(ok(bomb, "content-encoding: gzip")) as answer:
        with pytest.raises(ProviderError, match="is longer than"):
            await answer.read(MAX_ERROR_BYTES)


def test_a_missing_library_is_an_error_that_says_what_cannot_be_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dragoman.http import content_coding

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(content_coding, "import_module", missing)
    with pytest.raises(ProviderError, match=r"'zstd'.*cannot be decoded"):
        content_coding.make_decoder("zstd", peer="up")
