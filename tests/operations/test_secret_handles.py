"""Handles of secrets: the called function alone gets the value; nothing that comes out of a call has it."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import logging
import re
import shlex
import string
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import CallError
from dragoman.identity import LOCAL
from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.call_dispatcher import CallSettings
from dragoman.operations.context import Intermediary
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.outcome import CallFailure
from dragoman.operations.results.artifact import MemoryArtifactStore
from dragoman.operations.secret_handles import CallSecrets, SealedStream, VaultSecret
from tests.effort import rounds

VALUE = 'tok-"9f\\8e7d6c+/5b4a=ü'
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json twice": lambda value: json.dumps(json.dumps({"x": value})),
    "url": lambda value: f"https://h/?t={quote(value, safe='')}&x",
    "lower-case url": lambda value: re.sub("%..", lambda code: code[0].lower(), quote(value, safe="")),
    "html": html.escape,
    "lower case": str.lower,
    "upper case": str.upper,
    "hex": lambda value: value.encode().hex(),
    "basic": lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
    "base64 1": lambda value: base64.b64encode(f"u{value}x".encode()).decode(),
    "json for pages": lambda value: (
        json.dumps({"x": value}).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    ),
    "a literal of Python": lambda value: repr({"x": value}),
    "an argument of a shell": shlex.quote,
    "encodeURIComponent": lambda value: quote(value, safe="!'()*"),
    "html with numbers": lambda value: html.escape(value).replace("&#x27;", "&#39;"),
    "base32": lambda value: base64.b32encode(f"user:{value}".encode()).decode(),
    "base64 of UTF-16": lambda value: base64.b64encode(f"echo {value}".encode("utf-16-le")).decode(),
    "base64 in lines": lambda value: base64.encodebytes(f"{'x' * 50}{value}".encode()).decode(),
    "hex in lines": lambda value: "\n".join(re.findall("..", value.encode().hex())),
    "base64 2": lambda value: base64.urlsafe_b64encode(f"uv{value}xy".encode()).decode(),
}
HANDED: list[Any] = []


@operation("net")
async def send(token: str, url: str = "") -> str:
    """Take a token."""
    HANDED.append((token, url))
    return "sent"


@operation("net")
async def echo(token: str, spelling: str, context: Context) -> Any:
    """Give the token back in every way that a call has."""
    text = SPELLINGS[spelling](token)
    context.progress({"at": text})
    context.publish("noticed", {"at": text, text: 1})
    inner = await context.call("files.write", {"text": f"the token: {text}"})
    return {"text": f"<{text}>", "list": [[text]], text: 1, "inner": inner}


@operation("net")
async def fail(token: str, spelling: str) -> None:
    """Fail with the token in the error."""
    raise CallError(f"no: {SPELLINGS[spelling](token)}", hint=f"not {token}")


@operation("net")
async def large(token: str) -> list[str]:
    """Give back more than a model is shown."""
    return [f"{number} {token}" for number in range(3_000)]


@operation("net")
async def count(token: str, context: Context) -> Any:
    """Give the token back as a number."""
    context.progress({"at": int(token), "and": 1})
    return {"pin": int(token), "pins": [[int(token), int(token) * 10]]}


@operation("net")
async def keep(note: str) -> str:
    """Keep a note."""
    HANDED.append(note)
    return note


@operation("net")
async def pieces(token: str) -> AsyncIterator[str]:
    """Show the token in pieces."""
    for start in range(0, len(token), 6):
        yield f"..{token[start : start + 6]}" if start == 0 else token[start : start + 6]


@operation("files")
async def write(text: str) -> str:
    """Store a text."""
    HANDED.append(text)
    return text


@operation("vault", name="set")
async def set_secret(name: str, value: str) -> str:
    """Set a secret."""
    HANDED.append((name, value))
    return name


def may_receive(id: str) -> bool:
    return id.startswith("net.") and id != "net.keep"


class Noted:
    """What the hub tells others of calls."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def call_started(self, record: Any) -> None:
        self.seen.append(record)

    def call_ended(self, record: Any, completion: Any) -> None:
        self.seen.append((record, completion))

    def publish(self, context: Context, name: str, *, data: Any, in_answer: bool = False) -> None:
        self.seen.append((name, data))


