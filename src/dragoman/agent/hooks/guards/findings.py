"""What looks like a secret in a text: keys of known forms, labelled values, words that look random."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import unquote

from dragoman.operations.cleaning import INVISIBLE

Span: TypeAlias = tuple[int, int]

KEY_PATTERNS = (
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----[^-]{0,7000}(?:-----END [A-Z ]{0,30}-----)?",
    r"\bsk[-_](?:ant-|proj-|live_|test_|or-)?[A-Za-z0-9_-]{16,200}",
    r"\b(?:pk|rk)_(?:live|test)_[A-Za-z0-9]{16,200}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    r"\bgh[oprsu]_[A-Za-z0-9]{30,255}",
    r"\bgithub_pat_[A-Za-z0-9_]{40,255}",
    r"\bgl(?:pat|dt|rt|cbt|ptt)-[A-Za-z0-9_-]{20,200}",
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,250}|\bxapp-[A-Za-z0-9-]{20,250}",
    r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_+-]{20,200}",
    r"\bAIza[A-Za-z0-9_-]{35}|\bya29\.[A-Za-z0-9_-]{20,500}|\bGOCSPX-[A-Za-z0-9_-]{20,60}",
    r"\bSG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}",
    r"\b(?:hf|gsk|npm|dgm|shpat|shpss|dop_v1|doo_v1|lin_api|figd|r8|pul|sbp|rnd|nvapi)[_-][A-Za-z0-9_-]{20,200}",
    r"\bpypi-[A-Za-z0-9_-]{40,250}|\bxai-[A-Za-z0-9]{40,200}|\bdapi[a-f0-9]{32}\b|\bwhsec_[A-Za-z0-9+/=]{20,100}",
    r"\bhv[sbr]\.[A-Za-z0-9_-]{20,250}|\bsq0[a-z]{3}-[A-Za-z0-9_-]{22,50}|\bpplx-[A-Za-z0-9]{30,100}",
    r"\beyJ[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{4,4000}(?:\.[A-Za-z0-9_-]{0,4000})?",
    r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}\b",
    r"\bAccountKey=[A-Za-z0-9+/=]{40,120}",
    r"(?<=://)[^\s:/@]{0,100}:[^\s:/@]{3,200}(?=@)",
)
LABELLED_PATTERNS = (
    r"(?i:\b(?:bearer|basic|token)\s{1,3})[A-Za-z0-9._~+/=-]{16,500}",
    (
        r"(?i:(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)"
        r"[\"']?\s{0,3}[:=]\s{0,3}[\"']?)[^\s\"'<>,;)}\]]{6,200}"
    ),
)
KNOWN_SECRET = re.compile("|".join(f"(?:{form})" for form in (*KEY_PATTERNS, *LABELLED_PATTERNS)))
LONG_WORD = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{20,256}(?![A-Za-z0-9+/=_-])")
CHUNK, OVERLAP = 65_536, 8_192
MIN_ENTROPY = 4.2  # a character; English words have under 4, random base64 of 32 characters about 4.6
MIN_RANDOM_LENGTH = 24


def find_secrets(text: str, *, entropy: bool = True) -> list[Span]:
    """Where secrets stand, in order, none within another.

    The text is looked through in slices, so that a long one does not hold other threads up.
    """
    found: list[Span] = []
    for start in range(0, max(len(text), 1), CHUNK):
        piece = text[start : start + CHUNK + OVERLAP]
        found += ((start + a, start + b) for a, b in secret_spans(piece, entropy=entropy))
    return merge_spans(found)


def has_encoded_secret(text: str) -> bool:
    """Whether there is a secret of a known form in it once it is read otherwise: decoded, made visible."""
    readings = {INVISIBLE.sub("", text), unquote(text)} - {text}
    return any(find_secrets(each, entropy=False) for each in readings)


def secret_spans(piece: str, *, entropy: bool) -> Iterator[Span]:
    yield from (found.span() for found in KNOWN_SECRET.finditer(piece))
    for word in LONG_WORD.finditer(piece):
        if (entropy and is_random(word[0])) or is_base64_secret(word[0]):
            yield word.span()


def is_random(word: str) -> bool:
    """Whether a word is too random to be one: small and big letters and digits, and hardly any twice."""
    kinds = (str.islower, str.isupper, str.isdigit)
    if len(word) < MIN_RANDOM_LENGTH or not all(any(map(kind, word)) for kind in kinds):
        return False
    shares = [count / len(word) for count in Counter(word).values()]
    return -sum(share * math.log2(share) for share in shares) >= MIN_ENTROPY


def is_base64_secret(word: str) -> bool:
    """Whether it is base64 of something with a key of a known form."""
    try:
        said = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=False)
        return bool(KNOWN_SECRET.search(said.decode("ascii")))
    except (ValueError, binascii.Error):
        return False


def merge_spans(spans: list[Span]) -> list[Span]:
    """The spans without overlaps."""
    kept: list[Span] = []
    for start, end in sorted(spans):
        if kept and start < kept[-1][1]:
            kept[-1] = (kept[-1][0], max(end, kept[-1][1]))
        else:
            kept.append((start, end))
    return kept
