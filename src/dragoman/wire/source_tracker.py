"""Links and images in an answer as events, each reported once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.events import Event, File, SourceUrl

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)")
_MEDIA_TYPES = {"jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}


class SourceTracker:
    """Tracks which links and images of one answer have been reported."""

    def __init__(self) -> None:
        self._seen_urls: set[str] = set()

    def new_sources(self, *lists: Any) -> list[Event]:
        """Return a source event for each new link in lists of URLs or of objects that contain one."""
        return [
            SourceUrl(source_id(url), url, title)
            for items in lists
            for url, title in _links(items)
            if self._is_new(url)
        ]

    def new_images(self, *lists: Any) -> list[Event]:
        """Return a file event for each new image in lists of `image_url` parts."""
        return [
            File(url, media_type_from_url(url))
            for items in lists
            for item in _objects(items)
            if (url := _image(item)) and self._is_new(url)
        ]

    def _is_new(self, url: str) -> bool:
        new = url not in self._seen_urls
        self._seen_urls.add(url)
        return new


def source_id(url: str) -> str:
    """An id that is the same for the same URL in every answer."""
    return f"source-{hashlib.sha256(url.encode(errors='replace')).hexdigest()[:12]}"


def media_type_from_url(url: str) -> str:
    """The media type by the data: URL or the file extension; PNG if neither tells."""
    match = _DATA_URL.match(url)
    if match:
        return match[1]
    return _MEDIA_TYPES.get(url.partition("?")[0].rpartition(".")[2].lower(), "image/png")


def _objects(items: Any) -> list[Any]:
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _links(items: Any) -> Iterator[tuple[str, str | None]]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, str):
            link: Mapping[str, Any] = {"url": item}
        elif isinstance(item, Mapping):
            nested = item.get("url_citation")
            link = nested if isinstance(nested, Mapping) else item
        else:
            continue
        url = next((link[key] for key in ("url", "link", "uri") if isinstance(link.get(key), str)), "")
        title = link.get("title")
        if url.startswith(("http://", "https://")):
            yield url, title if isinstance(title, str) and title else None


def _image(item: Mapping[str, Any]) -> str:
    image = item.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    return url if isinstance(url, str) else ""
