"""Random conversations, shortened as they grow, are accepted by every provider family."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent.context.policy import ContextPolicy, Dropped, estimate_size
from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.model_request import ModelRequest
from tests.agent.conversations import checked, step, system, user


async def summarise(messages: Sequence[Message], before: str | None) -> str:
    return f"{len(messages)} messages after {before}"


def asking(*messages: Message) -> ModelRequest:
    shown = [message for message in messages if message.parts]
    return ModelRequest(model="claude-sonnet-4-5", messages=shown)


def shape(request: ModelRequest) -> list[tuple[str, int]]:
    return [(message.id, len(message.parts)) for message in request.messages]


def with_cut(message: Message, dropped: Dropped) -> Message:
    fold = Fold(message)
    fold.add([e.Start(message.id), dropped.event()])
    return fold.message()


class Talk:
    """One conversation, by the dice."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.policy = ContextPolicy(
            self.random.choice(["truncate", "summarise"]),
            limit=self.random.randint(200, 3000),
            keep=self.random.choice([0.2, 0.5, 0.7]),
            summarise=summarise,
        )
        self.history = [system()] if self.random.random() < 0.5 else []
        self.cuts = 0

    async def turn(self, number: int) -> None:
        self.history.append(user(f"question {number}", f"u{number}"))
        answer = Message(f"a{number}", "assistant")
        for at in range(self.random.randint(1, 8)):
            answer = await self.step(answer, question=f"u{number}")
            answer = replace(answer, parts=(*answer.parts, *step(number * 100 + at)))
        self.history.append(answer)

    async def step(self, answer: Message, *, question: str) -> Message:
        request = asking(*self.history, answer)
        fitted, dropped = await self.policy.fit(request)
        if self.random.random() < 0.1:
            fitted, again = await self.policy.fit(fitted, refused=estimate_size(fitted))
            dropped = again or dropped
        checked(list(fitted.messages))
        assert [message.id for message in fitted.messages if message.role == "user"][-1] == question
        if dropped is None:
            return answer
        self.cuts += 1
        answer = with_cut(answer, dropped)
        resumed, more = await self.policy.fit(asking(*self.history, answer))
        assert more is not None or shape(resumed) == shape(fitted)
        return answer


@pytest.mark.promise("a-cut-parts-no-call-from-its-result")
@pytest.mark.parametrize("seed", range(60))
async def test_a_growing_conversation_is_cut_where_every_family_takes_it(seed: int) -> None:
    talk = Talk(seed)
    for number in range(4):
        await talk.turn(number)
    assert talk.cuts or talk.policy.limit is None or talk.policy.limit > 1500
