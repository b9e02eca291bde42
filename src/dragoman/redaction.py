"""Redaction: secrets and whatever looks like a key, replaced in texts that are shown, logged or sent on."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import is_
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
MIN_SECRET = 4  # characters: shorter values would redact half of every text
SECRET_PREFIX = 8  # characters of a secret that must not be shown either
MAX_LINE = 500  # characters of a line that is shown
MAX_DEPTH = 100  # levels of a JSON value
SHORT_TEXT = 65_536  # characters that are searched by a pattern
MIN_FORM = (
    8  # characters of another spelling of a secret, or of one line of it: shorter ones occur in any text
)

URL_SAFE = ("", "/", "!'()*", "!'()*;/?:@&=+$,#")  # of `quote` twice, encodeURIComponent and encodeURI
HTML_SAFE = (re.compile("[<>&\u2028\u2029]"), re.compile("[<>&'+`]"))  # what Go and .NET escape in JSON
UNICODE_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")

# Keys of the known vendors, of AWS and of Google; and JSON web tokens.
KEY = re.compile(
    r"(?i)(?<![a-z0-9])(?:sk[-_][\w.*-]{6,}|(?:pk|rk|gsk|xai|hf|r8|pplx|nvapi|ghp)[-_][\w.*-]{16,}|"
    r"aiza[\w*-]{12,}|akia[\w*]{12,}|eyj[\w-]{10,}(?:\.[\w-]+)*)"
)
LABELLED_KEY = re.compile(
    r"(?i)(\b(?:bearer|basic)\s+|\bapi[ _-]?key(?:\s+provided)?[\"']?\s*[:=]\s*[\"']?)[^\s\"'<>,;]{6,}"
)
# In a log every value of a field with such a name is a secret; in a provider's message it can be prose.
LOGGED_KEY = re.compile(r"(dgm_|\bsk-|[Bb]earer\s+)[\w.~+/=-]{6,}")
LOGGED_FIELD = re.compile(
    r"(?i)((?:authorization|cookie|password|secret|token|api[_-]?key)[\"']?\s*[:=]\s*b?[\"']?)[^\s\"'<>,;)}\]]{6,}"
)


class Redactor:
    """Replaces secrets in texts; longer ones first, because one may contain another."""

    def __init__(self, *values: str) -> None:
        secrets = sorted({value for value in values if len(value) >= MIN_SECRET}, key=len, reverse=True)
        spelled = dict.fromkeys(form for value in secrets for form in (value, json.dumps(value)[1:-1]))
        self._spelled = tuple(spelled)
        self._pattern = re.compile("|".join(map(re.escape, spelled))) if spelled else None

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        if len(text) <= SHORT_TEXT:
            return self._pattern.sub(MASK, text)
        for secret in self._spelled:  # a pattern takes many times as long, in one call
            text = text.replace(secret, MASK)
        return text

    def redact_json(self, value: Any, *, depth: int = MAX_DEPTH) -> Any:
        """Redact all strings of a JSON value, at any depth. Lists and objects that have none stay the same.

        So a large value is not copied, and most of it is not freed in one long call afterwards.
        """
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self(value)
        if depth == 0:
            return None if isinstance(value, (dict, list)) else value
        if isinstance(value, dict):
            redacted = {self(name): self.redact_json(item, depth=depth - 1) for name, item in value.items()}
            is_same = all(map(is_, redacted, value)) and all(map(is_, redacted.values(), value.values()))
            return value if is_same and len(redacted) == len(value) else redacted
        if isinstance(value, list):
            items = [self.redact_json(item, depth=depth - 1) for item in value]
            return value if all(map(is_, items, value)) else items
        return value


def secret_forms(value: str) -> frozenset[str]:
    """Return how a secret may be spelled in a text: as it is, escaped, encoded, and its long lines.

    JSON once and twice, Python and shell literals, URLs, HTML, in one case, and what `encoded_forms` returns.
    """
    escaped = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    escaped |= {json.dumps(form)[1:-1] for form in escaped}
    escaped |= {form.replace("/", "\\/") for form in escaped}
    escaped |= {unsafe.sub(unicode_escape, form) for form in escaped for unsafe in HTML_SAFE}
    escaped |= {
        UNICODE_ESCAPE.sub(lambda code: code[0].upper().replace("U", "u", 1), form) for form in escaped
    }
    literals = {repr(value)[1:-1], ascii(value)[1:-1]}
    literals |= {value.replace("'", quote_of_shell) for quote_of_shell in ("'\\''", "'\"'\"'", "''")}
    urls = {quote(value, safe=safe) for safe in URL_SAFE} | {quote_plus(value)}
    urls |= {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), url) for url in urls}
    pages = {html.escape(value), html.escape(value, quote=False)}
    pages |= {page.replace("&#x27;", other) for page in pages for other in ("&#39;", "&apos;")}
    lines = {line for each in value.splitlines() if len(line := each.strip()) >= MIN_FORM}
    cases = {
        form for form in (value.lower(), value.upper()) if len(form) >= MIN_FORM
    }  # as in the host of a URL
    return frozenset({value, *escaped, *literals, *urls, *pages, *lines, *cases, *encoded_forms(value)})


def encoded_forms(value: str) -> frozenset[str]:
    """Return how a secret is spelled in hexadecimal, base32 and base64, wherever it is in longer data."""
    raw, wide = value.encode(), value.encode("utf-16-le")  # of PowerShell's -EncodedCommand
    codes = {raw.hex(), raw.hex().upper(), *base32_forms(raw), *base64_forms(raw), *base64_forms(wide)}
    return frozenset(form for form in codes if len(form) >= MIN_FORM)


def unicode_escape(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


def base32_forms(raw: bytes) -> frozenset[str]:
    """Return what base32 has of some bytes wherever they stand in longer data."""
    return frozenset(within_longer_data(raw, group=5, bits=5, encode=base64.b32encode))


def base64_forms(raw: bytes) -> frozenset[str]:
    """Return what base64 has of some bytes wherever they stand in longer data, in both alphabets."""
    forms = set(within_longer_data(raw, group=3, bits=6, encode=base64.b64encode))
    return frozenset(forms | {form.replace("+", "-").replace("/", "_") for form in forms})


def within_longer_data(
    raw: bytes, *, group: int, bits: int, encode: Callable[[bytes], bytes]
) -> Iterator[str]:
    """Yield the characters, of so many bits, that depend on these bytes alone, at each place of a group."""
    for shift in range(group):
        encoded = encode(bytes(shift) + raw).decode()
        yield encoded[-(-shift * 8 // bits) : (len(raw) + shift) * 8 // bits]


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """Return the text with the secrets, beginnings of them, and whatever else looks like a key masked."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = redact_prefixes(text.replace(secret, MASK), secret)
    return LABELLED_KEY.sub(rf"\1{MASK}", KEY.sub(MASK, text))


