"""The web fetcher: request a URL over a connection to a checked address, and decode the response.

A connection serves one request and leads directly to an address that the host policy resolved and checked; a
proxy would resolve the name again. Host name and certificate are those of the URL, redirects are checked
like the first request, and no cookies or credentials are sent.
"""

from __future__ import annotations

import asyncio
import re
import zlib

import msgspec

from dragoman.errors import BadRequest, CallError, CallTimeout, Forbidden, ProviderError, TooLarge
from dragoman.http.connection import HttpConnection, HttpRequest, Timeouts
from dragoman.http.dialer import AddrInfo, describe_error
from dragoman.http.response_parser import ResponseParser
from dragoman.json_decoding import parse_digits
from dragoman.tools.web.connector import CheckedConnector, OpenSocket
from dragoman.tools.web.host_policy import HostPolicy
from dragoman.tools.web.request import WebRequest
from dragoman.tools.web.url import Url, parse_url, resolve_redirect

GZIP_WINDOW_BITS = 31  # zlib's code for a gzip header and a window of 32 KB


class BodyDecompressor:
    """Collects a response body, decompressed; `limit` is in bytes."""

    def __init__(self, encoding: str, *, limit: int) -> None:
        self._is_gzip = encoding.strip().lower() in ("gzip", "x-gzip")
        if not self._is_gzip and encoding.strip().lower() not in ("", "identity"):
            raise CallError(
                f"The response has the content encoding {encoding[:40]!r}, which was not requested."
            )
        self._limit = limit
        self._body = bytearray()
        self._stream = zlib.decompressobj(GZIP_WINDOW_BITS)
        self._in_member = False  # within a member of a gzip stream

    def feed(self, data: bytes) -> bool:
        """Add data; return False if the body exceeds the limit."""
        if not self._is_gzip:
            self._body += data
        while self._is_gzip and data and len(self._body) <= self._limit:
            data = self._decompress(data)
        return len(self._body) <= self._limit

    def finish(self) -> bytes:
        """Return the whole body. Raises CallError if it is incomplete."""
        if self._in_member:
            raise CallError("The response ended before its gzip data was complete.")
        return bytes(self._body)

    def _decompress(self, data: bytes) -> bytes:
        """Decompress up to the limit; return the data that remains."""
        self._in_member = True
        try:
            self._body += self._stream.decompress(data, self._limit - len(self._body) + 1)
        except zlib.error:
            raise CallError("The response is not valid gzip data.") from None
        if not self._stream.eof:
            return self._stream.unconsumed_tail
        remaining = self._stream.unused_data
        self._stream, self._in_member = zlib.decompressobj(GZIP_WINDOW_BITS), False
        return remaining


