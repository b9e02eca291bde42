"""Texts: count, and find what stands out. Plain functions; the hub runs them in threads."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dragoman.operations import operation

WORDS = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
WORDS_PER_MINUTE = 230

Text = Annotated[str, Field(max_length=200_000)]


@dataclass
class Statistics:
    """What there is in a text; reading time in minutes."""

    characters: int
    words: int
    sentences: int
    paragraphs: int
    reading_minutes: float


@operation("texts", effect="read")
def measure(text: Text) -> Statistics:
    """Count the characters, words, sentences and paragraphs of a text, and how long it takes to read."""
    words = len(WORDS.findall(text))
    return Statistics(
        characters=len(text),
        words=words,
        sentences=len(re.findall(r"[.!?…]+(?=\s|$)", text)),
        paragraphs=len([each for each in re.split(r"\n\s*\n", text) if each.strip()]),
        reading_minutes=round(words / WORDS_PER_MINUTE, 1),
    )


@operation("texts", effect="read")
def frequent(
    text: Text,
    count: Annotated[int, Field(ge=1, le=100)] = 10,
    order: Literal["often", "alphabet"] = "often",
) -> dict[str, int]:
    """Count how often the most frequent words of a text come.

    Args:
        text: The text.
        count: How many words to give.
        order: By how often they come, or by the alphabet.
    """
    found = Counter(word.lower() for word in WORDS.findall(text)).most_common(count)
    return dict(found if order == "often" else sorted(found))
