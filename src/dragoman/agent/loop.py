"""The agent loop: call the model, run its tool calls, repeat. Source: seed 000, "AgentLoop".

It yields batches of events and knows neither HTTP nor SQL. The caller folds each batch into `turn.fold`
before it asks for the next one: the loop reads the message so far from there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.accounts.model_call import ModelCall
from dragoman.accounts.request_size import PromptSize
from dragoman.accounts.upstream_answer import Batch
from dragoman.agent import restoration
from dragoman.agent import run_end as closing
from dragoman.agent.answer_snapshot import read_message, read_text
from dragoman.agent.approval_events import ApprovalAnswer, question_answer
from dragoman.agent.hook_dispatch import HookDispatcher
from dragoman.agent.run_end import (
    NOTICES,
    STEERED,
    WAITING,
    RunOutcome,
    is_answered_by_provider,
    model_outcome,
    refusal_outcome,
    waiting_calls,
)
from dragoman.agent.stop_conditions import Halt, SoFar, StepTaken
from dragoman.agent.stream_normaliser import StreamNormaliser, shorten_request, tool_parts
from dragoman.agent.structured_output import StructuredAnswer
from dragoman.agent.tools.tool_execution import NO_BATCHES, ToolExecution
from dragoman.agent.turn_spec import StepRequest, TurnSpec
from dragoman.errors import BadRequest, BudgetExhausted, CallDenied, ProviderError, release_frames
from dragoman.messages import FINAL_STATES, StepStartPart, ToolPart
from dragoman.model_request import ModelRequest

__all__ = ["Batch", "Loop", "TurnSpec"]

log = logging.getLogger(__name__)


class Loop:
    """One turn in progress. `outcome` says how it ended, `error` why it failed."""

    def __init__(self, turn: TurnSpec) -> None:
        self.turn = turn
        self.usage: e.Usage | None = None
        self.step_count = turn.fold.count_parts(StepStartPart)
        self.steps_taken: list[StepTaken] = []
        self.outcome: RunOutcome | None = None
        self.error: ProviderError | None = None
        self.hooks = HookDispatcher(turn)
        self.output = StructuredAnswer(turn.output)
        self.history = turn.history
        self._finish_step = e.FinishStep()
        self._normaliser = StreamNormaliser(turn.toolbox, turn.context, existing_ids=())
        self._call: ModelCall[Batch] | None = None
        self._step_cost: float | None = None
        self._previous_prompt: PromptSize | None = None
        self._started_at = turn.clock()
        self._earlier_usage = restoration.stored_usage(turn.fold.metadata)
        self._answers: dict[str, ApprovalAnswer] = {}
        self._unfinished: Collection[str] = ()
        if turn.restored is not None:
            self._unfinished = turn.restored.unfinished
            self._answers = restoration.recorded_answers(turn.restored.message, self._unfinished)
        self._earlier_cost = restoration.stored_cost(turn.fold.metadata)
        self._last_event: e.Data | None = None
        self._on_delta: e.DeltaHandler | None = None

    def end_after_step(self, event: e.Data) -> None:
        """End before the next model request, if a step was taken; `event` says in the message why."""
        self._last_event = event

    async def run(self, on_delta: e.DeltaHandler | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the events of the turn, `start` to `finish`. Cancelled, it ends at once: see `abort_events`.

        What `on_delta` takes of a model's answer while the loop waits for more is not yielded. The answers
        are read here: a generator of their own would be resumed twice for each chunk.
        """
        turn, self._on_delta = self.turn, on_delta
        yield [e.Start(turn.fold.id, turn.agent.start_metadata), *turn.input_events]
        self._store_answers(turn.input_events)
        try:
            await self._settle_lost_step()
            self.history = await self.hooks.user_prompt_submit(turn.history)
            async for batch in self._outputs(self._approved_calls()):
                yield batch
            while (outcome := self._check_outcome()) is None:
                step, fitting = await self._prepare_step()
                started_at = await self._begin_step(step)
                yield [e.StartStep(), *fitting]
                call, answer = await self._begin_call(step)
                while answer:
                    yield answer
                    received = await call.next()
                    # Nearly every batch is one delta, which enters the run as it is.
                    is_delta = received and len(received) == 1 and type(received[0]) in e.TEXT_DELTAS
                    answer = received if received and is_delta else self._admit(received)
                text = await self._end_call(call)
                async for batch in self._step_outputs(text):
                    yield batch
                yield [await self._end_step(step.request, text, started_at=started_at)]
        except (ProviderError, BudgetExhausted, CallDenied) as error:
            await self._leave_call()
            if isinstance(error, ProviderError) and error.code != BudgetExhausted.code:
                yield await self._fail(error)
                return
            outcome = refusal_outcome(error)
        finally:
            self._on_delta = None  # it refers to what runs the loop
            await self._leave_call()
        await self.hooks.run_end(outcome.reason, self.so_far())
        for batch in self._closing_batches(outcome):
            yield batch

    async def _settle_lost_step(self) -> None:
        """Settle the model call of the step that a crash cut off, if there was one."""
        turn, restored = self.turn, self.turn.restored
        turn.payment.calls = self.step_count  # numbered by message, also where a run continues one
        if restored is not None and restored.lost:
            call = self._model_call(StepRequest(turn.routes, await self._build_request()))
            await call.settle_lost(restored.lost_length)
            self._add_usage(call.usage)
            turn.payment.calls = self.step_count

    async def _leave_call(self) -> None:
        """Close the model call under way, if there is one, and count what it took."""
        call, self._call = self._call, None
        usage: e.Usage | None = None
        if call is not None:
            try:
                await call.leave()
            finally:
                usage, self._step_cost = call.usage, call.cost
        self._add_usage(usage)

    def so_far(self) -> SoFar:
        """Return the progress of this run."""
        return SoFar(
            steps=tuple(self.steps_taken),
            taken=self.step_count,
            seconds=self.turn.clock() - self._started_at,
            usage=self.usage or e.Usage(),
            cost=self.cost,
        )

    def _message_progress(self) -> SoFar:
        """Return the progress with usage and cost of the whole message, to which limits apply."""
        turn, progress, earlier = self.turn, self.so_far(), self._earlier_usage
        before = restoration.steps_before_crash(
            turn.restored, turn.fold, model=turn.agent.model, toolbox=turn.toolbox
        )
        return replace(
            progress,
            steps=(*before, *progress.steps),
            usage=progress.usage if earlier is None else earlier + progress.usage,
            cost=self.message_cost,
        )

    @property
    def cost(self) -> float | None:
        """US dollars that the model calls of this run cost; None when no price is known."""
        return self.turn.payment.cost

    def message_metadata(self, reason: e.FinishReason) -> dict[str, Any]:
        """Return the metadata of the message: usage, cost, model, duration."""
        metadata = {
            "finishReason": reason,
            "usage": restoration.total_usage(self._earlier_usage, self.usage),
            "cost": self.message_cost,
            "provider": self._finish_step.provider,
            "servedModel": self._finish_step.model,
            "steps": self.step_count,
            "duration": round(self.turn.clock() - self._started_at, 3),
        }
        return {name: value for name, value in metadata.items() if value is not None}

    @property
    def message_cost(self) -> float | None:
        """US dollars for the whole message: of this run and of those that it continues."""
        costs = [usd for usd in (self._earlier_cost, self.cost) if usd is not None]
        return round(sum(costs), 9) if costs else None

    def _check_outcome(self) -> RunOutcome | None:
        """Return why the run ends here, or None to call the model (again)."""
        turn, reason = self.turn, self._finish_step.finish_reason
        if (turn.input_events or turn.restored is not None) and not reason:
            return (
                WAITING
                if waiting_calls(turn.fold.step_calls())
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
        if waiting_calls(calls):
            return WAITING
        return self._stop_condition() or self._step_limit()

    def _stop_condition(self) -> RunOutcome | None:
        """Return the outcome if a stop condition is met."""
        condition = self.turn.stop_condition
        halt = condition.check(self._message_progress()) if condition is not None else None
        if halt is None:
            return None
        return RunOutcome("max-steps" if halt.exit == "steps_exhausted" else "other", halt)

    def _step_limit(self) -> RunOutcome | None:
        if self._last_event is not None and self.steps_taken:
            return STEERED
        max_steps = self.turn.agent.max_steps
        return (
            RunOutcome("max-steps", Halt("steps_exhausted", f"steps({max_steps})"))
            if self.step_count >= max_steps
            else None
        )

    def _admit(self, batch: Batch | None) -> Batch:
        """Return the events of an answer as they enter the run; nothing at its end, which is held back."""
        if batch is None:
            return ()
        if type(batch[-1]) is e.FinishStep:
            self._finish_step = batch[-1]
        return self._normaliser.normalise(batch)

    async def _end_step(self, request: ModelRequest, text: str, *, started_at: float) -> e.FinishStep:
        """Record the step, and return the event that ends it."""
        step = self._record_step(request, text, duration=self.turn.clock() - started_at)
        await self.hooks.post_model(step)
        return msgspec.structs.replace(self._finish_step, duration=step.duration)

    async def _end_call(self, call: ModelCall[Batch]) -> str:
        """Settle an answer before its calls run; return its text. ProviderError for an incomplete one."""
        while await call.next() is not None:  # nothing follows, but the connection has to be read to its end
            pass
        if self._finish_step.finish_reason is None:
            error = ProviderError(
                "the provider closed the stream before the answer was complete", category="api_error"
            )
            call.fail(error)
            raise error
        await self.turn.payment.ready()
        call.end()
        self._finish_step = replace(self._finish_step, usage=call.usage)
        self._previous_prompt = call.prompt.compare(call.usage)
        await self._leave_call()
        return await read_text(closing.last_text_blocks(self.turn.fold))

    async def _begin_call(self, step: StepRequest) -> tuple[ModelCall[Batch], Batch]:
        """Begin the step's model call; a request that its provider refuses as too long is shortened once.

        Return the call and its first events, after those that say what the request leaves out.
        """
        dropped: Batch = ()
        while True:
            self._call = call = self._call or self._model_call(step)
            try:
                first = self._admit(await call.begin())
                return call, [*dropped, *first] if dropped else first
            except BadRequest as error:
                raise ProviderError(error.message, category="bad_request", hint=error.hint) from None
            except ProviderError as error:
                if error.category != "context_limit" or dropped:
                    raise
                failure = error
            await self._leave_call()
            self.turn.payment.calls = self.step_count - 1  # what follows belongs to the same step
            step, dropped = await shorten_request(step, self.turn, error=failure)
            self.turn.payment.calls = self.step_count - 1

    def _model_call(self, step: StepRequest) -> ModelCall[Batch]:
        turn = self.turn
        call = ModelCall.for_events(
            turn.payment,
            step.request,
            routes=step.routes,
            tracing=turn.tracing,
            retry=turn.retry_policy,
            on_delta=self._on_delta,
        )
        call.prompt.previous = self._previous_prompt
        return call

    async def _prepare_step(self) -> tuple[StepRequest, Batch]:
        """Return the next request after `on_prepare_step`, context fitting and hooks, and the events of the
        fitting.
        """
        turn = self.turn
        events: Batch = ()
        step = StepRequest(turn.routes, await self._build_request())
        if turn.prepare_step is not None:
            step = await turn.prepare_step(
                step,
                self._message_progress(),
                number=self.step_count + 1,
                tool_ids=turn.toolbox.operation_ids,
            )
        request = step.request
        if turn.context_window is not None:
            request, events = await turn.context_window.fit(request, turn.context, provider=step.provider)
        request = self.output.prepare_request(request, step.provider.family)
        request = await self.hooks.pre_model(request, self.step_count + 1)
        return StepRequest(step.routes, request), events

    async def _begin_step(self, step: StepRequest) -> float:
        """Start the next step and return the time. Raises BudgetExhausted when it cannot be paid for."""
        turn = self.turn
        self._call = self._model_call(step)
        turn.payment.calls = self.step_count  # whatever summaries were made
        await self._call.reserve()
        self.step_count += 1
        self._finish_step = e.FinishStep()
        visible_tools = None if step.request.tools is turn.toolbox.tools else step.request.tools
        existing_ids = [part.tool_call_id for part in tool_parts(turn.fold)]
        self._normaliser = StreamNormaliser(
            turn.toolbox,
            turn.context,
            existing_ids=existing_ids,
            visible_tools=visible_tools,
            output_tool=self.output.tool_name,
        )
        return turn.clock()

    def _add_usage(self, usage: e.Usage | None) -> None:
        """Add the usage of a step, and of fitting its request into the context."""
        window = self.turn.context_window
        for addition in (usage, window.take_usage() if window is not None else None):
            if addition:
                self.usage = addition if self.usage is None else self.usage + addition

    def _record_step(self, request: ModelRequest, text: str, *, duration: float) -> StepTaken:
        """Append the finished step to `steps_taken`."""
        calls = tuple(self.turn.fold.step_calls())
        step = StepTaken(
            number=self.step_count,
            model=self._finish_step.model or request.model,
            text=text,
            calls=calls,
            called=tuple(name for call in calls for name in self.turn.toolbox.called_operations(call)),
            usage=self._finish_step.usage,
            cost=self._step_cost,
            duration=duration,
            finish_reason=self._finish_step.finish_reason,
        )
        self.steps_taken.append(step)
        return step

    async def _build_request(self) -> ModelRequest:
        turn = self.turn
        answer = await read_message(turn.fold)
        return ModelRequest(
            model=turn.routes.first.model,
            messages=(*self.history, answer) if answer.parts else self.history,
            instructions=turn.agent.instructions,
            tools=turn.toolbox.tools,
            options=turn.agent.options,
        )

    def _runnable_calls(self) -> list[ToolPart]:
        calls = [call for call in self.turn.fold.step_calls() if call.state == "input-available"]
        kind = self.turn.toolbox.kind
        return [c for c in calls if not c.provider_executed and kind(c.name) not in ("client", "unknown")]

    def _step_outputs(self, text: str) -> AsyncIterator[Batch]:
        """Return the outputs of a step's calls; those that give the structured output come first."""
        is_cut = self._finish_step.finish_reason in ("length", "content-filter")
        structured = () if is_cut else self.output.read_step(text, self.turn.fold.step_calls())
        return self._outputs(() if structured else self._runnable_calls(), structured)

    def _outputs(self, calls: Sequence[ToolPart], structured: Batch = ()) -> AsyncIterator[Batch]:
        """Return the outputs of calls, and external inputs; most steps have none, and need no generator."""
        if structured or calls or self.turn.external_inputs is not None:
            return self._run_and_wait(calls, structured)
        return NO_BATCHES

    async def _run_and_wait(
        self, calls: Sequence[ToolPart], structured: Batch
    ) -> AsyncGenerator[Batch, None]:
        """Run calls, those that the `structured` outputs leave, and wait for inputs of those that need them.

        They are the model's, or those of a continued message that were approved in the meantime, or cut off
        by a crash.
        """
        if structured:
            yield structured
            calls = self._runnable_calls()
        async for batch in self._run_calls(calls):
            yield batch
        inputs = self.turn.external_inputs
        while inputs is not None and (waiting := waiting_calls(self.turn.fold.step_calls())):
            received = await inputs.receive(waiting)
            yield received
            self._store_answers(received)
            async for batch in self._run_calls(self._approved_calls()):
                yield batch

    def _approved_calls(self) -> list[ToolPart]:
        """Return the waiting calls that have an answer, and those that a crash cut off."""
        waiting = [c for c in self.turn.fold.step_calls() if c.state not in FINAL_STATES]
        answered = {c.tool_call_id for c in waiting if c.state == "approval-responded"} | set(self._answers)
        kind = self.turn.toolbox.kind
        cut_off = {c.tool_call_id for c in waiting if kind(c.name) != "client"}.intersection(self._unfinished)
        self._unfinished = ()
        return [c for c in waiting if c.tool_call_id in answered | cut_off]

    def _store_answers(self, batch: Batch) -> None:
        """Remember the answers to questions."""
        self._answers |= dict(answer for event in batch if (answer := question_answer(event)) is not None)

    async def _run_calls(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Batch, None]:
        """Yield the outputs of the calls as they arrive. Closing the generator cancels those still
        running.
        """
        if not calls:
            return
        reason = self._finish_step.finish_reason
        if reason in ("length", "content-filter"):
            cut = f"not run: the model's answer was cut ({reason})"
            yield [e.ToolOutputError(call.tool_call_id, cut) for call in calls]
            return
        context = msgspec.structs.replace(self.turn.context, step=self.step_count, for_model=True)
        execution = ToolExecution(
            self.turn.toolbox,
            context,
            notes=self._normaliser.repair_notes,
            answers=self._answers,
            nested_approvals=self.turn.nested_approvals,
        )
        self._answers = {}  # each is used once: the same call may have to wait again, for another answer
        async with aclosing(execution.run(calls)) as outputs:
            async for batch in outputs:
                yield batch

    def _closing_batches(self, outcome: RunOutcome) -> list[Batch]:
        """Return the batches that end the run with this outcome."""
        self.outcome = outcome
        fold = self.turn.fold
        text = self._closing_text(outcome) if self.turn.adds_notices else None
        notices = closing.notice_step(text) if text else []
        if outcome is STEERED and self._last_event is not None:
            notices = [e.StartStep(), self._last_event, e.FinishStep()]
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
        """Return the last text of the message: the structured output as JSON if the text lacks it, or why it
        was stopped.
        """
        fold = self.turn.fold
        if self.output.is_complete:
            return self.output.missing_json("".join(block.text() for block in closing.last_text_blocks(fold)))
        was_refused = outcome.halt.exit in ("budget_exhausted", "aborted")
        if not (was_refused or closing.ends_with_tool_calls(fold)):
            return None
        by_condition = (
            outcome.halt.exit == "steps_exhausted"
            and outcome.halt.why != f"steps({self.turn.agent.max_steps})"
        )
        template = NOTICES.get("other" if by_condition else outcome.reason)
        return template.format(steps=self.step_count, why=outcome.halt.why.rstrip(".")) if template else None

    async def _fail(self, error: ProviderError) -> Batch:
        log.warning("the model call failed: %s", error.message)
        self.error = error
        await self.hooks.model_failed(error, self.step_count, model=self.turn.routes.first.model)
        await self.hooks.run_end("error", self.so_far(), error=error.message, failure=error)
        release_frames(error)
        return closing.failure_events(
            self.turn.fold,
            text=error.message_and_hint,
            code=error.code,
            transient=error.transient,
            metadata=self.message_metadata("error"),
        )
