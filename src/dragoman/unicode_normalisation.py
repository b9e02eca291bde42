"""Unicode normalisation of texts from outside, in time in proportion to their length.

`unicodedata.normalize` sorts each run of combining characters by insertion, so a letter with 50,000 accents
takes half a minute, in which the interpreter does nothing else. Texts of people have no run of more than 30:
that is the limit of Unicode's Stream-Safe Text Format (UAX #15, section 13), in which longer runs are split.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

MAX_COMBINING = 30  # characters in a row that combine with the one before them
JOINER = "\u034f"  # COMBINING GRAPHEME JOINER, which ends a run and has no shape of its own
# No combining character is a word character, and the Katakana voice marks of half width become combining.
LONG_RUN = re.compile(rf"[\W\uff9e\uff9f]{{{MAX_COMBINING + 1},}}")


def normalise_text(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Return the text in a normal form; longer runs of combining characters than people write are split."""
    return text if text.isascii() else unicodedata.normalize(form, LONG_RUN.sub(split_run, text))


def split_run(run: re.Match[str]) -> str:
    """Return a run of characters with a joiner after each `MAX_COMBINING` that combine."""
    if run[0].isascii():
        return run[0]
    characters, count = [], 0
    for character in run[0]:
        count = count + 1 if is_combining(character) else 0
        if count > MAX_COMBINING:
            characters.append(JOINER)
            count = 1
        characters.append(character)
    return "".join(characters)


def is_combining(character: str) -> bool:
    """Return whether a character, or the first of those that it stands for, combines with the one before."""
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) != 0
