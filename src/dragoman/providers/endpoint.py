"""The address and credentials of a provider's server."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

_SECRET_WORDS = ("key", "token", "auth", "secret", "cookie")


class UpstreamServer(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's server. `base_url` ends where the API's paths begin; its query, if any, is preserved.

    `api_key` is for servers with one key; a `KeyPool` has several.
    """

    base_url: str
    api_key: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"UpstreamServer({self.display_url!r})"

    @property
    def display_url(self) -> str:
        """The base URL without credentials and query, which may be secret."""
        parts = urlsplit(self.base_url)
        authority = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{authority}{parts.path}"

    @property
    def host(self) -> str:
        """The host name, in lower case."""
        return urlsplit(self.base_url).hostname or ""

    def url(self, path: str, *, root: str = "") -> str:
        """Return the URL of an API path, such as `/chat/completions`.

        `root` (`/v1`) is added if the base URL does not end with it. A base URL that already ends with an
        endpoint's path loses that first.
        """
        base, mark, query = self.base_url.partition("?")
        base = base.rstrip("/").removesuffix("/chat/completions").removesuffix("/messages")
        if root and not base.endswith(root):
            base += root
        return f"{base}{path}{mark}{query}"

    @property
    def secrets(self) -> list[str]:
        """The keys and passwords in the settings, for redaction."""
        header_secrets = [
            value
            for name, value in self.headers.items()
            if any(word in name.lower() for word in _SECRET_WORDS)
        ]
        parts = urlsplit(self.base_url)
        query_secrets = [
            value
            for name, value in parse_qsl(parts.query)
            if any(word in name.lower() for word in _SECRET_WORDS)
        ]
        return [
            secret for secret in (self.api_key, parts.password, *header_secrets, *query_secrets) if secret
        ]
