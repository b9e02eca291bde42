"""Tool call hooks: order, decisions, and hooks that fail."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from dragoman.agent.hooks.events import Block, Continue, Modify, PostToolUse, PreToolUse
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.runner import in_turn
from dragoman.errors import ConfigError
from dragoman.operations.permission.policy import Rule
from tests.agent.hooked import SEND, Post, context_of
from tests.waiting import LIMIT


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def post() -> Post:
    return Post()


async def test_a_hook_is_told_who_calls_what_for_which_run(post: Post) -> None:
    seen: list[Any] = []
    hooks = Hooks().on("pre_tool_use", seen.append).on("post_tool_use", seen.append)
    outcome = await post.call(hooks)
    before, after = seen
    expected: dict[str, Any] = {
        "owner": "ann",
        "key_id": "key_1",
        "agent": "clerk",
        "session_id": "ses_1",
        "run_id": "run_1",
        "step": 2,
        "tool": "mail_send",
        "operation": "mail.send",
        "input": SEND,
        "effect": "once",
        "tool_call_id": "tc_1",
        "call_id": outcome.call_id,
    }
    assert before == PreToolUse(**expected)
    assert after == PostToolUse(**expected, output=outcome.result, duration=after.duration)
    assert 0 <= after.duration < LIMIT  # seconds


async def test_a_blocked_call_is_denied_and_the_model_is_told_why(post: Post) -> None:
    outcome = await post.call(Hooks().on("pre_tool_use", lambda _: Block("not on Sundays")))
    assert outcome.error is not None
    assert (outcome.status, outcome.error.message) == ("denied", "mail.send was blocked: not on Sundays")
    assert (post.sent, post.ledger.get(outcome.call_id).status) == ([], "denied")


async def test_a_changed_input_is_what_runs_and_the_ledger_says_so(post: Post) -> None:
    def to_carol(event: PreToolUse) -> Modify:
        return Modify({**event.input, "to": "carol"}, "bob is away", metadata={"ticket": 7})

    outcome = await post.call(Hooks().on("pre_tool_use", to_carol))
    assert (outcome.ok, post.sent) == (True, ["carol"])
    assert post.ledger.get(outcome.call_id).notes == (
        'hook to_carol: the input was changed, to {"to":"carol"}: bob is away',
        'hook to_carol notes {"ticket":7}',
    )


@pytest.mark.parity
async def test_a_changed_input_is_checked_against_the_schema(post: Post) -> None:
    outcome = await post.call(Hooks().on("pre_tool_use", lambda _: Modify({"to": "bob", "count": "many"})))
    assert outcome.error is not None
    assert "A hook set an input that mail.send does not accept: count" in outcome.error.message
    assert (outcome.status, post.sent) == ("failed", [])


async def test_a_hook_cannot_change_a_call_behind_the_check(post: Post) -> None:
    def sly(event: Any) -> None:
        event.input["to"] = "eve"

    outcome = await post.call(Hooks().on("pre_tool_use", sly).on("post_tool_use", sly))
    assert (outcome.ok, post.sent) == (True, ["bob"])


async def test_hooks_see_the_input_as_it_was_repaired(post: Post) -> None:
    seen: list[Any] = []
    outcome = await post.call(Hooks().on("pre_tool_use", lambda e: seen.append(e.input)), {"To": "bob"})
    assert (outcome.ok, post.sent, seen) == (True, ["bob"], [{"to": "bob"}])


@pytest.mark.parity
async def test_the_first_decision_wins_and_the_others_are_not_asked(post: Post) -> None:
    called: list[str] = []

    def say(name: str, decision: Any) -> Any:
        def hook(_: PreToolUse) -> Any:
            called.append(name)
            return decision

        return hook

    hooks = Hooks().on("pre_tool_use", say("nothing", None)) + Hooks().on(
        "pre_tool_use", say("go", Continue())
    )
    hooks.on("pre_tool_use", say("change", Modify({"to": "carol"}))).on(
        "pre_tool_use", say("no", Block("no"))
    )
    hooks.on("pre_tool_use", say("watch", Block("is not heard")), watches=True)
    outcome = await post.call(hooks)
    assert (outcome.ok, post.sent, called) == (True, ["carol"], ["nothing", "go", "change", "watch"])


async def test_hooks_in_turn_each_see_what_the_one_before_made(post: Post) -> None:
    def louder(event: PreToolUse) -> Modify:
        return Modify({"to": f"{event.input['to']}!"}, "louder")

    async def no_shouting(event: PreToolUse) -> Block | None:
        return Block("no shouting") if event.input["to"].endswith("!!") else None

    once = await post.call(Hooks().on("pre_tool_use", in_turn(louder, no_shouting)))
    twice = await post.call(Hooks().on("pre_tool_use", in_turn(louder, louder, no_shouting)))
    assert (once.ok, post.sent, twice.status) == (True, ["bob!"], "denied")


async def test_a_hook_is_asked_about_the_operations_that_it_matches(post: Post) -> None:
    called: list[str] = []
    hooks = Hooks()

    @hooks.pre_tool_use(match=("files.*", "Mail.S*"))
    def near(_: PreToolUse) -> None:
        called.append("near")

    @hooks.pre_tool_use(match="files.*")
    async def far(_: PreToolUse) -> None:
        called.append("far")

    assert [hook.function for hook in hooks] == [near, far]
    assert (await post.call(hooks)).ok
    assert called == ["near"]


async def test_only_what_a_model_calls_is_asked_about(post: Post) -> None:
    called: list[str] = []
    hooks = Hooks().on("pre_tool_use", lambda event: called.append(event.operation))
    async with post.open() as calls:
        assert (await calls.call("mail.forward", context=context_of(hooks))).ok
        assert (await calls.call("mail.send", SEND, context=context_of(hooks, for_model=False))).ok
    assert called == ["mail.forward"]


def broken(_: Any) -> None:
    raise ValueError("password=hunter2")


def stops(_: Any) -> None:
    raise StopIteration


async def slow(_: Any) -> None:
    await asyncio.sleep(60)


async def stubborn(_: Any) -> Continue:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return Continue()
    return Continue()


async def cancels(_: Any) -> None:
    raise asyncio.CancelledError


def leaves(_: Any) -> None:
    raise SystemExit(3)


async def leaves_at_once(_: Any) -> None:
    raise SystemExit(3)


async def interrupts(_: Any) -> None:
    raise KeyboardInterrupt


async def raises_anything(_: Any) -> None:
    raise BaseException("password=hunter2")


def says_true(_: Any) -> bool:
    return True


def asks_for_output(_: Any) -> Modify:
    return Modify(output=1)


FAILING = (
    broken,
    stops,
    slow,
    stubborn,
    cancels,
    leaves,
    says_true,
    asks_for_output,
    leaves_at_once,
    interrupts,
    raises_anything,
)


@pytest.mark.parity
@pytest.mark.promise("hooks-fail-closed")
@pytest.mark.parametrize("function", FAILING)
async def test_a_hook_that_fails_before_a_call_stops_it(post: Post, function: Any) -> None:
    outcome = await post.call(Hooks().on("pre_tool_use", function, timeout=0.05))
    assert outcome.error is not None
    assert (outcome.status, post.sent) == ("denied", [])
    assert f"mail.send was blocked: hook {function.__name__} failed" in outcome.error.message
    assert "hunter2" not in outcome.error.message


@pytest.mark.parametrize("function", FAILING)
async def test_a_hook_that_may_fail_is_noted_and_passed_over(post: Post, function: Any) -> None:
    hooks = Hooks().on("pre_tool_use", function, timeout=0.05, on_error="continue")
    outcome = await post.call(hooks.on("pre_tool_use", lambda _: None))
    assert (outcome.ok, post.sent) == (True, ["bob"])
    [note] = post.ledger.get(outcome.call_id).notes
    assert note.startswith(f"hook {function.__name__} failed")


@pytest.mark.parametrize("function", [broken, slow, cancels, leaves, says_true])
async def test_a_hook_that_fails_after_a_call_changes_nothing_unless_told_to(
    post: Post, function: Any
) -> None:
    passed = await post.call(Hooks().on("post_tool_use", function, timeout=0.05))
    closed = await post.call(Hooks().on("post_tool_use", function, timeout=0.05, on_error="block"))
    assert (passed.ok, passed.result) == (True, {"sent": "bob", "count": 1})
    assert passed.notes[0].startswith(f"hook {function.__name__} failed")
    assert closed.error is not None
    assert (closed.ok, closed.error.code, closed.result) == (False, "withheld", None)


async def test_a_hook_of_plain_python_that_blocks_holds_nothing_up(post: Post) -> None:
    free, ended = threading.Event(), threading.Event()

    def blocks(_: Any) -> None:
        free.wait(60)
        ended.set()

    hooks = Hooks().on("pre_tool_use", blocks, timeout=0.05)
    assert (await post.call(hooks)).status == "denied"
    assert not ended.is_set(), "nobody waited for it"
    free.set()
    hooks.close()


async def test_a_call_that_is_stopped_stops_its_hook(post: Post) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def waits(_: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    task = asyncio.create_task(post.call(Hooks().on("pre_tool_use", waits, timeout=60)))
    await asyncio.wait_for(begun.wait(), 120)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (stopped.is_set(), post.sent) == (True, [])


async def test_hooks_take_no_longer_than_the_callers_deadline(post: Post) -> None:
    deadline = asyncio.get_running_loop().time() + 0.05
    outcome = await post.call(Hooks().on("pre_tool_use", slow, timeout=60), deadline=deadline)
    assert outcome.error is not None
    assert (outcome.error.code, post.sent) == ("call_timeout", [])


async def test_a_hook_changes_what_the_model_is_told(post: Post) -> None:
    def shorter(event: PostToolUse) -> Modify:
        return Modify(output={"ok": event.output["sent"]}, reason="too long", metadata={"by": "me"})

    outcome = await post.call(Hooks().on("post_tool_use", shorter))
    entry = post.ledger.get(outcome.call_id)
    assert (outcome.ok, outcome.result, entry.result) == (True, {"ok": "bob"}, {"ok": "bob"})
    assert entry.notes == (
        "hook shorter: the output was changed: too long",
        'hook shorter notes {"by":"me"}',
    )


async def test_metadata_alone_leaves_the_result_as_it_is(post: Post) -> None:
    outcome = await post.call(Hooks().on("post_tool_use", lambda _: Modify(metadata={"trace": "t1"})))
    assert outcome.result == {"sent": "bob", "count": 1}
    assert post.ledger.get(outcome.call_id).notes == ('hook <lambda> notes {"trace":"t1"}',)


@pytest.mark.parity
async def test_a_result_can_be_withheld(post: Post) -> None:
    hooks = Hooks()
    hooks.post_tool_use(lambda _: Block("it is private"))
    outcome = await post.call(hooks)
    assert outcome.error is not None
    expected = "the call was made, but its result is withheld: it is private"
    assert (post.sent, outcome.status, outcome.error.message) == (["bob"], "failed", expected)
    assert post.ledger.get(outcome.call_id).result is None


async def test_the_words_of_a_failure_can_be_changed_and_its_hint_goes_with_them(post: Post) -> None:
    def hide(event: PostToolUse) -> Modify:
        assert event.error is not None
        return Modify(output=event.error.replace("nobody@x.org", "[email]"))

    outcome = await post.call(Hooks().on("post_tool_use", hide), {"to": "nobody"})
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("failed", "call_failed")
    assert outcome.error.message == "no such address: [email] (ask [email])"
    assert outcome.error.hint is None


async def test_hooks_after_a_call_see_blocked_calls(post: Post) -> None:
    seen: list[tuple[str, str | None]] = []
    hooks = Hooks().on("pre_tool_use", lambda _: Block("no"))
    await post.call(hooks.on("post_tool_use", lambda event: seen.append((event.status, event.error))))
    assert seen == [("denied", "mail.send was blocked: no")]


async def test_hooks_are_not_asked_about_what_the_policy_denies() -> None:
    post, called = Post(Rule(decision="deny", operations=("mail.send",))), list[Any]()
    outcome = await post.call(Hooks().on("pre_tool_use", called.append))
    assert (outcome.status, outcome.error and outcome.error.code, called) == ("failed", "not_found", [])


@pytest.mark.parametrize(
    ("event", "details", "message"),
    [
        ("pre_tool", {}, "there is no hook event 'pre_tool'"),
        ("pre_tool_use", {"timeout": 0}, "above 0 seconds"),
        ("pre_tool_use", {"on_error": "explode"}, "block or continue"),
        ("pre_tool_use", {"match": "a b"}, "is not a valid pattern"),
        ("run_end", {"match": "mail.*"}, "cannot match operations"),
    ],
)
def test_a_hook_that_cannot_be_is_refused(event: Any, details: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Hooks().on(event, lambda _: None, **details)
