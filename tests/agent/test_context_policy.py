"""Context policies: when a conversation is shortened, how long the cut holds, and its event."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.accounts.payment import Payment
from dragoman.accounts.price import Price, TokenRates
from dragoman.agent.context.policy import ContextFitter, ContextPolicy, Dropped, estimate_size
from dragoman.agent.context.summary import Summariser, Summary, transcript
from dragoman.errors import ConfigError, ProviderError
from dragoman.fold import Fold
from dragoman.identity import LOCAL
from dragoman.messages import Message, StepStartPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.providers.scripted import Failure, ScriptedProvider, Step
from dragoman.wire.anthropic import request as anthropic_request
from dragoman.wire.ollama import request as ollama_request
from dragoman.wire.openai import request as openai_request

TRUNCATE = ContextPolicy("truncate", limit=2000)
NOTE = "[Earlier messages of this conversation were left out to save room.]"


def user(text: str, id: str) -> Message:
    return Message(id, "user", (TextPart(text),))


def turn(number: int, size: int = 800) -> list[Message]:
    answer = Message(f"a{number}", "assistant", (StepStartPart(), TextPart("y" * size)))
    return [user(f"question {number}", f"u{number}"), answer]


def call(number: int) -> ToolPart:
    return ToolPart("tool-look", f"c{number}", "output-available", input={}, output="z" * 800)


def asking(*messages: Message, **options: Any) -> ModelRequest:
    return ModelRequest(model="m", messages=messages, options=options)


def history(turns: int) -> list[Message]:
    return [message for number in range(turns) for message in turn(number)]


def folded(message: Message, dropped: Dropped | None) -> Message:
    """The message under way, with what the loop folds into it."""
    fold = Fold(message)
    fold.add([e.Start(message.id)])
    fold.add([dropped.event()] if dropped is not None else [])
    return fold.message()


async def test_a_conversation_that_fits_is_asked_as_it_is() -> None:
    request = asking(*history(3), user("And?", "last"))
    for policy in (TRUNCATE, ContextPolicy(), ContextPolicy("truncate")):
        fitted, dropped = await policy.fit(request)
        assert (list(fitted.messages), dropped) == (list(request.messages), None)


async def test_above_the_margin_the_oldest_turns_go_and_the_event_says_which() -> None:
    request = asking(*history(9), user("And?", "last"))
    fitted, dropped = await TRUNCATE.fit(request)
    assert dropped is not None
    assert estimate_size(fitted) <= 1000 < 1700 < estimate_size(request)
    assert [message.id for message in fitted.messages] == [
        "u5",
        "a5",
        "u6",
        "a6",
        "u7",
        "a7",
        "u8",
        "a8",
        "last",
    ]
    first = fitted.messages[0].parts
    assert [part.text for part in first if isinstance(part, TextPart)] == [NOTE, "question 5"]
    assert dropped.event() == e.Data(
        "data-context",
        {
            "kind": "truncate",
            "dropped": 10,
            "from": "u0",
            "to": "a4",
            "tokens": 1900,
            "left": estimate_size(fitted),
        },
    )


def bytes_of(request: ModelRequest) -> list[bytes]:
    """What each family is sent of the messages, without what closes the lists around them."""
    bodies = [
        module.encode_request(msgspec.structs.replace(request, model="claude-sonnet-4-5"))
        for module in (openai_request, anthropic_request, ollama_request)
    ]
    return [msgspec.json.encode(msgspec.json.decode(body)["messages"])[:-1] for body in bodies]


async def test_after_a_cut_each_request_begins_with_the_bytes_of_the_one_before_until_the_next_cut() -> None:
    messages = history(9)
    before: list[bytes] | None = None
    cuts = 0
    for number in range(9, 30):
        question = user(f"question {number}", f"u{number}")
        fitted, dropped = await TRUNCATE.fit(asking(*messages, question))
        if dropped is None and before is not None:
            assert all(now.startswith(then) for now, then in zip(bytes_of(fitted), before, strict=True))
        cuts += dropped is not None
        before = bytes_of(fitted)
        assert estimate_size(fitted) <= 1700
        messages += [question, folded(turn(number)[1], dropped)]
    assert 4 <= cuts <= 6


async def test_the_note_names_the_tool_that_finds_what_was_left_out_and_stays_the_same_bytes() -> None:
    policy = msgspec.structs.replace(TRUNCATE, recall="history_search")
    messages = [*history(9), user("And?", "last")]
    fitted, dropped = await policy.fit(asking(*messages))
    first = fitted.messages[0].parts[0]
    assert isinstance(first, TextPart)
    assert first.text == NOTE.replace(".]", ". history_search finds them.]")
    answered = [*messages, folded(Message("a", "assistant", (TextPart("So."),)), dropped)]
    again, later = await policy.fit(asking(*answered, user("More?", "more")))
    assert later is None
    assert all(now.startswith(then) for now, then in zip(bytes_of(again), bytes_of(fitted), strict=True))


async def test_steps_of_the_turn_under_way_go_too_and_its_question_stays() -> None:
    under_way = Message("a", "assistant")
    question = user("Work.", "u")
    cut: list[int] = []
    fitted = asking()
    for number in range(20):
        fitted, dropped = await TRUNCATE.fit(asking(*history(2), question, under_way))
        under_way = folded(under_way, dropped)
        assert [message.id for message in fitted.messages if message.role == "user"][-1] == "u"
        assert estimate_size(fitted) <= 1700
        if dropped is not None:
            cut.append(dropped.cut.steps)
            again, nothing = await TRUNCATE.fit(asking(*history(2), question, under_way))
            assert (again, nothing) == (fitted, None)
        step = (StepStartPart(), TextPart(f"Step {number}"), call(number))
        under_way = msgspec.structs.replace(under_way, parts=(*under_way.parts, *step))
    assert len(cut) >= 3
    assert cut == sorted(cut)
    ids = [part.tool_call_id for part in fitted.messages[-1].parts if isinstance(part, ToolPart)]
    assert ids == [f"c{number}" for number in range(19 - len(ids), 19)]
    fitted, dropped = await TRUNCATE.fit(asking(*history(2), question, under_way, user("And?", "v")))
    assert [message.id for message in fitted.messages] == ["u", "a", "v"]


async def test_room_is_left_for_the_answer_and_ollamas_own_size_counts() -> None:
    request = asking(*history(5), user("And?", "last"))
    assert (await TRUNCATE.fit(request))[1] is None
    for options in ({"max_tokens": 1500}, {"num_ctx": 1000}, {"options": {"num_ctx": 1000}}):
        assert (await TRUNCATE.fit(asking(*request.messages, **options)))[1] is not None


async def test_the_limit_may_be_known_by_the_models_name() -> None:
    request = asking(*history(9), user("And?", "last"))
    policy_by_name = ContextPolicy("truncate", windows={"m": 2000}.get)
    assert (await policy_by_name.fit(request))[1] is not None
    unknown = ContextPolicy("truncate", windows={"n": 2000}.get)
    assert (await unknown.fit(request))[1] is None


async def test_what_was_refused_as_too_long_is_cut_to_half_and_again_until_nothing_is_left_to_drop() -> None:
    fitting = ContextFitter(ContextPolicy("truncate"))
    context = Context(identity=LOCAL)
    request = asking(*history(9), user("And?", "last"))
    first, cut_events = await fitting.fit(request, context)
    assert (list(first.messages), list(cut_events)) == (list(request.messages), [])
    sizes = [estimate_size(first)]
    sent = first
    while True:
        sent, cut_events = await fitting.shrink(sent, context)
        if not cut_events:
            break
        sizes.append(estimate_size(sent))
    assert all(after <= before * 0.5 + 30 for before, after in pairwise(sizes[:-1]))
    assert [message.id for message in sent.messages] == ["last"]
    assert [part.text for part in sent.messages[0].parts if isinstance(part, TextPart)] == [NOTE, "And?"]


async def test_a_summary_takes_the_place_of_what_was_dropped_and_grows_with_the_next_cut() -> None:
    summarised: list[tuple[list[str], str | None]] = []

    async def summarise(messages: Sequence[Message], before: str | None) -> Summary:
        summarised.append(([message.id for message in messages], before))
        return Summary(f"Summary {len(summarised)}", e.Usage(10, 2))

    policy = ContextPolicy("summarise", limit=2000, summarise=summarise)
    messages = history(9)
    fitted, dropped = await policy.fit(asking(*messages, user("And?", "u9")))
    assert dropped is not None
    assert dropped.usage == e.Usage(10, 2)
    assert dropped.event().data["summary"] == "Summary 1"
    assert "Summary 1" in str(fitted.messages[0].parts[0])
    messages += [user("And?", "u9"), folded(turn(9)[1], dropped), *history(16)[20:]]
    later, dropped = await policy.fit(asking(*messages, user("And?", "last")))
    assert dropped is not None
    assert " ".join(summarised[1][0]) == "u5 a5 u6 a6 u7 a7 u8 a8 u9 a9 u10 a10 u11 a11"
    assert summarised[1][1] == "Summary 1"
    assert str(later.messages).count("Summary") == 2  # in the text, and where it is known again
    assert "Summary 2" in str(later.messages[0].parts[0])


async def test_without_a_summary_the_turns_are_left_out_all_the_same_and_the_event_says_why() -> None:
    model = ScriptedProvider([Step(error=Failure("too busy", transient=True))])
    policy = ContextPolicy("summarise", limit=2000, summarise=Summariser(model, "m"))
    fitted, dropped = await policy.fit(asking(*history(9), user("And?", "last")))
    assert dropped is not None
    assert (dropped.cut.kind, dropped.cut.problem) == ("truncate", "too busy")
    assert fitted.messages[0].id == "u5"


async def test_a_model_is_asked_for_the_summary_with_the_conversation_as_material() -> None:
    model = ScriptedProvider([Step(text="They spoke.", usage=e.Usage(100, 5))])
    summary = await Summariser(model, "small")(turn(1, 10), "Before.")
    assert summary == Summary("They spoke.", e.Usage(100, 5))
    (request,) = model.requests
    assert (request.model, request.tools) == ("small", ())
    text = str(request.messages[0].parts[0])
    assert "Before." in text
    assert "user: question 1\\nassistant: yyyyyyyyyy" in text
    with pytest.raises(ProviderError, match="an empty summary"):
        await Summariser(ScriptedProvider([Step(text=" ")]), "small")(turn(1), None)


def paid_by(payment: Payment, provider: ScriptedProvider) -> Summariser:
    return Summariser(provider, "small").paid_by(payment)


async def test_a_summary_is_paid_for_also_when_it_breaks_off() -> None:
    failing = Step(text="They", error=Failure("gone"))
    model = ScriptedProvider([Step(text="They spoke.", usage=e.Usage(100, 5)), failing])
    price = Price(name="p", rates=(TokenRates(input=1_000_000, output=1_000_000),))  # a dollar a million
    payment = Payment(price=lambda _: price)
    summarise = paid_by(payment, model)
    await summarise(turn(1, 10), None)
    assert payment.cost == 0.000105
    with pytest.raises(ProviderError, match="gone"):
        await summarise(turn(1, 10), None)
    assert payment.calls == 2
    assert (payment.cost or 0) > 0.000105, "what was said until then is estimated"


async def test_a_summary_that_cannot_be_paid_for_is_not_asked_for() -> None:
    model = ScriptedProvider([])
    budget = Budget(usd=0.01)
    budget.spent = 0.01
    summarise = paid_by(Payment(budget=budget), model)
    policy = ContextPolicy("summarise", limit=2000, summarise=summarise)
    _, dropped = await policy.fit(asking(*history(9), user("And?", "last")))
    assert dropped is not None
    assert (dropped.cut.problem, model.requests) == ("the budget of this run is spent", [])


def test_a_transcript_is_bounded_and_holds_the_newest() -> None:
    long = ToolPart("tool-look", "c", "output-available", input={"q": 1}, output="z" * 9000)
    text = transcript([*history(20), Message("a", "assistant", (long,))], max_tokens=1000)
    assert text.startswith("[what was before is left out]\nuser: question")
    assert text.endswith('[called look {"q":1}: ' + "z" * 2000 + "… (7000 characters more)]")
    assert len(text) < 4200


async def test_a_cut_of_another_conversation_or_of_somebody_else_is_passed_over() -> None:
    strange = [
        e.Data("data-context", {"x": 1}),
        e.Data("data-context", {"kind": "truncate", "dropped": 1, "from": "?", "to": "?"}),
    ]
    fold = Fold(Message("a", "assistant"))
    fold.add([e.Start("a"), *strange])
    request = asking(*history(2), user("And?", "last"), fold.message())
    fitted, dropped = await TRUNCATE.fit(request)
    assert dropped is None
    assert [message.id for message in fitted.messages][:2] == ["u0", "a0"]


@pytest.mark.parametrize(
    "wrong", [{"kind": "cut"}, {"limit": 0}, {"margin": 1.5}, {"keep": 0.9}, {"keep": 0.0}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ContextPolicy(**wrong)
