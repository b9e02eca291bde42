"""A provider's server: where it is, and what opens its door."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

_SECRET_WORDS = ("key", "token", "auth", "secret", "cookie")


class UpstreamServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the models are. `base_url` ends where the API's own paths begin; a query stays at its end.

    `api_key` is for servers with one key; several are in a `KeyRing`.
    """

    base_url: str
    api_key: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Server({self.display_url!r})"

    @property
    def display_url(self) -> str:
        """The base URL without what may be a secret in it."""
        parts = urlsplit(self.base_url)
        place = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{place}{parts.path}"

    @property
    def host(self) -> str:
        """The host's name, in lower case."""
        return urlsplit(self.base_url).hostname or ""

    def url(self, path: str, *, root: str = "") -> str:
        """The URL of a path of the API, such as `/chat/completions`.

        `root` is what stands between the server and the path where the base URL does not say it (`/v1`).
        A base URL that already ends in one of the API's longer paths loses it first.
        """
        base, mark, query = self.base_url.partition("?")
        base = base.rstrip("/").removesuffix("/chat/completions").removesuffix("/messages")
        if root and not base.endswith(root):
            base += root
        return f"{base}{path}{mark}{query}"

    @property
    def secrets(self) -> list[str]:
        """What must never be shown."""
        named = [
            value
            for name, value in self.headers.items()
            if any(word in name.lower() for word in _SECRET_WORDS)
        ]
        parts = urlsplit(self.base_url)
        asked = [
            value
            for name, value in parse_qsl(parts.query)
            if any(word in name.lower() for word in _SECRET_WORDS)
        ]
        return [secret for secret in (self.api_key, parts.password, *named, *asked) if secret]
