"""Content codings of responses: gzip, deflate, br and zstd, decoded as they arrive.

The hub asks for none of them (`accept-encoding: identity`), but some servers and proxies compress anyway.
Each read returns a bounded piece, and other tasks run between two pieces, so that a compression bomb exceeds
the limits of its reader before it fills the memory or blocks the event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from dragoman.errors import ProviderError
from dragoman.redaction import safe_line

PIECE = 256 * 1024  # bytes of decoded body for one read
ZSTD_SLICE = 256  # bytes; 4 bytes of zstd can decode to 128 kB, and the library has no limit of its output
ZSTD_WINDOW = 8 * 1024 * 1024  # bytes, as RFC 9659 allows
MAX_CODINGS = 4
GZIP_BITS, ZLIB_BITS, RAW_BITS = 31, 15, -15
GZIP_START, ZSTD_START = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
UNMARKED = ("br", "deflate")  # codings that may begin with any byte
STREAM_STARTS = (b"data:", b"event:")

Receive = Callable[[], Awaitable[bytes]]


class Decoder(Protocol):
    """Decodes one body. `finished`: it is complete. `waiting`: `feed(b"")` returns more of it."""

    finished: bool
    waiting: bool

    def feed(self, data: bytes) -> bytes:
        """Return some decoded bytes, perhaps none. Raises any exception for invalid data."""
        ...


class DecodedBody:
    """The body of a response with one content coding removed. `receive` is like `Response.receive`."""

    def __init__(self, receive: Receive, coding: str, *, peer: str) -> None:
        self._receive_coded = receive
        self._coding = coding
        self._peer = peer
        self._decoder: Decoder | None = None
        self._is_plain = False

    async def receive(self) -> bytes:
        """Return decoded bytes; b"" at the end. Raises ProviderError if the data is invalid or cut short."""
        while True:
            if self._decoder is not None and self._decoder.waiting:
                await asyncio.sleep(0)
                data = b""
            else:
                data = await self._receive_coded()
                if self._is_plain or not data:
                    return self._end(data)
            piece = self._decode(data)
            if piece:
                return piece

    def _end(self, data: bytes) -> bytes:
        """Return plain data. Raises ProviderError at the end of a body that is incomplete."""
        if not data and self._decoder is not None and not self._decoder.finished:
            raise ProviderError(
                f"the response of {self._peer} ended in the middle of its {self._coding} data",
                category="network",
                transient=True,
            )
        return data

    def _decode(self, data: bytes) -> bytes:
        if self._decoder is None:
            if is_mislabelled(self._coding, data):
                self._is_plain = True
                return data
            self._decoder = make_decoder(self._coding, peer=self._peer)
        try:
            return self._decoder.feed(data)
        except Exception:  # noqa: BLE001 - each library has its own exceptions
            raise ProviderError(
                f"{self._peer} sent data that is not valid {self._coding}", category="api_error"
            ) from None


class InflateDecoder:
    """Decodes gzip with any number of members, and deflate with or without zlib's header.

    `bits` are zlib's window bits; None finds out whether deflate has the header.
    """

    def __init__(self, bits: int | None) -> None:
        self.finished = False
        self.waiting = False
        self._bits = bits
        self._inflate: Any = None if bits is None else zlib.decompressobj(bits)
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """See `Decoder`."""
        data = self._rest + data
        self._rest = b""
        if self.finished:
            data = data.lstrip(b"\0") if self._bits == GZIP_BITS else b""
            if not data.startswith(GZIP_START[:1]):
                self.waiting = False
                return b""  # padding
            self._inflate, self.finished = zlib.decompressobj(GZIP_BITS), False
        if self._inflate is None and not self._open(data):
            return b""
        piece: bytes = self._inflate.decompress(data, PIECE)
        self.finished = self._inflate.eof
        self._rest = self._inflate.unused_data if self.finished else self._inflate.unconsumed_tail
        self.waiting = bool(self._rest) or (len(piece) == PIECE and not self.finished)
        return piece

    def _open(self, data: bytes) -> bool:
        """Choose between zlib's format (RFC 9110) and raw deflate, which some servers send.

        Returns False if there is not enough data to tell.
        """
        if len(data) < 2:
            self._rest = data
            return False
        has_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        self._bits = ZLIB_BITS if has_header else RAW_BITS
        self._inflate = zlib.decompressobj(self._bits)
        return True


class BrotliDecoder:
    """Decodes br (RFC 7932)."""

    def __init__(self, library: Any) -> None:
        self.finished = False
        self.waiting = False
        self._decompressor = library.Decompressor()

    def feed(self, data: bytes) -> bytes:
        """See `Decoder`."""
        if self.finished:
            return b""
        piece: bytes = self._decompressor.process(data, output_buffer_limit=PIECE)
        self.finished = self._decompressor.is_finished()
        full = len(piece) >= PIECE or not self._decompressor.can_accept_more_data()
        self.waiting = full and not self.finished
        return piece


class ZstdDecoder:
    """Decodes zstd (RFC 8878), of any number of frames."""

    def __init__(self, library: Any) -> None:
        self.finished = False
        self.waiting = False
        self._library = library
        self._decompressor = self._new()
        self._rest = b""

    def _new(self) -> Any:
        return self._library.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()

    def feed(self, data: bytes) -> bytes:
        """See `Decoder`."""
        data = self._rest + data
        if self.finished and data:
            self._decompressor, self.finished = self._new(), False
        pieces: list[bytes] = []
        size = at = 0
        while at < len(data) and size < PIECE and not self.finished:
            piece = self._decompressor.decompress(data[at : at + ZSTD_SLICE])
            at += ZSTD_SLICE
            size += len(piece)
            pieces.append(piece)
            self.finished = self._decompressor.eof
        self._rest = (self._decompressor.unused_data if self.finished else b"") + data[at:]
        self.waiting = bool(self._rest)
        return b"".join(pieces)


def decode_body(receive: Receive, codings: str, *, peer: str) -> Receive:
    """Return a `receive` that removes the codings in a Content-Encoding header.

    It raises ProviderError `api_error` for a coding that is not supported.
    """
    names = [name.strip().lower() for name in codings.split(",")]
    names = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
    unknown = [name for name in names if name not in DECODERS] or names[MAX_CODINGS:]
    if unknown:
        return partial(refuse_coding, unknown[0], peer=peer)
    for name in reversed(names):
        receive = DecodedBody(receive, name, peer=peer).receive
    return receive


async def refuse_coding(coding: str, *, peer: str) -> bytes:
    """Raise the error of a body that cannot be decoded."""
    raise unknown_coding(coding, peer=peer)


def is_mislabelled(coding: str, data: bytes) -> bool:
    """Return whether a body is not compressed at all: some proxies decode it and leave the header.

    `data` is its first read. Compressed data does not begin with a brace: in br that would be the end of an
    empty stream, with padding that RFC 7932 does not allow; raw deflate begins so only for texts that are
    mostly not in Latin script. JSON that begins with white space is recognised only if it was read whole, and
    an event stream only by its first field.
    """
    start = {"gzip": GZIP_START, "zstd": ZSTD_START[:1]}.get(coding)
    if start is not None:
        return not data.startswith(start[: len(data)])
    is_whole = data.lstrip()[:1] == b"{" and data.rstrip()[-1:] == b"}"
    return coding in UNMARKED and (data[:1] == b"{" or is_whole or data.startswith(STREAM_STARTS))


def make_decoder(coding: str, *, peer: str) -> Decoder:
    """Return a decoder. Raises ProviderError when its library is not installed."""
    try:
        return DECODERS[coding]()
    except ImportError:
        raise unknown_coding(coding, peer=peer) from None


def unknown_coding(coding: str, *, peer: str) -> ProviderError:
    return ProviderError(
        f"{peer} responded with the content encoding {safe_line(coding[:40])!r}, which cannot be decoded",
        category="api_error",
        hint="turn off compression in the proxy between the provider and the hub",
    )


DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": lambda: InflateDecoder(GZIP_BITS),
    "deflate": lambda: InflateDecoder(None),
    "br": lambda: BrotliDecoder(import_module("brotli")),
    "zstd": lambda: ZstdDecoder(import_module("zstandard")),
}
