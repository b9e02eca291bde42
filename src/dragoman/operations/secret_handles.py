"""Handles of secrets: `secret:NAME` in an input stands for a value that only the called function gets.

`call()` replaces the handle by the value just before the function runs, and the value by the handle in
everything that comes out of the call: result, error, progress, events. So no model, ledger, approval, log or
trace has the value.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import CallDenied, InvalidInput
from dragoman.json_decoding import decode_json
from dragoman.operations.batch import parse_batch
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure
from dragoman.operations.secret_addresses import FREE_FORM, find_addresses
from dragoman.redaction import MASK, MAX_DEPTH, MIN_FORM, encoded_forms, secret_forms

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
HANDLE_PATTERN = re.compile(rf"(?<![A-Za-z0-9_-])secret:({NAME_PATTERN.pattern})")
MIN_EDGE, MAX_EDGE = 4, 12  # characters of a secret at the edge of a cut text that are masked
NO_NUMBERS: Mapping[str, str] = {}
NEVER_RECEIVE = frozenset(
    {"agents", "artifacts", "files", "history", "hub", "math", "memory", "plugins", "skills", "tasks"}
    | {"teams", "time", "triggers", "user", "vault"}
)
"""Namespaces whose operations get the handle itself, because they store or show their input."""
BATCH = "hub.call"
SECRET_ARGUMENTS = {"vault.set": "value"}
"""Arguments that are recorded as `***`: the value is not in the vault yet."""
SECRET_RESULTS = frozenset({"vault.get"})
"""Operations that return a value in plain text, if its entry allows that. It is recorded as its handle."""


class VaultSecret(msgspec.Struct, frozen=True, eq=False):
    """A secret with its value. `receivers` returns whether the operation of an id may receive the value.

    `may_go_to` returns whether the value may be sent to an address in the arguments; `origins` lists these
    addresses, with `*` for all.
    """

    name: str
    value: str
    receivers: Callable[[str], bool]
    described_receivers: str = "none"
    origins: tuple[str, ...] = ()
    may_go_to: Callable[[str], bool] = lambda _: False

    @property
    def handle(self) -> str:
        """The text that stands for the value in inputs and results."""
        return f"secret:{self.name}"

    def is_for(self, operation: Operation) -> bool:
        """Return whether an operation may receive the value. An agent never does: its model would see it."""
        if operation.namespace in NEVER_RECEIVE or operation.resumes:
            return False
        return self.receivers(operation.id)

    def check_addresses(self, operation: Operation, addresses: Iterable[str]) -> None:
        """Raise CallDenied unless the value may be sent to all addresses that the arguments name."""
        if "*" in self.origins:
            return
        if operation.id not in FREE_FORM and all(map(self.may_go_to, addresses)):
            return
        described = ", ".join(self.origins) or "none"
        raise CallDenied(
            f"{self.handle} may not be sent to the address in the input of {operation.id}.",
            hint=f"Origins that it may be sent to: {described}. The operator sets them: dragoman vault bind",
        )

    def __repr__(self) -> str:
        return f"VaultSecret({self.name!r})"


class CallSecrets:
    """The secrets that the calls of one team may use."""

    def __init__(self, secrets: Iterable[VaultSecret]) -> None:
        self._secrets = {secret.name: secret for secret in secrets}
        forms = {form: MASK for secret in self._secrets.values() for form in secret_forms(secret.value)}
        forms |= {secret.value: secret.handle for secret in self._secrets.values()}
        self._forms = {form: forms[form] for form in sorted(forms, key=len, reverse=True)}
        self._wrapped = [form for secret in self._secrets.values() for form in encoded_forms(secret.value)]
        self._numbers = {
            secret.value: secret.handle for secret in self._secrets.values() if is_number(secret.value)
        }

    @property
    def is_empty(self) -> bool:
        """Whether there are no secrets, as for most teams."""
        return not self._secrets

    def forms(self) -> Iterable[str]:
        """Return all spellings of the values, for the redaction of logs."""
        return self._forms.keys()

    def reveal(self, input: Any, operation: Operation) -> Any:
        """Return an input with values in place of handles; the same object if it has none.

        Raises CallDenied for a secret that the operation must not receive, or that must not be sent to an
        address in the input, and for an unknown handle.
        """
        if operation.namespace in NEVER_RECEIVE or operation.resumes or not has_handle(input):
            return input
        used: dict[str, VaultSecret] = {}
        revealed = map_texts(input, lambda text: self._reveal_text(text, operation, used=used))
        if used:  # a value may change where a URL leads, so both spellings are checked
            addresses = [*find_addresses(operation.id, input), *find_addresses(operation.id, revealed)]
            for secret in used.values():
                secret.check_addresses(operation, addresses)
        return revealed

    def check_page(self, text: str, url: str) -> None:
        """Raise CallDenied for a text with a secret that has origins, and not that of the page of a URL."""
        for secret in self._secrets.values():
            if secret.origins and secret.value in text and not secret.may_go_to(url):
                raise CallDenied(
                    f"{secret.handle} may not be typed into this page.",
                    hint=f"Origins that it may be sent to: {', '.join(secret.origins)}.",
                )

    def _reveal_text(self, text: str, operation: Operation, *, used: dict[str, VaultSecret]) -> str:
        def value_of(match: re.Match[str]) -> str:
            secret = self._secrets.get(match[1])
            if secret is None:
                if match[0] != text:
                    return match[0]  # the text happens to contain such a word
                names = ", ".join(sorted(self._secrets)) or "none"
                raise CallDenied(f"There is no secret {match[1]!r} in the vault.", hint=f"It has: {names}.")
            if not secret.is_for(operation):
                raise CallDenied(
                    f"{operation.id} may not receive {secret.handle}.",
                    hint=f"Operations that may: {secret.described_receivers}.",
                )
            used[secret.name] = secret
            return secret.value

        return HANDLE_PATTERN.sub(value_of, text)

    def seal_input(self, value: Any) -> Any:
        """Return an input with handles in place of secrets; other spellings of them become `***`."""
        if self.is_empty:
            return value
        return map_texts(value, self._replace, numbers=self._numbers)

    def seal(self, value: Any) -> Any:
        """Return a result without secrets, like `seal_input`, and without parts of them at edges of texts."""
        if self.is_empty:
            return value
        if isinstance(value, msgspec.Raw):
            if self._numbers:  # replaced in the text, a number would leave invalid JSON
                return msgspec.Raw(msgspec.json.encode(self.seal(decode_json(bytes(value)))))
            return msgspec.Raw(self._replace(bytes(value).decode()).encode())
        return map_texts(value, self.seal_text, numbers=self._numbers)

    def seal_text(self, text: str) -> str:
        """Return a text with handles in place of secrets, and without pieces of them at its edges."""
        return self._seal_edges(self._replace(text))

    def contains(self, text: str) -> bool:
        """Return whether a text has a secret in it, in any spelling."""
        return any(form in text for form in self._forms)

    def seal_failure(self, failure: CallFailure) -> CallFailure:
        """Return a failure without secrets, and without pieces of them: errors quote parts of an input."""
        if self.is_empty:
            return failure
        return replace(
            failure,
            message=self._seal_quotes(failure.message),
            hint=failure.hint and self._seal_quotes(failure.hint),
            problems=map_texts(list(failure.problems), self._seal_quotes, numbers=self._numbers),
        )

    def _seal_quotes(self, text: str) -> str:
        """Seal a text, and mask pieces of secrets anywhere in it, in upper and lower case."""
        return mask_pieces(self.seal_text(text), [secret.value for secret in self._secrets.values()])

    def _replace(self, text: str) -> str:
        present = [form for form in self._forms if form in text]
        if present:
            pattern = re.compile("|".join(map(re.escape, present)))
            text = pattern.sub(lambda match: self._forms[match[0]], text)
        return self._replace_wrapped(text) if "\n" in text else text

    def _replace_wrapped(self, text: str) -> str:
        """Mask encoded secrets that a line break cuts, as `base64` writes lines of 76 characters."""
        joined = "".join(text.split())
        for form in self._wrapped:
            if form in joined:
                text = re.sub(r"\s*".join(map(re.escape, form)), MASK, text)
        return text

    def _seal_edges(self, text: str) -> str:
        """Mask the parts of secrets at the edges of a text that was cut in the middle of one."""
        for secret in self._secrets.values():
            value, size = secret.value, edge_size(secret.value)
            if len(text) < size:
                continue
            if text in value:
                return MASK
            if end := edge_length(text, value, size=size):
                text = text[:-end] + MASK
            if start := edge_length(text[::-1], value[::-1], size=size):
                text = MASK + text[start:]
        return text

    def __repr__(self) -> str:
        return f"CallSecrets({sorted(self._secrets)})"


SecretLookup: TypeAlias = Callable[[Context], Awaitable[CallSecrets] | None]
"""Finds the secrets of a call; None, at once, for a caller that has no vault."""


class SealedStream:
    """Removes secrets from a text that arrives in pieces; the possible start of one waits for the next."""

    def __init__(self, secrets: CallSecrets) -> None:
        self._secrets = secrets
        self._rest = ""
        self._length = max(map(len, secrets.forms()), default=1) - 1

    def feed(self, text: str) -> str:
        """Return the text that cannot be the start of a secret any more, with secrets replaced."""
        whole = self._rest + text
        sealed, self._rest = self._cut(whole)
        return sealed

    def flush(self) -> str:
        """Return the rest."""
        rest, self._rest = self._rest, ""
        return self._secrets.seal_text(rest)

    def _cut(self, whole: str) -> tuple[str, str]:
        """Return the sealed beginning of a text, and the end that may be the beginning of a secret."""
        start = max(0, len(whole) - self._length)
        beginnings = (
            at
            for at in range(start, len(whole))
            if any(form.startswith(whole[at:]) for form in self._secrets.forms())
        )
        cut = next(beginnings, len(whole))
        return str(self._secrets.seal_input(whole[:cut])), whole[cut:]


def edge_size(value: str) -> int:
    """Return how many characters of a secret at the edge of a text are masked: a quarter of it or more."""
    return min(MAX_EDGE, max(MIN_EDGE, len(value) // 4))


def piece_size(value: str) -> int:
    """Return how many characters of a secret anywhere in an error are masked: a quarter, at least eight."""
    return min(MAX_EDGE, max(MIN_FORM, len(value) // 4))


def mask_pieces(text: str, values: Iterable[str]) -> str:
    """Return a text with `***` for each piece of a value of `piece_size` or more characters, in any case."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters are longer in lower case
        lower = text
    slices: dict[int, set[str]] = {}
    found: set[str] = set()
    for value in values:
        size = piece_size(value)
        if size not in slices:
            slices[size] = set(each_slice(lower, size))
        for spelling in {value, value.lower()}:
            found |= slices[size].intersection(each_slice(spelling, size))
    covered = {
        at + offset for piece in found for at in positions(piece, lower) for offset in range(len(piece))
    }
    if not covered:
        return text
    return "".join(
        MASK if is_covered else "".join(text[at] for at in places)
        for is_covered, places in groupby(range(len(text)), covered.__contains__)
    )


