"""The tokenizer of the search: words and identifier parts, stop words, stems, synonyms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from dragoman.unicode_normalisation import normalise_text

# `HTTPServer_v2` -> HTTP Server v 2; a run of letters without case (CJK, Arabic) is one part.
WORD_PATTERN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")

FIRST_UNSPACED = "\u2e80"  # scripts from here on mostly have no spaces: runs become bigrams
MAX_WORD_LENGTH = 48  # letters; longer words are ignored
MAX_CACHED_LENGTH = 64  # characters of a text that is cached: parameter names, namespaces

STOP_WORD_LIST = (
    "a about above after again all also am an and any are as at be because been before being between "
    "both but by can could did do does doing down during each few for from further had has have having "
    "he her here hers him his how i if in into is it its itself just me more most my no nor not of off "
    "on once only or other our out over own please same she should so some such than that the their "
    "them then there these they this those through to too under until up us using very via was we were "
    "what when where which while who whom why will with would you your "
)
# What WORD_PATTERN leaves of "I'm", "don't", "we'd" and the like.
CONTRACTION_PARTS = (
    "s t m d ll ve re don didn doesn isn aren wasn weren won wouldn couldn shouldn hasn haven hadn "
)
STOP_WORDS = frozenset((STOP_WORD_LIST + CONTRACTION_PARTS).split())

# What people put around a request ("I'd like to know", "help me"). Some are names of operations too, so they
# count less in a query instead of not at all.
REQUEST_WORDS = "want need like help let tell know give looking wondering hi hello thanks"

SYNONYMS = (
    "get fetch retrieve read obtain load",
    "list show display enumerate browse",
    "search find lookup query locate discover",
    "create add make new insert register",
    "delete remove erase drop destroy clear",
    "update edit modify change set patch",
    "send post submit publish deliver",
    "write save store persist record",
    "copy duplicate clone replicate",
    "move rename transfer relocate",
    "start run launch execute begin trigger",
    "stop end cancel abort terminate halt",
    "convert transform translate change",
    "calculate compute evaluate solve",
    "compare diff contrast difference",
    "check verify validate test confirm",
    "analyze analyse inspect examine assess",
    "summarize summarise summary digest abstract",
    "book reserve schedule order",
    "buy purchase order pay",
    "download export pull",
    "upload import push attach",
    "mail email message",
    "picture image photo",
    "directory folder",
    "issue ticket bug",
)


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the English stem of a lower-case word."""
    import snowballstemmer  # late: it imports the stemmers of many languages, and only a search needs one

    # One stemmer a call: it is stateful, and two threads may search at once.
    return str(snowballstemmer.stemmer("english").stemWord(word))


def terms(text: str) -> Iterator[str]:
    """Return the stems of the text's words and identifier parts, without stop words."""
    for part in WORD_PATTERN.findall(normalise_text("NFKC", text)):
        word = part.lower()
        if word[0] >= FIRST_UNSPACED:
            yield from bigrams(word)
        elif word not in STOP_WORDS and len(word) <= MAX_WORD_LENGTH:
            yield stem(word)


def bigrams(run: str) -> Iterator[str]:
    """Return all pairs of adjacent letters; a single letter by itself."""
    yield from (run[start : start + 2] for start in range(max(1, len(run) - 1)))


def unique_terms(text: str) -> frozenset[str]:
    """Return the distinct terms of a text."""
    return cached_terms(text) if len(text) <= MAX_CACHED_LENGTH else frozenset(terms(text))


@lru_cache(maxsize=16_384)
def cached_terms(text: str) -> frozenset[str]:
    """Return the distinct terms of a text that many operations share."""
    return frozenset(terms(text))


@lru_cache(maxsize=1)
def synonym_groups() -> dict[str, frozenset[str]]:
    """Return the stems of all synonyms for each stem that has any."""
    synonyms_by_stem: dict[str, frozenset[str]] = {}
    for line in SYNONYMS:
        group = frozenset(stem(word) for word in line.split())
        for word in group:
            synonyms_by_stem[word] = synonyms_by_stem.get(word, frozenset()) | group
    return synonyms_by_stem


def synonyms(term: str) -> frozenset[str]:
    """Return the other stems of similar meaning."""
    return synonym_groups().get(term, frozenset()) - {term}


@lru_cache(maxsize=1)
def request_terms() -> frozenset[str]:
    """Return the stems of the words that people put around a request."""
    return frozenset(stem(word) for word in REQUEST_WORDS.split())


def normalise_name(name: str) -> str:
    """Return a name without case, dots, dashes and underscores."""
    return re.sub(r"[\W_]+", "", name.lower())
