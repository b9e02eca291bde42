"""Secrets in arguments and results are detected, redacted, and left out of the audit log."""

from __future__ import annotations

import base64
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dragoman.agent.hooks.events import Modify, PostToolUse, PreToolUse, UserPromptSubmit
from dragoman.agent.hooks.guards.audit import AuditLog
from dragoman.agent.hooks.guards.redaction import Redaction, redact
from dragoman.agent.hooks.guards.secrets import MASK, SecretScan, find_secrets, secret_scan
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.runner import HookRunner, in_turn
from dragoman.errors import ConfigError
from dragoman.operations.call_hooks import CallEnd, HookDecision, HookedCall, Revision
from dragoman.operations.outcome import CallFailure
from tests.effort import rounds


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def mixed(length: int) -> str:
    """Text like a key's; put together here, so that no scanner takes this file for a leak."""
    return "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xYzC"[: min(length, 34)] + "Q7" * ((length - 33) // 2)


KEYS = [
    "sk-" + mixed(24),
    "sk-ant-api03-" + mixed(30),
    "AKIA" + "ABCDEFGH12345678",
    "ghp_" + mixed(36),
    "github_pat_" + mixed(50),
    "glpat-" + mixed(20),
    "xoxb-" + "1234567890-" + mixed(20),
    "AIza" + mixed(35),
    "SG." + mixed(22) + "." + mixed(30),
    "hf_" + mixed(30),
    "npm_" + mixed(36),
    "sk_live_" + mixed(24),
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + mixed(30),
    "dgm_" + mixed(30),
    "hvs." + mixed(24),
    "-----BEGIN RSA PRIVATE KEY-----\n" + mixed(64) + "\n-----END RSA PRIVATE KEY-----",
    "Authorization: Bearer " + mixed(24),
    "password=hunter2hunter2",
    "api_key: 'abcdef123456'",
    "postgres://app:s3cr3tpw@db/x",
    "AccountKey=" + mixed(44),
    "1234567890:AA" + mixed(33),
]
PLAIN = [
    "The quick brown fox jumps over the lazy dog",
    "src/dragoman/operations/execution.py",
    "a" * 64,
    "",
    "2f1d8a9b7c6e5d4f3a2b1c0d9e8f7a6b5c4d3e2f",
    "https://example.com/a/long/path/with-words?page=2",
    "550e8400-e29b-41d4-a716-446655440000",
    "max_tokens: 4096",
    "the_name_of_a_function_that_is_long",
    "InternationalizationSupportForEverybody",
    "2026-01-02T03:04:05+00:00",
    "sk-learn",
    "token",
    "password",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("around", ["{}", "take {} and go", '{{"k": "{}"}}', "x={}\n", "<{}>"])
def test_a_key_of_a_known_form_is_found(key: str, around: str) -> None:
    assert find_secrets(around.format(key), entropy=False)


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_is_not_found(text: str) -> None:
    assert find_secrets(text) == []


def test_a_word_that_is_too_random_is_found_by_its_entropy() -> None:
    word = "h7Kq2ZpX9vLm4RtB8nWc3JyD"
    assert find_secrets(f"use {word} here") == [(4, 28)]
    assert find_secrets(f"use {word} here", entropy=False) == []


@pytest.mark.parametrize("at", [0, 65_530, 65_536, 131_060, 200_000])
def test_a_secret_is_found_wherever_it_stands_in_a_long_text(at: int) -> None:
    key = "ghp_" + mixed(36)
    assert find_secrets(" " * at + key + " " * 1_000) == [(at, at + len(key))]


HIDDEN = [
    "\u200b".join,
    lambda key: quote(key).replace("_", "%5F").replace("g", "%67"),
    lambda key: base64.b64encode(f"key: {key}".encode()).decode(),
    lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
]


@pytest.mark.parametrize("hide", HIDDEN)
def test_a_key_that_is_hidden_is_found_all_the_same(hide: Any) -> None:
    key = "ghp_" + mixed(36)
    scan = SecretScan(entropy=False)
    assert scan.has_secret({"x": [hide(key)]})
    assert MASK in scan.redact({"x": [hide(key)]})["x"][0]
    assert not scan.has_secret(scan.redact({"x": [hide(key)]}))


def test_known_secrets_are_found_whatever_they_look_like() -> None:
    scan = SecretScan(["open sesame"])
    assert scan.redact(["say open sesame", {"open sesame": 1}]) == [f"say {MASK}", {MASK: 1}]
    assert "sesame" not in repr(scan)


def test_a_field_named_like_a_secret_is_redacted_where_it_is_wanted() -> None:
    value = {"password": "hi", "tokens": 5, "max_tokens": "9", "name": "x"}
    assert SecretScan(fields=True).redact(value) == {
        "password": MASK,
        "tokens": 5,
        "max_tokens": "9",
        "name": "x",
    }
    assert SecretScan().redact(value) == value


def called(input: Mapping[str, Any]) -> HookedCall:
    return HookedCall(operation="t.do", input=input, effect="once", owner="ann", call_id="call_1")


async def after(hooks: Hooks, result: Any) -> Revision | None:
    return await hooks.calls.after(called({}), CallEnd(status="done", result=result))


async def test_a_secret_in_arguments_is_blocked_or_taken_out() -> None:
    input = {"text": f"my key is ghp_{mixed(36)}"}
    assert (await secret_scan().calls.before(called(input))).block == "the arguments contain a secret"
    hook_decision = await secret_scan(arguments="redact").calls.before(called(input))
    assert hook_decision.input == {"text": f"my key is {MASK}"}
    assert "ghp_" not in str(hook_decision.notes)
    assert await secret_scan(arguments="off").calls.before(called(input)) == HookDecision()
    assert await secret_scan().calls.before(called({"text": "hello"})) == HookDecision()


async def test_a_secret_in_a_result_or_an_error_is_taken_out_or_withheld() -> None:
    output = {"rows": [{"key": f"ghp_{mixed(36)}"}, "plain"]}
    redacted = await after(secret_scan(), output)
    assert redacted is not None
    assert redacted.result == {"rows": [{"key": MASK}, "plain"]}
    withheld = await after(secret_scan(results="block"), output)
    assert withheld is not None
    assert (withheld.result, withheld.failure and withheld.failure.code) == (None, "withheld")
    assert await after(secret_scan(), {"plain": 1}) is None
    end = CallEnd(status="failed", failure=CallFailure(code="x", message="no", hint=f"ghp_{mixed(36)}"))
    failed = await secret_scan().calls.after(called({}), end)
    assert failed is not None
    assert "ghp_" not in str(failed)


@pytest.mark.parametrize("together", ["one scan", "in turn"])
async def test_secrets_and_patterns_are_redacted_together(together: str) -> None:
    both = in_turn(SecretScan().after, Redaction("email").after)
    hooks = secret_scan(patterns=["email"]) if together == "one scan" else Hooks().on("post_tool_use", both)
    redacted = await after(hooks, f"ann@example.org has ghp_{mixed(36)}")
    assert redacted is not None
    assert redacted.result == f"[email] has {MASK}"


LONG = rounds(quick=250_000, thorough=1_000_000)


@pytest.mark.parametrize("part", ["a", "aB3", "eyJ", "-----BEGIN "])
def test_a_text_made_to_be_slow_is_scanned_in_time(part: str) -> None:
    text = part * (LONG // len(part))
    began = time.process_time()
    find_secrets(text)
    assert time.process_time() - began < LONG * 30e-6


async def test_patterns_are_redacted_in_results_arguments_and_prompts() -> None:
    hooks = redact(
        "email", "card", "phone", also={"case": r"CASE-\d+"}, of=["results", "arguments", "prompts"]
    )
    text = "ann@example.org 4111 1111 1111 1111 +49 30 1234567 CASE-77, not 1234 5678 9012 3456"
    expected = "[email] [card] [phone] [case], not 1234 5678 9012 3456"
    redacted = await after(hooks, {text: [text]})
    assert redacted is not None
    assert redacted.result == {expected: [expected]}
    assert (await hooks.calls.before(called({"q": text}))).input == {"q": expected}
    prompt = await hooks.loop.user_prompt_submit(UserPromptSubmit(text=text))
    assert isinstance(prompt, UserPromptSubmit)
    assert prompt.text == expected
    assert await after(hooks, {"plain": "text"}) is None


@pytest.mark.parametrize(
    ("names", "also", "message"),
    [
        (("moon",), None, "there is no pattern 'moon'"),
        ((), None, "at least one pattern"),
        ((), {"x": "("}, "is not a valid regular expression"),
        ((), {"x": "a*"}, "matches the empty text"),
    ],
)
def test_a_redaction_that_cannot_be_is_refused(names: Any, also: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        redact(*names, also=also)


async def test_the_audit_log_has_a_line_for_each_call_and_its_end_without_secrets(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", secrets=["open sesame"], clock=lambda: 0.0)
    hooks = (
        Hooks().on("pre_tool_use", lambda _: Modify({"to": "carol", "why": "open sesame\n{}"})) + log.hooks()
    )
    await hooks.calls.before(called({"to": "bob"}))
    end = CallEnd(status="failed", failure=CallFailure(code="x", message=f"ghp_{mixed(36)}"), duration=0.5)
    await hooks.calls.after(called({"to": "carol", "password": "p", "text": "x" * 5_000}), end)
    first, second = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    common = {"at": "1970-01-01T00:00:00.000+00:00", "owner": "ann", "operation": "t.do", "tool": "t_do"}
    assert first == {
        **common,
        "kind": "call",
        "callId": "call_1",
        "input": {"to": "carol", "why": f"{MASK}\n{{}}"},
    }
    assert (second["kind"], second["status"], second["error"], second["duration"]) == (
        "end",
        "failed",
        MASK,
        0.5,
    )
    assert second["input"]["password"] == MASK
    assert len(second["input"]["text"]) < 2_100
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


async def test_the_audit_log_is_rotated_by_its_size(tmp_path: Path) -> None:
    hooks = AuditLog(tmp_path / "a", max_bytes=500, keep=2).hooks()
    for number in range(20):
        await hooks.calls.before(called({"number": number, "fill": "x " * 50}))
    files = sorted(os.listdir(tmp_path))  # noqa: PTH208 - a loop may not wait for iterdir
    assert files == ["a", "a.1", "a.2"]
    numbers = [
        json.loads(line)["input"]["number"]
        for name in ("a.2", "a.1", "a")
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert numbers == list(range(numbers[0], 20))
    assert all((tmp_path / name).stat().st_size <= 500 for name in files)


async def test_an_audit_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = AuditLog(tmp_path / "missing" / "a").hooks()
    assert await hooks.calls.before(called({})) == HookDecision()
    assert "audit_log" in caplog.text


async def test_those_that_watch_see_what_the_model_is_told() -> None:
    seen: list[Any] = []
    hooks = secret_scan().on("post_tool_use", lambda event: seen.append(event.output), watches=True)
    await after(hooks, {"key": f"ghp_{mixed(36)}"})
    assert seen == [{"key": MASK}]


def test_a_runner_knows_which_hooks_it_has() -> None:
    runner = HookRunner(list(Hooks().on("pre_tool_use", lambda _: None, match="files.*")))
    assert runner.has_hooks("pre_tool_use", operation="files.read")
    assert not runner.has_hooks("pre_tool_use", operation="mail.send")
    assert not runner.has_hooks("post_tool_use", operation="files.read")


def test_events_are_frozen() -> None:
    for event in (
        PreToolUse(tool="a", operation="a.b", input={}),
        PostToolUse(tool="a", operation="a.b", input={}),
    ):
        with pytest.raises(AttributeError):
            event.owner = "eve"  # type: ignore[misc]  # that is what is tested
