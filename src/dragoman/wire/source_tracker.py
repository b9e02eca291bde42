"""Links and images in an answer as events, each reported once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.events import Event, File, SourceDocument, SourceUrl
from dragoman.messages import ProviderMetadata

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)")
_MEDIA_TYPES = {"jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}

_FILE_CITATIONS = ("file_citation", "container_file_citation", "file_path")
_MOST_CHARACTERS = 2**53


class SourceTracker:
    """Tracks which links and images of one answer have been reported."""

    def __init__(self) -> None:
        self._seen_urls: dict[str, None] = {}  # smaller than a set while it is empty, as it mostly is

    def new_sources(self, *lists: Any, offset: int = 0) -> list[Event]:
        """Return a source event for each new link in lists of URLs or of objects that contain one.

        `offset` is added to the places that citations name; see `cited_place`.
        """
        return [
            SourceUrl(source_id(url), url, title, _place_metadata(link, offset))
            for items in lists
            for url, title, link in _links(items)
            if self._is_new(url)
        ]

    def new_documents(self, *lists: Any) -> list[Event]:
        """Return a source event for each new file in lists of annotations that cite one."""
        return [
            SourceDocument(f"document-{file_id}", "text/plain", name, name, {"openai": {"fileId": file_id}})
            for items in lists
            for item in _objects(items)
            if item.get("type") in _FILE_CITATIONS
            and isinstance(file_id := item.get("file_id"), str)
            and self._is_new(f"file:{file_id}")
            for name in (_nonempty_text(item.get("filename")) or file_id,)
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
        self._seen_urls[url] = None
        return new


def cited_place(source: SourceUrl) -> tuple[int, int] | None:
    """Return where in the text of its step a page is cited, if its provider tells: start and end."""
    fields = (source.provider_metadata or {}).get("openai", {})
    start, end = fields.get("startIndex"), fields.get("endIndex")
    return (start, end) if isinstance(start, int) and isinstance(end, int) else None


def source_id(url: str) -> str:
    """Return an id that is the same for the same URL in every answer."""
    return f"source-{hashlib.sha256(url.encode(errors='replace')).hexdigest()[:12]}"


def media_type_from_url(url: str) -> str:
    """Return the media type by the data: URL or the file extension; PNG if neither tells."""
    match = _DATA_URL.match(url)
    if match:
        return match[1]
    return _MEDIA_TYPES.get(url.partition("?")[0].rpartition(".")[2].lower(), "image/png")


def _objects(items: Any) -> list[Any]:
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _links(items: Any) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
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
            yield url, _nonempty_text(title), link


def _place_metadata(link: Mapping[str, Any], offset: int) -> ProviderMetadata | None:
    start, end = link.get("start_index"), link.get("end_index")
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= _MOST_CHARACTERS:
        return None
    return {"openai": {"startIndex": start + offset, "endIndex": end + offset}}


def _nonempty_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _image(item: Mapping[str, Any]) -> str:
    image = item.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    return url if isinstance(url, str) else ""