class Span:
    """A tracer that stores what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def call(self, record: Any) -> Any:
        self.seen.append(record)
        return self

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None: ...

    def set_outcome(self, result: Any, error: Any) -> None:
        self.seen.append((result, error))


class Desk:
    """Calls of a team with one secret, and all that they leave behind."""

    def __init__(self, value: str = VALUE) -> None:
        self.value = value
        self.ledger, self.artifacts = MemoryLedger(), MemoryArtifactStore()
        self.events, self.span = Noted(), Span()
        self.progress: list[Any] = []
        registry = Registry(send, echo, fail, large, count, keep, pieces, write, set_secret)
        self.calls = Calls(
            registry,
            self.ledger,
            overflow=ArtifactOverflow(self.artifacts),
            settings=CallSettings(tracer=self.span, events=self.events),
        )
        self.meta = MetaTools(registry, self.calls)
        secrets = CallSecrets([VaultSecret("token", value, may_receive, "net.*", ("*",))])

        async def load() -> CallSecrets:
            return secrets

        self.calls.secrets = lambda context: load() if context.agent == "press" else None

    async def call(self, id: str, *, agent: str = "press", model: bool = True, **input: Any) -> Any:
        context = Context(agent=agent, for_model=model, run_id="run_1", tool_call_id=f"tc_{id}")
        return await self.calls.call(id, input, context=context, on_progress=self.progress.append)

    def traces(self) -> str:
        """Everything that calls have left behind, as text."""
        entries = list(self.ledger._entries.values())
        stored = [body for _, body in self.artifacts._artifacts.values()]
        texts = [repr(each) for each in (entries, self.events.seen, self.span.seen, self.progress)]
        return "\n".join([*texts, *(body.decode() for body in stored)])


@pytest.fixture(autouse=True)
def _nothing_handed() -> None:
    HANDED.clear()


async def test_the_function_gets_the_value_and_the_record_has_the_handle() -> None:
    desk = Desk()
    outcome = await desk.call("net.send", token="secret:token", url="https://h/?t=secret:token")
    assert (outcome.ok, HANDED) == (True, [(VALUE, f"https://h/?t={VALUE}")])
    assert desk.ledger.get(outcome.call_id).record.input["token"] == "secret:token"
    assert VALUE not in desk.traces()


async def test_a_secret_goes_to_the_operations_that_may_receive_it_only() -> None:
    desk = Desk()
    refused = await desk.call("net.keep", note="secret:token")
    assert (refused.status, HANDED) == ("denied", [])
    assert "net.keep may not receive secret:token" in refused.error.message
    unknown = await desk.call("net.send", token="secret:tokne")
    assert (unknown.status, unknown.error.hint) == ("denied", "It has: token.")
    assert (await desk.call("files.write", text="use secret:token")).result == "use secret:token"
    assert (await desk.call("net.send", token="my secret:other thing")).ok
    assert [*HANDED] == ["use secret:token", ("my secret:other thing", "")]


async def test_a_handle_that_a_spoke_writes_in_a_call_of_its_own_stays_a_handle() -> None:
    desk = Desk()
    context = Context(agent="press", intermediaries=(Intermediary(LOCAL, "press"),))
    for token in ("secret:token", VALUE):
        outcome = await desk.calls.call("net.send", {"token": token}, context=context)
        assert outcome.ok
    assert HANDED == [("secret:token", "")] * 2
    assert VALUE not in desk.traces()


def test_without_secrets_results_are_not_gone_through() -> None:
    none = CallSecrets([])
    result, failure = {"text": ["secret:token"]}, CallFailure(code="failed", message="secret:token")
    assert none.seal(result) is result
    assert none.seal_input(result) is result
    assert none.seal_failure(failure) is failure


async def test_another_agent_gets_the_handle_as_it_is() -> None:
    desk = Desk()
    await desk.call("net.send", agent="desk", token="secret:token")
    assert HANDED == [("secret:token", "")]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_what_a_call_gives_back_has_no_spelling_of_the_value(spelling: str) -> None:
    desk = Desk()
    outcome = await desk.call("net.echo", token="secret:token", spelling=spelling)
    failed = await desk.call("net.fail", token="secret:token", spelling=spelling)
    assert outcome.ok
    assert failed.error.hint == "not secret:token"
    shown = desk.traces() + repr(outcome) + repr(failed) + repr(HANDED)
    form = SPELLINGS[spelling](VALUE)
    assert form not in shown
    assert form[4:-4] not in shown


QUOTES: dict[str, Callable[[str], str]] = {  # how errors quote a part of what they were given
    "cut": lambda value: f"{('https://a.example/' + value)[:34]!r} is not a URL",
    "the end": lambda value: f"nothing follows {value[9:]!r} here",
    "the middle": lambda value: f"the host {value[4:16]!r} is not valid",
    "the middle, as a host": lambda value: f"the host {value[4:16].lower()!r} is not valid",
    "in turns": lambda value: f"{value[:9]} and {value[9:]}",
}


@pytest.mark.parametrize("quoting", QUOTES)
async def test_an_error_shows_no_piece_of_a_value(quoting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPELLINGS, "quoted", QUOTES[quoting])
    value = "Zq9-hunterTwo_SuperSecret-42"
    desk = Desk(value)
    failed = await desk.call("net.fail", token="secret:token", spelling="quoted")
    assert failed.status == "failed"
    shown = (desk.traces() + repr(failed)).lower()
    assert not [piece for at in range(len(value) - 7) if (piece := value[at : at + 8].lower()) in shown]
    assert failed.error.message.startswith("no: ")


async def test_a_secret_of_digits_is_not_shown_as_a_number() -> None:
    desk = Desk("48151623")
    outcome = await desk.call("net.count", token="secret:token")
    assert outcome.result == {"pin": "secret:token", "pins": [["secret:token", 481516230]]}
    assert "48151623," not in desk.traces()


async def test_a_large_result_is_stored_as_an_artifact_without_the_value() -> None:
    desk = Desk()
    outcome = await desk.call("net.large", token="secret:token")
    assert "artifact" in outcome.result
    assert "2999 secret:token" in desk.traces()
    assert json.dumps(VALUE)[1:-1] not in desk.traces()
    assert VALUE not in desk.traces() + repr(outcome)


async def test_progress_in_pieces_shows_no_piece() -> None:
    desk = Desk()
    await desk.call("net.pieces", token="secret:token")
    assert desk.progress[0] == "..***"
    assert not any(piece in repr(desk.progress) for piece in (VALUE[:6], VALUE[6:12], VALUE[12:18]))


async def test_a_value_that_a_model_writes_becomes_its_handle_and_goes_to_nobody_else() -> None:
    desk = Desk()
    await desk.call("files.write", text=f"export TOKEN={VALUE}")
    assert HANDED == ["export TOKEN=secret:token"]
    assert VALUE not in desk.traces()


async def test_a_new_secret_is_not_recorded_also_not_in_a_batch() -> None:
    desk = Desk()
    await desk.call("vault.set", name="new", value="a-new-secret-value")
    entry = {"tool": "vault.set", "input": {"name": "new", "value": "a-new-secret-value"}}
    context = Context(agent="press", for_model=True, run_id="run_1", tool_call_id="tc_batch")
    for batch in ([entry], json.dumps([entry]), entry, [{"tool": "vault.set", "args": entry["input"]}]):
        await desk.meta.run("hub.call", {"calls": batch}, context=msgspec.structs.replace(context))
    assert HANDED == [("new", "a-new-secret-value")] * 5
    assert "a-new-secret-value" not in desk.traces()


async def test_a_batch_passes_handles_on_and_gets_nothing_back() -> None:
    desk = Desk()
    calls = [{"tool": "net.echo", "input": {"token": "secret:token", "spelling": "plain"}}]
    context = Context(agent="press", for_model=True, run_id="run_1", tool_call_id="tc_1")
    outcome = await desk.meta.run("hub.call", {"calls": calls}, context=context)
    assert outcome.result[0]["success"]
    assert VALUE not in repr(outcome) + desk.traces()


async def test_a_vault_that_cannot_be_read_lets_no_call_run() -> None:
    desk = Desk()

    async def fail_to_load() -> CallSecrets:
        raise CallError("the vault is closed")

    desk.calls.secrets = lambda _: fail_to_load()
    outcome = await desk.call("net.send", token=VALUE)
    assert (outcome.status, outcome.error.message, HANDED) == ("failed", "the vault is closed", [])
    assert VALUE not in desk.traces()


SECRETS = st.text(st.sampled_from(string.printable[:95] + "äß√\n"), min_size=8, max_size=60).filter(
    lambda value: len(set(value.strip())) >= 6
)


@settings(max_examples=rounds(quick=25, thorough=1_000), deadline=None)
@given(SECRETS, st.sampled_from(sorted(SPELLINGS)))
def test_random_secrets_stay_inside_by_every_path(value: str, spelling: str) -> None:
    async def play() -> str:
        desk = Desk(value)
        outcomes = [
            await desk.call("net.echo", token="secret:token", spelling=spelling),
            await desk.call("net.fail", token="secret:token", spelling=spelling),
            await desk.call("files.write", text=SPELLINGS[spelling](value)),
        ]
        assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
        return desk.traces() + repr(outcomes) + repr(HANDED)

    HANDED.clear()
    shown = asyncio.run(play())
    for form in {SPELLINGS[spelling](value), repr(SPELLINGS[spelling](value))[1:-1]}:
        assert form not in shown


@settings(max_examples=rounds(quick=50, thorough=2_000), deadline=None)
@given(SECRETS, st.text(max_size=20), st.lists(st.integers(0, 200), max_size=12))
def test_a_stream_cut_anywhere_never_shows_the_secret(value: str, around: str, cuts: list[int]) -> None:
    stream = SealedStream(CallSecrets([VaultSecret("token", value, lambda _: True)]))
    whole = f"{around}{value}{around}"
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [stream.feed(whole[a:b]) for a, b in pairwise(places)]
    assert value not in "".join([*pieces, stream.flush()])


async def test_a_failure_with_the_value_in_its_traceback_is_redacted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    with caplog.at_level(logging.WARNING):
        await desk.call("net.fail", token="secret:token", spelling="plain")
    assert VALUE not in caplog.text
