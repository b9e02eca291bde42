"""A web request: its method, the headers that a caller may set, its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from dragoman.errors import BadRequest
from dragoman.tools.web.url import Url

HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
MAX_HEADERS = 20
MAX_HEADER_LENGTH = 4_096
REFUSED_HEADERS = frozenset(
    {
        "accept-encoding", "connection", "content-length", "cookie", "expect", "host", "keep-alive",
        "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "via",
    }
)  # fmt: skip
ACCEPTED = "text/html, text/plain, application/json, application/xml;q=0.9, text/*;q=0.8, */*;q=0.1"
USER_AGENT = "Mozilla/5.0 (compatible; dragoman web.fetch)"

WebMethod = Literal["GET", "POST"]


class WebRequest(msgspec.Struct, frozen=True):
    """The method, headers and body to send to a URL. `headers` are those that `check_headers` returns."""

    method: WebMethod = "GET"
    headers: Mapping[str, str] = {}
    body: bytes = b""

    def after_redirect(self, status: int, *, same_origin: bool) -> WebRequest:
        """Return the request for the URL that a redirect leads to.

        To another origin it has none of the caller's headers, and after 301, 302 and 303 it is a GET. Raises
        BadRequest if it would send a body to another origin.
        """
        headers = self.headers if same_origin else {}
        if self.method == "GET" or status in (301, 302, 303):
            remaining = {name: value for name, value in headers.items() if not name.startswith("content-")}
            return WebRequest(headers=remaining)
        if not same_origin:
            raise BadRequest("It would send the body of a POST request to another origin.")
        return self

    def head(self, url: Url) -> bytes:
        """Return the head of the request; apart from the caller's headers it is the same for all callers."""
        fields = {
            "host": url.authority,
            "user-agent": USER_AGENT,
            "accept": ACCEPTED,
            **self.headers,
            "accept-encoding": "gzip",
            "connection": "close",
        }
        if self.method == "POST":
            fields["content-length"] = str(len(self.body))
        lines = (
            f"{self.method} {url.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in fields.items()),
        )
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with lower-case names. Raises BadRequest for one that a caller may not set."""
    if len(headers) > MAX_HEADERS:
        raise BadRequest(f"There are {len(headers)} headers; the limit is {MAX_HEADERS}.", field="headers")
    checked = {name.lower(): value for name, value in headers.items()}
    for name, value in checked.items():
        if not HEADER_NAME.fullmatch(name) or name in REFUSED_HEADERS:
            raise BadRequest(f"The header {name[:64]!r} cannot be set.", field="headers")
        if not (value.isascii() and value.isprintable()) or len(value) > MAX_HEADER_LENGTH:
            raise BadRequest(f"The value of the header {name!r} is not valid.", field="headers")
    return checked