def each_slice(text: str, size: int) -> Iterator[str]:
    """Yield each run of `size` characters of a text."""
    return (text[at : at + size] for at in range(len(text) - size + 1))


def positions(piece: str, text: str) -> Iterator[int]:
    """Yield the positions of a piece in a text."""
    at = text.find(piece)
    while at >= 0:
        yield at
        at = text.find(piece, at + 1)


def edge_length(text: str, value: str, *, size: int) -> int:
    """Return how many of a text's last characters are the beginning of a value; 0 for fewer than `size`."""
    tail, found = text[-size:], -1
    while (found := value.find(tail, found + 1)) >= 0:
        if text.endswith(value[: found + size]):
            return found + size
    return 0


def has_handle(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether a JSON value has a text with a handle."""
    return any("secret:" in text for text in iter_texts(value, depth))


def iter_texts(value: Any, depth: int) -> Iterator[str]:
    """Yield the texts of a JSON value, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from iter_texts(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from iter_texts(item, depth - 1)


def is_number(value: str) -> bool:
    """Return whether a secret may stand in JSON as a number."""
    return re.fullmatch("[1-9][0-9]*", value) is not None


def map_texts(
    value: Any,
    change: Callable[[str], str],
    *,
    numbers: Mapping[str, str] = NO_NUMBERS,
    depth: int = MAX_DEPTH,
) -> Any:
    """Return a JSON value with each text changed, including names of fields; values below `depth` are None.

    `numbers` are replaced where they are a whole number.
    """
    if isinstance(value, str):
        return change(value)
    if not isinstance(value, Mapping | list | tuple):
        return numbers.get(repr(value), value) if numbers else value
    if not depth:
        return None
    if isinstance(value, Mapping):
        return {
            change(name) if isinstance(name, str) else name: map_texts(
                item, change, numbers=numbers, depth=depth - 1
            )
            for name, item in value.items()
        }
    return [map_texts(item, change, numbers=numbers, depth=depth - 1) for item in value]


def shield_input(operation: str, input: Any, *, secrets: CallSecrets | None) -> tuple[Any, Any]:
    """Return the input that a call runs with, and the one that is recorded.

    Operations that pass inputs on (a batch), or that take a new secret, run with the input unchanged.
    """
    sealed = input if secrets is None else secrets.seal_input(input)
    takes_raw = operation in SECRET_ARGUMENTS or operation == BATCH
    return input if takes_raw else sealed, mask_arguments(operation, sealed)


def mask_arguments(operation: str, input: Any) -> Any:
    """Return an input for the ledger, with secret arguments masked, also in the calls of a batch."""
    argument = SECRET_ARGUMENTS.get(operation)
    if argument is not None:
        return {**input, argument: MASK} if isinstance(input, Mapping) and argument in input else input
    if operation != BATCH or not isinstance(input, Mapping):
        return input
    if not any(id in text for text in iter_texts(input, MAX_DEPTH) for id in SECRET_ARGUMENTS):
        return input
    try:
        entries = parse_batch(input)
    except InvalidInput:
        return {"calls": MASK}
    return {
        "calls": [{"tool": entry.tool, "input": mask_arguments(entry.tool, entry.input)} for entry in entries]
    }
