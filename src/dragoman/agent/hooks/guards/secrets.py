"""Secret scan: block calls with keys in their arguments, redact keys in results."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from dragoman.agent.hooks.events import Block, Modify, PostToolUse, PreToolUse
from dragoman.agent.hooks.guards.json_strings import replace_strings, strings_in
from dragoman.agent.hooks.guards.redaction import Redaction
from dragoman.agent.hooks.hooks import Hooks
from dragoman.operations.arguments.validation import is_secret_name
from dragoman.operations.sanitize import INVISIBLE

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
MIN_ENTROPY = 4.2  # bits a character; English words have under 4, random base64 of 32 characters about 4.6
MIN_RANDOM_LENGTH = 24


def find_secrets(text: str, *, entropy: bool = True) -> list[Span]:
    """Return where secrets are, in order and without overlaps.

    The text is scanned in chunks, so that a long one does not block other threads.
    """
    spans: list[Span] = []
    for start in range(0, max(len(text), 1), CHUNK):
        piece = text[start : start + CHUNK + OVERLAP]
        spans += ((start + a, start + b) for a, b in secret_spans(piece, entropy=entropy))
    return merge_spans(spans)


def has_encoded_secret(text: str) -> bool:
    """Return whether a key of a known form appears once the text is decoded or invisible characters are
    removed.
    """
    readings = {INVISIBLE.sub("", text), unquote(text)} - {text}
    return any(find_secrets(each, entropy=False) for each in readings)


def secret_spans(piece: str, *, entropy: bool) -> Iterator[Span]:
    yield from (found.span() for found in KNOWN_SECRET.finditer(piece))
    for word in LONG_WORD.finditer(piece):
        if (entropy and is_random(word[0])) or is_base64_secret(word[0]):
            yield word.span()


def is_random(word: str) -> bool:
    """Return whether a word looks random: lower case, upper case and digits, with few repeated characters."""
    kinds = (str.islower, str.isupper, str.isdigit)
    if len(word) < MIN_RANDOM_LENGTH or not all(any(map(kind, word)) for kind in kinds):
        return False
    shares = [count / len(word) for count in Counter(word).values()]
    return -sum(share * math.log2(share) for share in shares) >= MIN_ENTROPY


def is_base64_secret(word: str) -> bool:
    """Return whether a word is base64 with a key of a known form in it."""
    try:
        decoded = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=False)
        return bool(KNOWN_SECRET.search(decoded.decode("ascii")))
    except (ValueError, binascii.Error):
        return False


def merge_spans(spans: list[Span]) -> list[Span]:
    """Return the spans without overlaps."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


Action = Literal["block", "redact", "off"]
MASK = "[secret]"


class SecretScan:
    """Finds secrets in JSON values: `existing` ones, keys of known forms, and with `entropy` random words.

    With `fields`, the value of a field named like a secret (`password`) is one too. `patterns` are names of
    patterns that are redacted along with secrets; see `redact`.
    """

    def __init__(
        self,
        existing: Sequence[str] = (),
        *,
        entropy: bool = True,
        fields: bool = False,
        patterns: Sequence[str] = (),
    ) -> None:
        self._known_secrets = sorted({each for each in existing if len(each) >= 4}, key=len, reverse=True)
        self._entropy = entropy
        self._fields = fields
        self._redaction = Redaction(*patterns) if patterns else None

    def __repr__(self) -> str:
        return "SecretScan()"

    def has_secret(self, value: Any) -> bool:
        """Return whether there is a secret in the value."""
        return any(self._has_secret_in(found.text) for found in strings_in(value))

    def redact(self, value: Any) -> Any:
        """Return the value without secrets."""
        return replace_strings(value, self._redact_text)

    def hooks(self, *, arguments: Action = "block", results: Action = "redact") -> Hooks:
        """Return the hooks that scan calls. A scan that fails counts as one that found a secret."""
        hooks = Hooks()
        if arguments != "off":
            scan = self._block_call if arguments == "block" else self.before
            hooks.on("pre_tool_use", scan, name="secret_scan", on_error="block")
        if results != "off":
            look = self._block_result if results == "block" else self.after
            hooks.on("post_tool_use", look, name="secret_scan", on_error="block")
        return hooks

    def _has_secret_in(self, text: str) -> bool:
        has_known = any(each in text for each in self._known_secrets)
        return has_known or bool(find_secrets(text, entropy=self._entropy)) or has_encoded_secret(text)

    def _redact_text(self, text: str, field: str) -> str:
        if self._fields and text and is_secret_name(field):
            return MASK
        for each in self._known_secrets:
            text = text.replace(each, MASK)
        for start, end in reversed(find_secrets(text, entropy=self._entropy)):
            text = f"{text[:start]}{MASK}{text[end:]}"
        if has_encoded_secret(text):
            return MASK
        return text if self._redaction is None else self._redaction.text(text)

    def _block_call(self, event: PreToolUse) -> Block | None:
        return Block("the arguments contain a secret") if self.has_secret(event.input) else None

    def before(self, event: PreToolUse) -> Modify | None:
        """A `pre_tool_use` hook that redacts secrets in arguments, whatever their fields are called."""
        redacted = replace_strings(event.input, lambda text, _: self._redact_text(text, ""))
        return None if redacted == event.input else Modify(redacted, "secrets were removed")

    def _block_result(self, event: PostToolUse) -> Block | None:
        return Block("the result contains a secret") if self.has_secret([event.output, event.error]) else None

    def after(self, event: PostToolUse) -> Modify | None:
        """A `post_tool_use` hook that redacts secrets in results and errors."""
        output = event.output if event.error is None else event.error
        redacted = self.redact(output)
        return None if redacted == output else Modify(output=redacted, reason="secrets were removed")


def secret_scan(
    existing: Sequence[str] = (),
    *,
    arguments: Action = "block",
    results: Action = "redact",
    entropy: bool = True,
    fields: bool = False,
    patterns: Sequence[str] = (),
) -> Hooks:
    """Return hooks that look for secrets in arguments and results, and block the call or redact them."""
    scan = SecretScan(existing, entropy=entropy, fields=fields, patterns=patterns)
    return scan.hooks(arguments=arguments, results=results)
