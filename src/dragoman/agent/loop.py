"""The loop: ask the model, run its calls, repeat; yields batches of events. Source: seed 000, "AgentLoop".

Whoever drives it folds each batch into `turn.fold` before asking for the next one: the loop reads there
what was said so far. It knows neither HTTP nor SQL.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.accounts.payment import Paying
from dragoman.accounts.price import used_in
from dragoman.agent import closing
from dragoman.agent.asking import Admission, ask, calls_of
from dragoman.agent.callings import Callings
from dragoman.agent.closing import NOTICES, WAITS, Over, is_answered, natural, refused
from dragoman.agent.listening import Listening
from dragoman.agent.stops import Halt, SoFar, StepTaken
from dragoman.agent.structured import Conclusion
from dragoman.agent.turn import Asking, Batch, Turn
from dragoman.agent.word import Word, answered
from dragoman.errors import BudgetExhausted, CallDenied, ProviderError
from dragoman.messages import FINAL_STATES, StepStartPart, ToolPart
from dragoman.request import ModelRequest

__all__ = ["Batch", "Loop", "Turn"]

log = logging.getLogger(__name__)


class Loop:
    """One turn under way. `over` says how it ended, `error` what broke it, `done` what its steps were."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.usage: e.Usage | None = None
        self.steps = sum(isinstance(entry.part(), StepStartPart) for entry in turn.fold.entries)
        self.done: list[StepTaken] = []
        self.over: Over | None = None
        self.error: ProviderError | None = None
        self.listening = Listening(turn)
        self.conclusion = Conclusion(turn.output)
        self.history = turn.history
        self._answer = e.FinishStep()
        self._admission = Admission(turn.toolbox, taken=())
        self._payment: Paying | None = None
        self._cost: float | None = None
        self._began = turn.clock()
        self._before = _usage(turn.fold.metadata)
        self._words: dict[str, Word] = {}
        self._paid = _cost(turn.fold.metadata)

    async def run(self) -> AsyncGenerator[Batch, None]:
        """The events of the turn, `start` to `finish`. Cancelled, it ends where it stands; see `closing`."""
        turn = self.turn
        yield [e.Start(turn.fold.id, {"model": turn.agent.model, "agent": turn.agent.name}), *turn.given]
        self._listen(turn.given)
        try:
            self.history = await self.listening.submitted(turn.history)
            async for batch in self._resumed():
                yield batch
            while (over := self._ended()) is None:
                async for batch in self._step():
                    yield batch
        except (ProviderError, BudgetExhausted, CallDenied) as error:
            if isinstance(error, ProviderError) and not self._out_of_budget(error):
                yield await self._failed(error)
                return
            over = refused(error)
        finally:
            self.settle()
        await self.listening.ended(over.reason, self.so_far())
        for batch in self._closed(over):
            yield batch

    def settle(self) -> None:
        """Pay for the answer that is being made, if one is: it ends here."""
        used: e.Usage | None = None
        payment, self._payment = self._payment, None
        if payment is not None:
            used, self._cost = payment.settle(self._answer)
        self._count(used)

    def so_far(self) -> SoFar:
        """What was done until now."""
        return SoFar(
            steps=tuple(self.done),
            taken=self.steps,
            seconds=self.turn.clock() - self._began,
            usage=self.usage or e.Usage(),
            cost=self.cost,
        )

    def _in_all(self) -> SoFar:
        """The same, with the tokens and the cost of the whole message: limits hold for that."""
        said, before = self.so_far(), self._before
        return replace(said, usage=said.usage if before is None else before + said.usage, cost=self.bill)

    @property
    def cost(self) -> float | None:
        """US dollars that the run's model calls cost; None when no price is known, or none was asked for."""
        spending = self.turn.spending
        return None if spending is None else spending.cost

    def metadata(self, reason: e.FinishReason) -> dict[str, Any]:
        """What the message remembers of how it was made."""
        known = {
            "finishReason": reason,
            "usage": self._total(),
            "cost": self.bill,
            "provider": self._answer.provider,
            "servedModel": self._answer.model,
            "steps": self.steps,
            "duration": round(self.turn.clock() - self._began, 3),
        }
        return {word: value for word, value in known.items() if value is not None}

    def _total(self) -> Any:
        """The usage of the whole message: of this run, and of those that it goes on from."""
        if self._before is None or self.usage is None:
            return msgspec.to_builtins(self.usage or self._before)
        return msgspec.to_builtins(self._before + self.usage)

    @property
    def bill(self) -> float | None:
        """US dollars for the whole message: of this run, and of those that it goes on from."""
        known = [usd for usd in (self._paid, self.cost) if usd is not None]
        return round(sum(known), 9) if known else None

    def _ended(self) -> Over | None:
        """Why it ends here, or None when the model is to be asked (again)."""
        turn, reason = self.turn, self._answer.finish_reason
        if turn.given and not reason:
            return WAITS if _waiting(turn.fold.calls()) else self._stopped() or self._limit()
        if reason is None:
            return self._limit()
        if self.conclusion.done:
            return natural("stop")
        calls = turn.fold.calls()
        if self.conclusion.problem is not None:
            return self._limit()
        if not calls or reason in ("length", "content-filter") or is_answered(calls, reason):
            return natural("stop" if reason == "tool-calls" else reason)
        if _waiting(calls):
            return WAITS
        return self._stopped() or self._limit()

    def _stopped(self) -> Over | None:
        """Why a stop condition ends it here."""
        stops = self.turn.stops
        halt = stops.find(self._in_all()) if stops is not None else None
        if halt is None:
            return None
        return Over("max-steps" if halt.exit == "steps_exhausted" else "other", halt)

    def _limit(self) -> Over | None:
        most = self.turn.agent.max_steps
        return Over("max-steps", Halt("steps_exhausted", f"steps({most})")) if self.steps >= most else None

    async def _step(self) -> AsyncGenerator[Batch, None]:
        """One model call, and the calls that it asks for."""
        asking, said = await self._prepared()
        began = self._begin(asking)
        yield [e.StartStep(), *said]
        async for batch in self._asked(asking):
            yield batch
        if concluded := self._concluded():
            yield concluded
        async for batch in self._run(self._runnable()):
            yield batch
        async for batch in self._waited():
            yield batch
        step = self._note(asking.request, self.turn.clock() - began)
        await self.listening.answered(step)
        yield [msgspec.structs.replace(self._answer, duration=step.duration)]

    async def _asked(self, asking: Asking) -> AsyncGenerator[Batch, None]:
        """The model's answer; paid for when it is complete, before its calls run."""
        async with aclosing(ask(asking, self.turn)) as answer:
            async for batch in answer:
                if type(batch[-1]) is e.FinishStep:
                    self._answer = batch[-1]
                if self._payment is not None:
                    self._payment.note(batch)
                if admitted := self._admission.admit(batch):
                    yield admitted
        if self._answer.finish_reason is None:
            raise ProviderError("the provider's answer ended without a finish reason", category="api_error")
        if self._payment is not None and self.turn.spending is not None:
            await self.turn.spending.ready()
            self.settle()
        else:
            self._count(self._answer.usage)

    async def _prepared(self) -> tuple[Asking, Batch]:
        """Who is asked what in the next step, once all that have a say in it were asked."""
        turn = self.turn
        said: Batch = ()
        asking = Asking(turn.provider, self._request())
        if turn.prepare is not None:
            asking = await turn.prepare(asking, self._in_all(), number=self.steps + 1)
        request = asking.request
        if turn.window is not None:
            request, said = await turn.window.fit(request, turn.context, provider=asking.provider)
        request = self.conclusion.prepare(request, asking.provider.family)
        request = await self.listening.asking(request, self.steps + 1)
        return Asking(asking.provider, request), said

    def _begin(self, asking: Asking) -> float:
        """The next step begins: BudgetExhausted when it cannot be paid for. When it began."""
        turn = self.turn
        if turn.spending is not None:
            self._payment = turn.spending.pay(asking.request, asking.provider)
        self.steps += 1
        self._answer = e.FinishStep()
        shown = None if asking.request.tools is turn.toolbox.tools else asking.request.tools
        taken = [part.tool_call_id for part in calls_of(turn.fold)]
        self._admission = Admission(turn.toolbox, taken=taken, shown=shown, own=self.conclusion.tool)
        return turn.clock()

    def _concluded(self) -> Batch:
        """What the call is answered that gives the value, where one is asked for."""
        if self._answer.finish_reason in ("length", "content-filter"):
            return ()
        fold = self.turn.fold
        return self.conclusion.read("".join(block.text() for block in closing.said(fold)), fold.calls())

    def _count(self, used: e.Usage | None) -> None:
        """Count what a step took, and what it took to make its request fit."""
        window = self.turn.window
        for each in (used, window.used() if window is not None else None):
            self.usage = (self.usage or e.Usage()) + each if each else self.usage

    def _note(self, request: ModelRequest, duration: float) -> StepTaken:
        """Write the step down."""
        text = "".join(draft.text() for draft in closing.said(self.turn.fold))
        step = StepTaken(
            number=self.steps,
            model=self._answer.model or request.model,
            text=text,
            calls=tuple(self.turn.fold.calls()),
            usage=self._answer.usage,
            cost=self._cost,
            duration=duration,
            finish_reason=self._answer.finish_reason,
        )
        self.done.append(step)
        return step

    def _request(self) -> ModelRequest:
        turn = self.turn
        said = turn.fold.message()
        return ModelRequest(
            model=turn.model,
            messages=(*self.history, said) if said.parts else self.history,
            instructions=turn.agent.instructions,
            tools=turn.toolbox.tools,
            options=turn.agent.options,
        )

    def _runnable(self) -> list[ToolPart]:
        calls = [call for call in self.turn.fold.calls() if call.state == "input-available"]
        kind = self.turn.toolbox.kind
        return [c for c in calls if not c.provider_executed and kind(c.name) not in ("client", "unknown")]

    async def _resumed(self) -> AsyncGenerator[Batch, None]:
        """The calls of a continued message that were approved meanwhile, run before the next step."""
        async for batch in self._run(self._approved()):
            yield batch
        async for batch in self._waited():
            yield batch

    def _approved(self) -> list[ToolPart]:
        """The calls that waited for somebody's word, and have it."""
        waiting = [c for c in self.turn.fold.calls() if c.state not in FINAL_STATES]
        return [c for c in waiting if c.state == "approval-responded" or c.tool_call_id in self._words]

    def _listen(self, batch: Batch) -> None:
        """Take down what was answered to questions."""
        self._words |= dict(found for event in batch if (found := answered(event)) is not None)

    async def _waited(self) -> AsyncGenerator[Batch, None]:
        """What somebody outside says of the calls that wait, as it comes; nothing without a desk."""
        desk = self.turn.desk
        while desk is not None and (calls := _waiting(self.turn.fold.calls())):
            said = await desk.take(calls)
            yield said
            self._listen(said)
            async for batch in self._run(self._approved()):
                yield batch

    async def _run(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Batch, None]:
        """The calls' outputs as they come. Closing the generator cancels what still runs."""
        if not calls:
            return
        reason = self._answer.finish_reason
        if reason in ("length", "content-filter"):
            cut = f"not run: the model's answer was cut ({reason})"
            yield [e.ToolOutputError(call.tool_call_id, cut) for call in calls]
            return
        context = msgspec.structs.replace(self.turn.context, step=self.steps, told=True)
        callings = Callings(
            self.turn.toolbox,
            context,
            notes=self._admission.notes,
            words=self._words,
            task=self.turn.task,
        )
        self._words = {}  # each holds once: the same call may have to wait again, for another one
        async with aclosing(callings.run(calls)) as outputs:
            async for batch in outputs:
                yield batch

    def _closed(self, over: Over) -> list[Batch]:
        """The events that end it, `over` being how."""
        self.over = over
        fold = self.turn.fold
        said = self._notice(over) if self.turn.notices else None
        notices = closing.notice(said) if said else []
        if closing.is_empty(fold):  # the step did not take place
            self.steps -= 1
            closed, notices = [], notices[1:] or [e.FinishStep()]
        else:
            closed = closing.close_step(fold, why=over.halt.why or "the run has ended")
        finish = e.Finish(
            over.reason,
            message_metadata=self.metadata(over.reason),
            usage=self.usage,
            cost=self.cost,
            steps=self.steps,
        )
        return [batch for batch in (closed, notices, [finish]) if batch]

    def _notice(self, over: Over) -> str | None:
        """What the message says last: the value that was asked for, unless it did; or why it was stopped."""
        fold = self.turn.fold
        if self.conclusion.done:
            return self.conclusion.untold("".join(block.text() for block in closing.said(fold)))
        refused = over.halt.exit in ("budget_exhausted", "aborted")
        if not (refused or closing.ends_on_calls(fold)):
            return None
        own = over.halt.exit == "steps_exhausted" and over.halt.why != f"steps({self.turn.agent.max_steps})"
        said = NOTICES.get("other" if own else over.reason)
        return said.format(steps=self.steps, why=over.halt.why) if said else None

    def _out_of_budget(self, error: ProviderError) -> bool:
        """Take down what a failed answer took; whether a budget ended it that its provider keeps itself."""
        if self._payment is not None:
            self._answer = broken(error)
            self.settle()
        return error.code == BudgetExhausted.code

    async def _failed(self, error: ProviderError) -> Batch:
        log.warning("the model's answer failed: %s", error.message)
        self.error = error
        await self.listening.failed(error, self.steps)
        await self.listening.ended("error", self.so_far(), error=error.message, failure=error)
        return closing.fail(
            self.turn.fold,
            text=error.message,
            code=error.code,
            transient=error.transient,
            metadata=self.metadata("error"),
        )


def broken(error: ProviderError) -> e.FinishStep:
    """What an answer that failed is known to have taken."""
    told = None if error.cost is None else {"provider": {"costUsd": error.cost}}
    return e.FinishStep(usage=used_in(error), provider_metadata=told)


def _usage(metadata: Any) -> e.Usage | None:
    said = metadata.get("usage") if isinstance(metadata, dict) else None
    return msgspec.convert(said, e.Usage) if said else None


def _cost(metadata: Any) -> float | None:
    said = metadata.get("cost") if isinstance(metadata, dict) else None
    return said if isinstance(said, int | float) else None


def _waiting(calls: Sequence[ToolPart]) -> list[ToolPart]:
    return [call for call in calls if call.state in ("input-available", "approval-requested")]