def redact_json(value: Any, secrets: Collection[str] = ()) -> Any:
    """Redact all strings of a JSON value, including the names of fields.

    This is done before encoding, so that the result stays valid JSON.
    """
    match value:
        case str():
            return redact(value, secrets)
        case Mapping():
            return {redact(str(name), secrets): redact_json(item, secrets) for name, item in value.items()}
        case list() | tuple():
            return [redact_json(item, secrets) for item in value]
        case _:
            return value


def redact_log(text: str, secrets: Collection[str] = ()) -> str:
    """Return a text for a log or terminal without the secrets and without anything that looks like a key.

    Secrets shorter than four characters are not replaced.
    """
    present = [secret for secret in tuple(secrets) if len(secret) >= MIN_SECRET and secret in text]
    for secret in sorted(present, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return redact(LOGGED_FIELD.sub(rf"\1{MASK}", LOGGED_KEY.sub(rf"\1{MASK}", text)))


def safe_line(text: str, secrets: Collection[str] = ()) -> str:
    """Return one line that is safe to show: printable, without keys, of at most 500 characters."""
    line = redact(one_line(text), secrets)
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def one_line(text: str) -> str:
    """Return the text on one line, without characters that cannot be printed."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def redact_prefixes(text: str, secret: str) -> str:
    """The text without beginnings of a secret: what was shortened may end in the middle of one."""
    stump = secret[:SECRET_PREFIX]
    if len(secret) <= SECRET_PREFIX or stump not in text:
        return text
    first, *others = text.split(stump)
    return first + "".join(
        MASK + other[common_prefix_length(other, secret[SECRET_PREFIX:]) :] for other in others
    )


def common_prefix_length(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, yours) in enumerate(pairs) if mine != yours), min(len(one), len(other)))
