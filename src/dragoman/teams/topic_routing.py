"""Topics of a team: which of its sessions a task belongs to, by words in its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

PIECE = 65_536  # characters


def find_topic(topics: Mapping[str, Sequence[str]], text: str) -> str | None:
    """Return the first topic of which a text has one of the keywords as whole words; None without one."""
    words = f" {normalize(text)} "
    for name, keywords in topics.items():
        if any(f" {normalize(keyword)} " in words for keyword in keywords):
            return name
    return None


def normalize(text: str) -> str:
    """Return the words of a text in lower case, with one space between two."""
    return " ".join(filter(None, map(normalize_piece, pieces_of(text))))


def pieces_of(text: str) -> Iterator[str]:
    """Yield a text in pieces that end between two words: splitting megabytes holds the interpreter."""
    start = 0
    while start < len(text):
        end = text.find(" ", start + PIECE)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end


def normalize_piece(text: str) -> str:
    return " ".join("".join(each if each.isalnum() else " " for each in text.casefold()).split())
