"""Extract text: a stand-alone program that reads a document and prints its text.

Arguments: `html` or `pdf`, and the most characters of text. It reads the document from its input, and prints
JSON with `title` and `text`, null where there is no main content. It runs in a process of its own with
limits, because a hostile document can make parsers take all memory, or never end.
"""

from __future__ import annotations

import io
import json
import logging
import sys

MAX_PAGES = 500


def main() -> None:
    """Read the document, print its text."""
    kind, limit = sys.argv[1], int(sys.argv[2])
    logging.disable(logging.CRITICAL)
    body = sys.stdin.buffer.read()
    title, text = extract_pdf(body, limit) if kind == "pdf" else extract_article(body)
    json.dump({"title": title, "text": None if text is None else text[:limit]}, sys.stdout)


def extract_article(body: bytes) -> tuple[str | None, str | None]:
    """Return the title and the main content of a page, as Markdown."""
    from trafilatura import extract_with_metadata  # late: heavy, and in this process only

    html = body.decode(errors="replace")
    article = extract_with_metadata(html, output_format="markdown", include_links=True)
    return (None, None) if article is None else (article.title, article.text)


def extract_pdf(body: bytes, limit: int) -> tuple[str | None, str | None]:
    """Return the title and the text of a PDF, page by page."""
    from pypdf import PdfReader  # late: heavy, and in this process only

    reader = PdfReader(io.BytesIO(body))
    texts: list[str] = []
    for page in list(reader.pages[:MAX_PAGES]):
        texts.append(page.extract_text())
        if sum(map(len, texts)) > limit:
            break
    title = reader.metadata.title if reader.metadata else None
    return title, "\n\n".join(text.strip() for text in texts)


if __name__ == "__main__":
    main()
