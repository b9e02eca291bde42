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
from dragoman.accounts.price import usage_of_error
from dragoman.agent import outcome as closing
from dragoman.agent.approvals import ApprovalAnswer, question_answer
from dragoman.agent.hook_dispatch import HookDispatcher
from dragoman.agent.model_stream import StreamNormaliser, stream_answer, tool_parts
from dragoman.agent.outcome import (
    NOTICES,
    WAITING,
    RunOutcome,
    is_answered_by_provider,
    model_outcome,
    refusal_outcome,
)
from dragoman.agent.stop_conditions import Halt, SoFar, StepTaken
from dragoman.agent.structured_output import StructuredAnswer
from dragoman.agent.tool_execution import ToolExecution
from dragoman.agent.turn import Batch, StepRequest, TurnSpec
from dragoman.errors import BudgetExhausted, CallDenied, ProviderError
from dragoman.messages import FINAL_STATES, StepStartPart, ToolPart
from dragoman.model_request import ModelRequest

__all__ = ["Batch", "Loop", "TurnSpec"]

log = logging.getLogger(__name__)


class Loop:
    """One turn under way. `outcome` says how it ended, `error` what broke it, `steps_taken` what its steps
    were.
    """

    def __init__(self, turn: TurnSpec) -> None:
        self.turn = turn
        self.usage: e.Usage | None = None
        self.step_count = sum(isinstance(entry.part(), StepStartPart) for entry in turn.fold.builders)
        self.steps_taken: list[StepTaken] = []
        self.outcome: RunOutcome | None = None
        self.error: ProviderError | None = None
        self.hooks = HookDispatcher(turn)
        self.output = StructuredAnswer(turn.output)
        self.history = turn.history
        self._finish_step = e.FinishStep()
        self._normaliser = StreamNormaliser(turn.toolbox, existing_ids=())
        self._payment: Paying | None = None
        self._step_cost: float | None = None
        self._started_at = turn.clock()
        self._earlier_usage = _stored_usage(turn.fold.metadata)
        self._answers: dict[str, ApprovalAnswer] = {}
        self._earlier_cost = _stored_cost(turn.fold.metadata)

    async def run(self) -> AsyncGenerator[Batch, None]:
        """The events of the turn, `start` to `finish`. Cancelled, it ends where it stands; see `closing`."""
        turn = self.turn
        yield [
            e.Start(turn.fold.id, {"model": turn.agent.model, "agent": turn.agent.name}),
            *turn.input_events,
        ]
        self._store_answers(turn.input_events)
        try:
            self.history = await self.hooks.user_prompt_submit(turn.history)
            async for batch in self._resume_calls():
                yield batch
            while (over := self._check_outcome()) is None:
                async for batch in self._run_step():
                    yield batch
        except (ProviderError, BudgetExhausted, CallDenied) as error:
            if isinstance(error, ProviderError) and not self._is_out_of_budget(error):
                yield await self._fail(error)
                return
            over = refusal_outcome(error)
        finally:
            self.settle_payment()
        await self.hooks.run_end(over.reason, self.so_far())
        for batch in self._closing_batches(over):
            yield batch

    def settle_payment(self) -> None:
        """Pay for the answer that is being made, if one is: it ends here."""
        used: e.Usage | None = None
        payment, self._payment = self._payment, None
        if payment is not None:
            used, self._step_cost = payment.settle(self._finish_step)
        self._add_usage(used)

    def so_far(self) -> SoFar:
        """What was done until now."""
        return SoFar(
            steps=tuple(self.steps_taken),
            taken=self.step_count,
            seconds=self.turn.clock() - self._started_at,
            usage=self.usage or e.Usage(),
            cost=self.cost,
        )

    def _message_progress(self) -> SoFar:
        """The same, with the tokens and the cost of the whole message: limits hold for that."""
        said, before = self.so_far(), self._earlier_usage
        return replace(
            said, usage=said.usage if before is None else before + said.usage, cost=self.message_cost
        )

    @property
    def cost(self) -> float | None:
        """US dollars that the run's model calls cost; None when no price is known, or none was asked for."""
        spending = self.turn.spending
        return None if spending is None else spending.cost

    def message_metadata(self, reason: e.FinishReason) -> dict[str, Any]:
        """What the message remembers of how it was made."""
        known = {
            "finishReason": reason,
            "usage": self._total_usage(),
            "cost": self.message_cost,
            "provider": self._finish_step.provider,
            "servedModel": self._finish_step.model,
            "steps": self.step_count,
            "duration": round(self.turn.clock() - self._started_at, 3),
        }
        return {word: value for word, value in known.items() if value is not None}

    def _total_usage(self) -> Any:
        """The usage of the whole message: of this run, and of those that it goes on from."""
        if self._earlier_usage is None or self.usage is None:
            return msgspec.to_builtins(self.usage or self._earlier_usage)
        return msgspec.to_builtins(self._earlier_usage + self.usage)

    @property
    def message_cost(self) -> float | None:
        """US dollars for the whole message: of this run, and of those that it goes on from."""
        known = [usd for usd in (self._earlier_cost, self.cost) if usd is not None]
        return round(sum(known), 9) if known else None

    def _check_outcome(self) -> RunOutcome | None:
        """Why it ends here, or None when the model is to be asked (again)."""
        turn, reason = self.turn, self._finish_step.finish_reason
        if turn.input_events and not reason:
            return (
                WAITING
                if _waiting_calls(turn.fold.step_calls())
                else self._stop_condition() or self._step_limit()
            )
        if reason is None:
            return self._step_limit()
        if self.output.is_complete:
            return model_outcome("stop")
        calls = turn.fold.step_calls()
        if self.output.problem is not None:
            return self._step_limit()
        if not calls or reason in ("length", "content-filter") or is_answered_by_provider(calls, reason):
            return model_outcome("stop" if reason == "tool-calls" else reason)
        if _waiting_calls(calls):
            return WAITING
        return self._stop_condition() or self._step_limit()

    def _stop_condition(self) -> RunOutcome | None:
        """Why a stop condition ends it here."""
        stops = self.turn.stop_condition
        halt = stops.check(self._message_progress()) if stops is not None else None
        if halt is None:
            return None
        return RunOutcome("max-steps" if halt.exit == "steps_exhausted" else "other", halt)

    def _step_limit(self) -> RunOutcome | None:
        most = self.turn.agent.max_steps
        return (
            RunOutcome("max-steps", Halt("steps_exhausted", f"steps({most})"))
            if self.step_count >= most
            else None
        )

    async def _run_step(self) -> AsyncGenerator[Batch, None]:
        """One model call, and the calls that it asks for."""
        asking, said = await self._prepare_step()
        began = self._begin_step(asking)
        yield [e.StartStep(), *said]
        async for batch in self._stream_model(asking):
            yield batch
        if concluded := self._read_output():
            yield concluded
        async for batch in self._run_calls(self._runnable_calls()):
            yield batch
        async for batch in self._wait_for_inputs():
            yield batch
        step = self._record_step(asking.request, self.turn.clock() - began)
        await self.hooks.post_model(step)
        yield [msgspec.structs.replace(self._finish_step, duration=step.duration)]

    async def _stream_model(self, step: StepRequest) -> AsyncGenerator[Batch, None]:
        """The model's answer; paid for when it is complete, before its calls run."""
        async with aclosing(stream_answer(step, self.turn)) as answer:
            async for batch in answer:
                if type(batch[-1]) is e.FinishStep:
                    self._finish_step = batch[-1]
                if self._payment is not None:
                    self._payment.note(batch)
                if admitted := self._normaliser.normalise(batch):
                    yield admitted
        if self._finish_step.finish_reason is None:
            raise ProviderError("the provider's answer ended without a finish reason", category="api_error")
        if self._payment is not None and self.turn.spending is not None:
            await self.turn.spending.ready()
            self.settle_payment()
        else:
            self._add_usage(self._finish_step.usage)

    async def _prepare_step(self) -> tuple[StepRequest, Batch]:
        """Who is asked what in the next step, once all that have a say in it were asked."""
        turn = self.turn
        said: Batch = ()
        asking = StepRequest(turn.provider, self._build_request())
        if turn.prepare_step is not None:
            asking = await turn.prepare_step(asking, self._message_progress(), number=self.step_count + 1)
        request = asking.request
        if turn.context_window is not None:
            request, said = await turn.context_window.fit(request, turn.context, provider=asking.provider)
        request = self.output.prepare_request(request, asking.provider.family)
        request = await self.hooks.pre_model(request, self.step_count + 1)
        return StepRequest(asking.provider, request), said

    def _begin_step(self, step: StepRequest) -> float:
        """The next step begins: BudgetExhausted when it cannot be paid for. When it began."""
        turn = self.turn
        if turn.spending is not None:
            self._payment = turn.spending.pay(step.request, step.provider)
        self.step_count += 1
        self._finish_step = e.FinishStep()
        shown = None if step.request.tools is turn.toolbox.tools else step.request.tools
        taken = [part.tool_call_id for part in tool_parts(turn.fold)]
        self._normaliser = StreamNormaliser(
            turn.toolbox, existing_ids=taken, visible_tools=shown, output_tool=self.output.tool_name
        )
        return turn.clock()

    def _read_output(self) -> Batch:
        """What the call is answered that gives the value, where one is asked for."""
        if self._finish_step.finish_reason in ("length", "content-filter"):
            return ()
        fold = self.turn.fold
        return self.output.read_step(
            "".join(block.text() for block in closing.last_text_blocks(fold)), fold.step_calls()
        )

    def _add_usage(self, usage: e.Usage | None) -> None:
        """Count what a step took, and what it took to make its request fit."""
        window = self.turn.context_window
        for each in (usage, window.take_usage() if window is not None else None):
            self.usage = (self.usage or e.Usage()) + each if each else self.usage

    def _record_step(self, request: ModelRequest, duration: float) -> StepTaken:
        """Write the step down."""
        text = "".join(draft.text() for draft in closing.last_text_blocks(self.turn.fold))
        step = StepTaken(
            number=self.step_count,
            model=self._finish_step.model or request.model,
            text=text,
            calls=tuple(self.turn.fold.step_calls()),
            usage=self._finish_step.usage,
            cost=self._step_cost,
            duration=duration,
            finish_reason=self._finish_step.finish_reason,
        )
        self.steps_taken.append(step)
        return step

    def _build_request(self) -> ModelRequest:
        turn = self.turn
        said = turn.fold.message()
        return ModelRequest(
            model=turn.model,
            messages=(*self.history, said) if said.parts else self.history,
            instructions=turn.agent.instructions,
            tools=turn.toolbox.tools,
            options=turn.agent.options,
        )

    def _runnable_calls(self) -> list[ToolPart]:
        calls = [call for call in self.turn.fold.step_calls() if call.state == "input-available"]
        kind = self.turn.toolbox.kind
        return [c for c in calls if not c.provider_executed and kind(c.name) not in ("client", "unknown")]

    async def _resume_calls(self) -> AsyncGenerator[Batch, None]:
        """The calls of a continued message that were approved meanwhile, run before the next step."""
        async for batch in self._run_calls(self._approved_calls()):
            yield batch
        async for batch in self._wait_for_inputs():
            yield batch

    def _approved_calls(self) -> list[ToolPart]:
        """The calls that waited for somebody's word, and have it."""
        waiting = [c for c in self.turn.fold.step_calls() if c.state not in FINAL_STATES]
        return [c for c in waiting if c.state == "approval-responded" or c.tool_call_id in self._answers]

    def _store_answers(self, batch: Batch) -> None:
        """Take down what was answered to questions."""
        self._answers |= dict(found for event in batch if (found := question_answer(event)) is not None)

    async def _wait_for_inputs(self) -> AsyncGenerator[Batch, None]:
        """What somebody outside says of the calls that wait, as it comes; nothing without a desk."""
        desk = self.turn.external_inputs
        while desk is not None and (calls := _waiting_calls(self.turn.fold.step_calls())):
            said = await desk.receive(calls)
            yield said
            self._store_answers(said)
            async for batch in self._run_calls(self._approved_calls()):
                yield batch

    async def _run_calls(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Batch, None]:
        """The calls' outputs as they come. Closing the generator cancels what still runs."""
        if not calls:
            return
        reason = self._finish_step.finish_reason
        if reason in ("length", "content-filter"):
            cut = f"not run: the model's answer was cut ({reason})"
            yield [e.ToolOutputError(call.tool_call_id, cut) for call in calls]
            return
        context = msgspec.structs.replace(self.turn.context, step=self.step_count, for_model=True)
        callings = ToolExecution(
            self.turn.toolbox,
            context,
            notes=self._normaliser.repair_notes,
            answers=self._answers,
            nested_approvals=self.turn.nested_approvals,
        )
        self._answers = {}  # each holds once: the same call may have to wait again, for another one
        async with aclosing(callings.run(calls)) as outputs:
            async for batch in outputs:
                yield batch

    def _closing_batches(self, outcome: RunOutcome) -> list[Batch]:
        """The events that end it, `outcome` being how."""
        self.outcome = outcome
        fold = self.turn.fold
        said = self._closing_text(outcome) if self.turn.adds_notices else None
        notices = closing.notice_step(said) if said else []
        if closing.is_empty_step(fold):  # the step did not take place
            self.step_count -= 1
            closed, notices = [], notices[1:] or [e.FinishStep()]
        else:
            closed = closing.close_step(fold, reason=outcome.halt.why or "the run has ended")
        finish = e.Finish(
            outcome.reason,
            message_metadata=self.message_metadata(outcome.reason),
            usage=self.usage,
            cost=self.cost,
            steps=self.step_count,
        )
        return [batch for batch in (closed, notices, [finish]) if batch]

    def _closing_text(self, outcome: RunOutcome) -> str | None:
        """What the message says last: the value that was asked for, unless it did; or why it was stopped."""
        fold = self.turn.fold
        if self.output.is_complete:
            return self.output.missing_json("".join(block.text() for block in closing.last_text_blocks(fold)))
        refused = outcome.halt.exit in ("budget_exhausted", "aborted")
        if not (refused or closing.ends_with_tool_calls(fold)):
            return None
        own = (
            outcome.halt.exit == "steps_exhausted"
            and outcome.halt.why != f"steps({self.turn.agent.max_steps})"
        )
        said = NOTICES.get("other" if own else outcome.reason)
        return said.format(steps=self.step_count, why=outcome.halt.why) if said else None

    def _is_out_of_budget(self, error: ProviderError) -> bool:
        """Take down what a failed answer took; whether a budget ended it that its provider keeps itself."""
        if self._payment is not None:
            self._finish_step = failed_finish_step(error)
            self.settle_payment()
        return error.code == BudgetExhausted.code

    async def _fail(self, error: ProviderError) -> Batch:
        log.warning("the model's answer failed: %s", error.message)
        self.error = error
        await self.hooks.model_failed(error, self.step_count)
        await self.hooks.run_end("error", self.so_far(), error=error.message, failure=error)
        return closing.failure_events(
            self.turn.fold,
            text=error.message,
            code=error.code,
            transient=error.transient,
            metadata=self.message_metadata("error"),
        )


def failed_finish_step(error: ProviderError) -> e.FinishStep:
    """What an answer that failed is known to have taken."""
    told = None if error.cost is None else {"provider": {"costUsd": error.cost}}
    return e.FinishStep(usage=usage_of_error(error), provider_metadata=told)


def _stored_usage(metadata: Any) -> e.Usage | None:
    said = metadata.get("usage") if isinstance(metadata, dict) else None
    return msgspec.convert(said, e.Usage) if said else None


def _stored_cost(metadata: Any) -> float | None:
    said = metadata.get("cost") if isinstance(metadata, dict) else None
    return said if isinstance(said, int | float) else None


def _waiting_calls(calls: Sequence[ToolPart]) -> list[ToolPart]:
    return [call for call in calls if call.state in ("input-available", "approval-requested")]
