"""Hooks of the loop: prompt, model request, model response, end of the run."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dragoman.agent.hook_dispatch import HookDispatcher, HookedTurn
from dragoman.agent.hooks.events import Ask, Block, Modify, PostModel, PreModel, RunEnd, UserPromptSubmit
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.invocation import TURN_HOOKS, message_text, with_text
from dragoman.agent.hooks.runner import in_turn
from dragoman.messages import FilePart, Message, TextPart
from dragoman.model_request import ModelRequest

FILE = FilePart("image/png", "https://x.org/a.png")
SAID = Message("u", "user", (FILE, TextPart("my card is 1"), TextPart("thanks")))
REQUEST = ModelRequest(model="m", messages=[SAID])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_a_user_says_can_be_changed_and_the_files_stay() -> None:
    hooks, seen = Hooks(), list[str]()

    @hooks.user_prompt_submit
    def hide(event: UserPromptSubmit) -> Modify:
        return Modify(event.text.replace("1", "[card]"), "no cards")

    hooks.on("user_prompt_submit", lambda event: seen.append(event.text), watches=True)
    event = await hooks.loop.user_prompt_submit(UserPromptSubmit(text=message_text(SAID), message=SAID))
    assert isinstance(event, UserPromptSubmit)
    assert (event.text, seen) == ("my card is [card]\nthanks", ["my card is [card]\nthanks"])
    assert event.message == Message("u", "user", (FILE, TextPart("my card is [card]\nthanks")))


async def test_what_a_user_says_can_be_refused() -> None:
    hooks = Hooks().on("user_prompt_submit", lambda _: Block("not here"))
    assert await hooks.loop.user_prompt_submit(UserPromptSubmit(text="hi")) == Block("not here")


async def test_a_models_request_can_be_changed_or_refused() -> None:
    hooks = Hooks()

    @hooks.pre_model(timeout=5)
    async def cheap(event: PreModel) -> Modify | Block:
        if event.step == 2:
            return Block("one is enough")
        return Modify(request=ModelRequest(model="small", messages=event.request.messages))

    event = await hooks.loop.pre_model(PreModel(request=REQUEST, step=1))
    assert [(hook.function, hook.timeout) for hook in hooks] == [(cheap, 5)]
    assert isinstance(event, PreModel)
    assert event.request.model == "small"
    assert await hooks.loop.pre_model(PreModel(request=REQUEST, step=2)) == Block("one is enough")


@pytest.mark.parametrize("decision", [Ask("?"), Modify({"a": 1}), Modify(output=1), "yes"])
async def test_a_decision_that_means_nothing_here_stops_the_run(decision: Any) -> None:
    hooks = Hooks().on("user_prompt_submit", lambda _: decision).on("pre_model", lambda _: decision)
    prompt = await hooks.loop.user_prompt_submit(UserPromptSubmit(text="hi"))
    model = await hooks.loop.pre_model(PreModel(request=REQUEST))
    assert isinstance(prompt, Block)
    assert isinstance(model, Block)
    assert "hook <lambda> failed" in prompt.reason


async def test_hooks_see_answers_and_ends_and_a_broken_hook_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hooks, seen = Hooks(), list[Any]()

    @hooks.post_model
    def fail(_: PostModel) -> None:
        raise ValueError("oh")

    hooks.on("post_model", seen.append).on("run_end", seen.append).on("run_end", lambda _: Block("too late"))
    answer, end = PostModel(model="m", text="hi", finish_reason="stop"), RunEnd(reason="stop", steps=1)
    await hooks.loop.post_model(answer)
    await hooks.loop.run_end(end)
    assert seen == [answer, end]
    assert "hook fail failed" in caplog.text


async def test_requests_and_prompts_are_changed_in_turn() -> None:
    def louder(event: UserPromptSubmit) -> Modify:
        return Modify(f"{event.text}!", "loud")

    def other(event: PreModel) -> Modify:
        return Modify(request=ModelRequest(model=f"{event.request.model}+", messages=event.request.messages))

    hooks = Hooks().on("user_prompt_submit", in_turn(louder, louder)).on("pre_model", in_turn(other, other))
    prompt = await hooks.loop.user_prompt_submit(UserPromptSubmit(text="hi"))
    changed_request = await hooks.loop.pre_model(PreModel(request=REQUEST))
    assert isinstance(prompt, UserPromptSubmit)
    assert isinstance(changed_request, PreModel)
    assert (prompt.text, changed_request.request.model) == ("hi!!", "m++")


def test_hooks_are_put_together_in_order() -> None:
    first = Hooks().on("run_end", lambda _: None, name="a")
    both = first + Hooks().on("run_end", lambda _: None, name="b")
    assert ([hook.name for hook in both], len(first), bool(Hooks())) == (["a", "b"], 1, False)


def test_a_message_without_text_gets_one() -> None:
    assert with_text(Message("u", "user", (FILE,)), "hi").parts == (TextPart("hi"), FILE)


async def test_no_event_is_made_for_hooks_that_nobody_has() -> None:
    class Turn:
        """A turn of which only the hooks are read."""

        hooks = Hooks().on("pre_tool_use", lambda _: None, match="mail.*").loop

    dispatcher = HookDispatcher(cast("HookedTurn", Turn()))
    nothing = cast("Any", None)
    assert await dispatcher.user_prompt_submit([SAID]) == [SAID]
    assert await dispatcher.pre_model(REQUEST, 1) is REQUEST
    await dispatcher.post_model(nothing)
    await dispatcher.model_failed(ValueError(), 1, model="m")
    await dispatcher.run_end("stop", nothing)
    assert not Turn.hooks.has(*TURN_HOOKS)
