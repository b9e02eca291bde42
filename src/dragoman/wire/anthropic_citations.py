"""Citations: what a text quotes, kept as it came, and each source told once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.events import Event, SourceDocument
from dragoman.wire.sources import Sources

_KINDS = {"page_location": "application/pdf"}


class Citations:
    """Remembers which sources one answer has told."""

    def __init__(self) -> None:
        self._links = Sources()
        self._documents: set[str] = set()

    def tell(self, citation: Mapping[str, Any]) -> list[Event]:
        """The source of a citation, if it is new: a web page, or a document of the conversation."""
        title = citation.get("title")
        for name in ("url", "source"):
            link = citation.get(name)
            if isinstance(link, str) and link.startswith(("http://", "https://")):
                return self._links.cite([{"url": link, "title": title}])
        number = citation.get("document_index", citation.get("search_result_index"))
        if type(number) is not int:
            return []
        place = f"{'document' if 'document_index' in citation else 'search-result'}-{number}"
        if place in self._documents:
            return []
        self._documents.add(place)
        kind = _KINDS.get(str(citation.get("type")), "text/plain")
        named = citation.get("document_title") or title or citation.get("source")
        return [SourceDocument(place, kind, named if isinstance(named, str) else place)]
