"""Words: how text and identifiers are cut into terms for search: parts, stop words, stems, synonyms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import snowballstemmer

# `HTTPServer_v2` -> HTTP Server v 2; a run of letters without case (CJK, Arabic) is one part.
WORD_PATTERN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")

FIRST_UNSPACED = (
    "\u2e80"  # from here on scripts do without spaces, mostly: a run is cut into pairs of letters
)
MAX_WORD_LENGTH = 48  # letters of a word; a longer one is none that anybody asks for
MAX_CACHED_LENGTH = 64  # characters of a text that is worth remembering: names of parameters, namespaces

STOP_WORD_LIST = (
    "a about above after again all also am an and any are as at be because been before being between "
    "both but by can could did do does doing down during each few for from further had has have having "
    "he her here hers him his how i if in into is it its itself just me more most my no nor not of off "
    "on once only or other our out over own please same she should so some such than that the their "
    "them then there these they this those through to too under until up us using very via was we were "
    "what when where which while who whom why will with would you your "
)
STOP_WORDS = frozenset(STOP_WORD_LIST.split())

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
    """The English stem of a word in small letters."""
    # One stemmer a word: it keeps state while it works, and two threads may search at once.
    return str(snowballstemmer.stemmer("english").stemWord(word))


def terms(text: str) -> Iterator[str]:
    """The stems of the text's words and of the parts of its identifiers, without stop words."""
    for part in WORD_PATTERN.findall(text if text.isascii() else unicodedata.normalize("NFKC", text)):
        word = part.lower()
        if word[0] >= FIRST_UNSPACED:
            yield from bigrams(word)
        elif word not in STOP_WORDS and len(word) <= MAX_WORD_LENGTH:
            yield stem(word)


def bigrams(run: str) -> Iterator[str]:
    """Each two letters that stand together; a single letter alone."""
    yield from (run[place : place + 2] for place in range(max(1, len(run) - 1)))


def unique_terms(text: str) -> frozenset[str]:
    """The different terms of a text."""
    return cached_terms(text) if len(text) <= MAX_CACHED_LENGTH else frozenset(terms(text))


@lru_cache(maxsize=16_384)
def cached_terms(text: str) -> frozenset[str]:
    """The terms of a text that many operations have."""
    return frozenset(terms(text))


@lru_cache(maxsize=1)
def synonym_groups() -> dict[str, frozenset[str]]:
    """For each stem that has synonyms, the stems of all of them."""
    known: dict[str, frozenset[str]] = {}
    for line in SYNONYMS:
        group = frozenset(stem(word) for word in line.split())
        for word in group:
            known[word] = known.get(word, frozenset()) | group
    return known


def synonyms(term: str) -> frozenset[str]:
    """The other stems that mean much the same."""
    return synonym_groups().get(term, frozenset()) - {term}


def normalise_name(name: str) -> str:
    """A name without case, dots, dashes and underscores."""
    return re.sub(r"[\W_]+", "", name.lower())
