"""Rules of a key: the options that set them, what is changed of those before, and how they are said."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from msgspec.structs import asdict

from dragoman.errors import BadRequest
from dragoman.limits import NO_LIMITS, Limits
from dragoman.server.moments import read_future

if TYPE_CHECKING:
    from dragoman.store.keys import Key


SCOPES = ("gateway", "chat", "operations", "admin")
CLEARED: Mapping[str, tuple[str, Any]] = {
    "name": ("name", None),
    "scope": ("scopes", frozenset()),
    "model": ("models", None),
    "expires": ("expires_at", None),
}
LIMITS = tuple(name.replace("_", "-") for name in Limits.__struct_fields__)


def one_of(*choices: str) -> Callable[[list[str] | None], list[str] | None]:
    """A check of an option that may be repeated."""

    def check(values: list[str] | None) -> list[str] | None:
        for value in values or ():
            if value not in choices:
                raise typer.BadParameter(f"{value!r} is none of {', '.join(choices)}")
        return values

    return check


Name: TypeAlias = Annotated[str | None, typer.Option(help="A word to tell it by, such as the device.")]
Scopes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="|".join(SCOPES),
        callback=one_of(*SCOPES),
        help="What it is for; may be repeated. Without it all but admin, the usage of others.",
    ),
]
Models: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Models that it may ask, such as 'openai/*'. May be repeated."),
]
Expires: TypeAlias = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Its end: 30d from now, or a date such as 2027-01-31.")
]
PerMinute: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="N", help="How many a minute.")]
Parallel: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="N", help="How many at once.")]
Dollars: TypeAlias = Annotated[float | None, typer.Option(min=0, metavar="USD", help="US dollars at most.")]
Rules: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        callback=one_of(*CLEARED, "limits", *LIMITS),
        help="What to take away: name, scope, model, expires, limits, or a limit such as parallel.",
    ),
]


def read_rules(
    *, name: str | None, scope: Sequence[str] | None, model: Sequence[str] | None, expires: str | None
) -> dict[str, Any]:
    """The fields of a key that the options set. BadRequest for a moment that is none."""
    fields = {
        "name": name,
        "scopes": frozenset(scope) if scope else None,
        "models": tuple(model) if model else None,
        "expires_at": read_future(expires, time.time()) if expires else None,
    }
    return {field: value for field, value in fields.items() if value is not None}


def read_limits(limits: Mapping[str, float | None], *, over: Limits | None = None) -> Limits | None:
    """The limits of the options, over those that were there; None when that is none at all. BadRequest."""
    given = {name: value for name, value in limits.items() if value is not None}
    if not all(map(isfinite, given.values())):
        raise BadRequest(
            "a limit is a number", hint="to take one away: `dragoman keys change ID --clear LIMIT`"
        )
    made = Limits(**{**asdict(over or NO_LIMITS), **given})
    return None if made == NO_LIMITS else made


def cleared(rules: Sequence[str], limits: Limits | None) -> tuple[dict[str, Any], Limits | None]:
    """The fields that are taken away, as they are without; and what is left of the limits."""
    fields = dict(CLEARED[rule] for rule in rules if rule in CLEARED)
    if limits is None or "limits" in rules:
        return fields, None
    gone = {rule.replace("-", "_") for rule in rules}
    return fields, Limits(**{name: None if name in gone else value for name, value in asdict(limits).items()})


def said(key: Key) -> str:
    """What a key may do, where that is less than everything."""
    words = [", ".join(sorted(key.scopes))] if key.scopes else []
    words += [f"models {', '.join(key.models)}"] if key.models is not None else []
    limits = asdict(key.limits or NO_LIMITS)
    words += [f"{name.replace('_', ' ')} {value:g}" for name, value in limits.items() if value is not None]
    if key.expires_at is not None and key.expires_at > time.time():
        words.append(f"until {time.strftime('%Y-%m-%d %H:%M', time.localtime(key.expires_at))}")
    return "; ".join(words)