PDF_TYPE = "application/pdf"
PLAIN_GET = WebRequest()
MAX_REDIRECTS = 5
REDIRECT_STATUSES = {301, 302, 303, 307, 308}
NO_TIMEOUTS = Timeouts(connect=None, first_byte=None, idle=None)  # the request as a whole has a timeout
MEDIA_TYPE = re.compile(r"\s*([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)\s*(?:;.*)?", re.IGNORECASE | re.ASCII)
CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([^\s\"';,]+)", re.IGNORECASE)
TEXT_MEDIA_TYPES = {
    "application/ecmascript", "application/javascript", "application/json", "application/jsonl",
    "application/ld+json", "application/ndjson", "application/toml", "application/x-javascript",
    "application/x-ndjson", "application/x-yaml", "application/xml", "application/yaml", "message/rfc822",
}  # fmt: skip


class WebResponse(msgspec.Struct, frozen=True):
    """A response: `url` is where the redirects ended, `media_type` is its content type."""

    url: Url
    status: int
    media_type: str | None
    charset: str | None
    body: bytes
    redirects: int = 0


class RequestTarget(msgspec.Struct, frozen=True):
    """A URL, the checked addresses of its host, and the request to send."""

    url: Url
    addresses: list[AddrInfo]
    request: WebRequest


class Redirect(msgspec.Struct, frozen=True):
    """A response that leads elsewhere."""

    status: int
    location: str


class WebFetcher:
    """Fetches pages. `open_socket` connects to one of some checked addresses."""

    def __init__(
        self,
        host_policy: HostPolicy,
        *,
        max_bytes: int,
        timeout: float,
        open_socket: OpenSocket | None = None,
    ) -> None:
        self._host_policy = host_policy
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._connector = CheckedConnector(open_socket)

    async def fetch(self, text: str, request: WebRequest = PLAIN_GET) -> WebResponse:
        """Request a URL and follow up to MAX_REDIRECTS redirects.

        Raises BadRequest or Forbidden for a URL that is not allowed, TooLarge, CallTimeout, and CallError for
        other failures.
        """
        url = parse_url(text)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._fetch_following(url, request)
        except TimeoutError:
            raise CallTimeout(
                f"{url.host!r} did not respond completely within {self._timeout:g} seconds.",
                hint="Try another URL, or this one later.",
            ) from None

    async def _fetch_following(self, url: Url, request: WebRequest) -> WebResponse:
        target = RequestTarget(url, await self._host_policy.resolve_allowed(url), request)
        for redirects in range(MAX_REDIRECTS + 1):
            response = await self._request(target)
            if isinstance(response, WebResponse):
                return msgspec.structs.replace(response, redirects=redirects)
            target = await self._resolve_redirect(target, response)
        raise CallError(f"{target.url.host!r} redirects more than {MAX_REDIRECTS} times.")

    async def _resolve_redirect(self, origin: RequestTarget, redirect: Redirect) -> RequestTarget:
        url = origin.url
        try:
            target = resolve_redirect(url, redirect.location)
            if url.tls and not target.tls:
                raise Forbidden("It leads from https to http.", hint=f"If that is intended, fetch {target}.")
            is_same = (url.scheme, url.host, url.port) == (target.scheme, target.host, target.port)
            request = origin.request.after_redirect(redirect.status, same_origin=is_same)
            return RequestTarget(target, await self._host_policy.resolve_allowed(target), request)
        except (BadRequest, Forbidden) as error:
            raise Forbidden(
                f"{url.host!r} redirects to a URL that is not allowed: {error.message}", hint=error.hint
            ) from None

    async def _request(self, target: RequestTarget) -> WebResponse | Redirect:
        """Return the response, or a redirect."""
        url, request = target.url, target.request
        try:
            connection = await self._connector.connect(url, target.addresses)
        except OSError as error:
            raise fetch_error(f"Cannot connect to {url.host!r}: {describe_error(error)}") from None
        try:
            incoming = await connection.send(HttpRequest(request.head(url), request.body, NO_TIMEOUTS))
            location = incoming.headers.get("location")
            if incoming.status in REDIRECT_STATUSES and location:
                return Redirect(incoming.status, location.encode("latin-1").decode(errors="replace"))
            return await self._read_response(url, connection, incoming=incoming)
        except ProviderError as error:
            raise fetch_error(error.message, transient=error.transient) from None
        finally:
            connection.abort()

    async def _read_response(
        self, url: Url, connection: HttpConnection, *, incoming: ResponseParser
    ) -> WebResponse:
        content_type = incoming.headers.get("content-type", "")
        media = MEDIA_TYPE.fullmatch(content_type)
        media_type = media[1].lower() if media else None
        length = incoming.headers.get("content-length", "")
        if media_type and not is_readable_type(media_type) and length != "0":
            raise CallError(
                f"{url.host!r} responded {incoming.status} with {media_type}; web.fetch reads text only.",
                hint="It reads HTML, plain text, JSON, XML and PDF; look for the content in one of these.",
            )
        body = await self._read_body(url, connection, incoming=incoming)
        charset = CHARSET.search(content_type)
        return WebResponse(url, incoming.status, media_type, charset[1] if charset else None, body)

    async def _read_body(self, url: Url, connection: HttpConnection, *, incoming: ResponseParser) -> bytes:
        """Return the response body, decompressed and within the limit."""
        length = incoming.headers.get("content-length", "")
        if (parse_digits(length) or 0) > self._max_bytes:
            raise self._too_large(url)
        inflate = BodyDecompressor(incoming.headers.get("content-encoding", ""), limit=self._max_bytes)
        received = 0
        while data := await connection.receive(incoming):
            received += len(data)
            if received > self._max_bytes or not inflate.feed(data):
                raise self._too_large(url)
        return inflate.finish()

    def _too_large(self, url: Url) -> TooLarge:
        return TooLarge(
            f"The response of {url.host!r} is larger than {self._max_bytes} bytes.",
            hint="Fetch a smaller page, or a part of it if the site offers parts.",
        )


def is_readable_type(media_type: str) -> bool:
    """Return whether web.fetch can return a media type as text."""
    return (
        media_type == PDF_TYPE
        or media_type.startswith("text/")
        or media_type in TEXT_MEDIA_TYPES
        or media_type.endswith(("+json", "+xml"))
    )


def fetch_error(message: str, *, transient: bool = True) -> CallError:
    error = CallError(message, hint="Check the URL, or try later.")
    error.transient = transient
    return error


# Decoding: by a byte order mark, the response's charset, or the page's own declaration.
# The names are those of the WHATWG Encoding standard. No other codec of Python is used: some do not encode
# text at all.

SNIFFED_BYTES = 2_048  # bytes in which a page declares its encoding
MAX_UNREADABLE_SHARE = 0.1  # share of the text that may be unreadable
ALLOWED_UNREADABLE = 4  # unreadable characters that are always allowed
CHARSET_DECLARATION = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]+)|<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w-]+)",
    re.IGNORECASE,
)
UNREADABLE = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]+")
BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
CODECS = {
    "ascii": "cp1252", "us-ascii": "cp1252", "latin1": "cp1252", "iso-8859-1": "cp1252", "l1": "cp1252",
    "iso-8859-9": "cp1254", "utf8": "utf-8", "utf-8": "utf-8", "utf-16": "utf-16-le", "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be", "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs",
    "big5-hkscs": "big5hkscs", "shift_jis": "cp932", "shift-jis": "cp932", "sjis": "cp932",
    "windows-31j": "cp932", "euc-jp": "euc_jp", "iso-2022-jp": "iso2022_jp", "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949", "koi8-r": "koi8_r", "koi8-u": "koi8_u", "ibm866": "cp866", "cp866": "cp866",
    "macintosh": "mac_roman", "x-mac-cyrillic": "mac_cyrillic", "windows-874": "cp874", "tis-620": "cp874",
    **{f"windows-{page}": f"cp{page}" for page in range(1250, 1259)},
    **{f"cp{page}": f"cp{page}" for page in range(1250, 1259)},
    **{f"iso-8859-{part}": f"iso8859_{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
}  # fmt: skip


def decode_text(body: bytes, charset: str | None = None) -> str:
    """Decode a body. Raises CallError if it is not text; undecodable characters show as `�`."""
    bom_codec = next((codec for start, codec in BYTE_ORDER_MARKS if body.startswith(start)), None)
    charset_codec = CODECS.get((charset or "").lower())
    codec = bom_codec or charset_codec or declared_codec(body) or guess_codec(body)
    text = body.decode(codec, errors="replace").removeprefix("\ufeff")
    unreadable = sum(len(run) for run in UNREADABLE.findall(text))
    if unreadable > max(ALLOWED_UNREADABLE, MAX_UNREADABLE_SHARE * len(text)) or "\0" in text[:SNIFFED_BYTES]:
        raise CallError("The response is not text.", hint="web.fetch reads HTML, plain text, JSON and XML.")
    return text


def declared_codec(body: bytes) -> str | None:
    """Return the codec that the first bytes of a page declare.

    A declaration of UTF-16 that can be read as ASCII is wrong, and means UTF-8 (WHATWG HTML).
    """
    match = CHARSET_DECLARATION.search(body[:SNIFFED_BYTES])
    name = (match[1] or match[2]).decode("ascii", errors="replace").lower() if match else ""
    codec = CODECS.get(name)
    return "utf-8" if codec is not None and codec.startswith("utf-16") else codec


def guess_codec(body: bytes) -> str:
    """Guess the codec of an undeclared text: UTF-8 if most other than ASCII is valid, else Windows-1252."""
    text = body.decode(errors="replace")
    non_ascii = len(text) - len(text.encode("ascii", errors="ignore"))
    return "cp1252" if 2 * text.count("\ufffd") > non_ascii else "utf-8"
