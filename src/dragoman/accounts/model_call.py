"""One model call under way: what is sent, what its provider answers, and what it costs.

The gateway, runs and the library ask models through `ModelCall`, so the same answer has the same usage,
record and cost at every endpoint. Whatever happens before the first item of an answer (admission,
reservation, choice of the route, fallback, retries) happens in `begin()`; after that `next()` reads on. It is
a plain object, not a generator around the provider's generator: a chunk passes through few frames.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from dragoman import events as e
from dragoman.accounts.budget_reservation import BudgetReservation, refused
from dragoman.accounts.payment import Payment
from dragoman.accounts.price import Price, usage_of_error, with_cost
from dragoman.accounts.request_size import (
    CHARACTERS_PER_TOKEN,
    AnswerBounds,
    PromptEstimate,
    RequestPrompt,
    bounds_of,
)
from dragoman.accounts.upstream_answer import (
    NO_USAGE,
    AnswerProgress,
    Batch,
    EventAnswer,
    UpstreamAnswer,
    settled_usage,
)
from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    ConfigError,
    DragomanError,
    LimitReached,
    ProviderError,
    Unavailable,
)
from dragoman.ids import sortable_id
from dragoman.model_request import ModelRequest
from dragoman.providers.balance import RouteAttempt
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import RetryPolicy, pause
from dragoman.providers.routing import ModelRoutes, Route
from dragoman.tracing.interface import NO_TRACING, Tracing
from dragoman.usage_record import LOST_PREFIX, UsageRecord

if TYPE_CHECKING:  # a program without a hub has no meter, and loads no database
    from dragoman.accounts.meter import Admission, Entry
    from dragoman.accounts.shared_budgets import SharedReservation

Status: TypeAlias = Literal["finished", "failed", "aborted"]
T = TypeVar("T")

NO_RETRY = RetryPolicy(retries=0)

log = logging.getLogger(__name__)


class ModelCall(Generic[T]):
    """One model call: its request, its answer, and what it cost.

    `begin()` it, read on with `next()` until None, then `end()` it; `leave()` it in any case, in a `finally`:
    what has not ended by then is aborted, and settled for what it consumed. An error of `begin()` or `next()`
    has settled it.

    The usage is the provider's. Where the provider reports none, an answer that has begun, or whose client
    left before it began, is estimated and marked so; a request that a provider refused is free. Only this
    class decides that. When an answer fails after it has begun and the call falls back to another route, the
    failed attempt has a record of its own.
    """

    def __init__(
        self,
        payment: Payment,
        routes: ModelRoutes,
        *,
        open_answer: Callable[[Route], UpstreamAnswer[T]],
        prompt: PromptEstimate,
        answer_bounds: AnswerBounds,
        retry: RetryPolicy = NO_RETRY,
    ) -> None:
        self.route: Route | None = None
        """The route that was asked last."""
        self.answer: UpstreamAnswer[T] | None = None
        self.prompt = prompt
        self._payment = payment
        self._routes = routes.allowed_for(payment.origin.identity.models)
        self._open_answer = open_answer
        self._answer_bounds = answer_bounds
        self._retry = retry
        self._reservation: BudgetReservation | None = None
        self._shared: SharedReservation | None = None
        self._admission: Admission | None = None
        self._step: int | None = None
        self._started_at = time.time()
        self._clock_start = time.perf_counter()
        self._first_byte: float | None = None
        self._record: UsageRecord | None = None
        self._needs_price = False
        self._provider_cost: float | None = None
        self._attempt: RouteAttempt | None = None
        self._lost_length: int | None = None
        self._is_refused = False  # by all that were asked so far: no provider works on it
        self._is_paid_as_it_grows = False

    @staticmethod
    def for_events(
        payment: Payment,
        request: ModelRequest,
        *,
        routes: ModelRoutes,
        tracing: Tracing = NO_TRACING,
        retry: RetryPolicy = NO_RETRY,
        on_delta: e.DeltaHandler | None = None,
    ) -> ModelCall[Batch]:
        """Return a call whose answer is read as events; nothing is sent before `begin()`.

        While `next()` waits, deltas of text go to `on_delta`, unless the run's budget counts them.
        """

        def open_answer(route: Route) -> EventAnswer:
            routed = routes.request_for(request, route)
            provider, span = route.provider, tracing.model_call(routed, route.provider)
            handler = on_delta if payment.budget is None else None
            return EventAnswer.of_provider(provider, routed, span=span, model=route.model, on_delta=handler)

        return ModelCall(
            payment,
            routes,
            open_answer=open_answer,
            prompt=RequestPrompt(request, routes.first, named_documents=payment.named_documents),
            answer_bounds=bounds_of(request),
            retry=retry,
        )

    @property
    def usage(self) -> e.Usage | None:
        """The tokens of an ended call, the provider's or a marked estimate; None when nothing is known."""
        return None if self._record is None or self._record.tokens == NO_USAGE else self._record.tokens

    @property
    def cost(self) -> float | None:
        """The cost of an ended call in US dollars; None when it is unknown."""
        if self._record is None:
            return None
        if self._needs_price:
            self._needs_price = False
            price = self._route_price(self._record)
            self._record = with_cost(self._record, price, provider_cost=self._provider_cost)
        return self._record.cost

    async def admit(self, entry: Entry | None = None) -> None:
        """Admit the call under the limits and budgets of its caller; `entry` if it was counted before.

        Raises LimitReached, BudgetExhausted, or BadRequest for a model without a price. The gateway awaits it
        before `begin()`, to respond with the status of that error instead of a ProviderError's.
        """
        meter, identity = self._payment.meter, self._payment.origin.identity
        if meter is None:
            return
        if is_limited := meter.is_limited(identity):
            await self.prompt.count()
        self._admission = await meter.admit(
            identity,
            price=self._payment.price_to_reserve(self._routes.routes[0], self._answer_bounds),
            entry=entry,
            input_tokens=self.prompt.to_reserve() if is_limited else 0,
            answer=self._answer_bounds,
            model=self._routes.model,
        )

    async def reserve(self) -> None:
        """Reserve what the call may cost in the run's budget. BudgetExhausted; ConfigError without a price.

        The agent loop calls it before `begin()`, so that it sends no `start-step` for a step without money.
        """
        payment = self._payment
        payment.calls += 1
        self._step = payment.calls
        if payment.budget is None:
            return
        self._reservation = payment.reservation(self._routes, self._answer_bounds)
        if self._reservation is not None:
            self._shared = payment.shared_reservation(self._reservation)
            await self.prompt.count()
            self._reservation.reserve(self.prompt.to_reserve, self._answer_bounds)

    async def begin(self) -> T | None:
        """Reserve and admit, then ask the routes in order until one answers; return the first item.

        BudgetExhausted when the run's own budget has no room. What the caller's limits refuse is a
        ProviderError `rate_limit` with that error as its cause, unless `admit()` was awaited before.
        """
        if self._step is None:
            await self.reserve()
        if self._admission is None:
            await self._admit_to_run()
        if self._shared is not None:
            await self._shared.reserve()
        self._is_paid_as_it_grows = bool(self._reservation or (self._admission and self._admission.charges))
        try:
            self.answer = await self._start()
            del self._open_answer  # it has the request, and the answer may take long
        except DragomanError as error:
            self.fail(error)
            raise
        except asyncio.CancelledError as cancelled:
            self._is_refused = self._is_refused or isinstance(cancelled.__cause__, ProviderError)
            raise
        if self.answer.progress.started:
            self._first_byte = time.perf_counter() - self._clock_start
        return await self.next()

    async def next(self) -> T | None:
        """Return the next item of the answer; None at its end.

        ProviderError when the answer failed, BudgetExhausted when it outgrows a budget of the run or caller.
        """
        if (answer := self.answer) is None:
            return None
        try:
            item = await answer.receive()
            if self._is_paid_as_it_grows and answer.progress.finish_reason is None:
                await self._grow(answer.progress.text_length)
        except ProviderError as error:
            redacted = self._redact(error)
            await self._count_unreported()
            self.fail(redacted)
            if redacted is error:
                raise
            raise redacted from None
        except DragomanError as error:
            await self._count_unreported()
            self.fail(error)
            raise
        if item is None and self.prompt.may_be_long:
            await self._count_unreported()
        return item

    async def _grow(self, text_length: int) -> None:
        """Reserve more for an answer that outgrows what is reserved for it. BudgetExhausted."""
        if self._reservation is not None:
            more = self._reservation.grow(text_length)
            if more and self._shared is not None:
                await self._shared.grow(more)
        meter, admission, route = self._payment.meter, self._admission, self.route
        if meter is None or admission is None or route is None or not admission.charges:
            return
        if text_length > admission.output_tokens * CHARACTERS_PER_TOKEN:
            price = self._payment.price_to_reserve(route, self._answer_bounds)
            size = self.prompt.to_reserve()
            await meter.grow(admission, price, input_tokens=size, text_length=text_length)

    def end(self) -> UsageRecord:
        """Settle a complete answer; return its record."""
        return self._settle("finished")

    def fail(self, error: DragomanError) -> UsageRecord:
        """Settle an answer that failed, or that a budget has cut."""
        self._routes.fail_attempt(self._attempt, error)
        return self._settle("aborted" if isinstance(error, BudgetExhausted) else "failed", error)

    async def settle_lost(self, text_length: int) -> None:
        """Settle a call that ended with the process which made it: as an estimate, without asking anybody.

        It is charged even where the caller's limits would refuse it now: its provider has answered it.
        """
        payment, self.route = self._payment, self._routes.first
        self._lost_length = text_length
        with suppress(BudgetExhausted, ConfigError):
            await self.reserve()
        try:
            await self.admit()
        except (LimitReached, BudgetExhausted, BadRequest):
            if payment.meter is not None:
                self._admission = payment.meter.admit_lost(payment.origin.identity, payment.price(self.route))
        self._settle("aborted")

    async def leave(self) -> None:
        """Close the upstream connection. A call that has not ended is aborted, and settled."""
        try:
            if self.answer is not None:
                await self.answer.close(abandoned=self._record is None)
        finally:
            if self._attempt is not None:
                self._attempt.end()
            if self._record is None:
                try:
                    await self._count_unreported()
                finally:
                    self._abort()

    def _abort(self) -> None:
        """Settle a call that has not ended, or give back what was reserved for it."""
        if self.route is not None:
            self._settle("aborted")
        else:
            self._release()

    async def _count_unreported(self) -> None:
        """Estimate the prompt of a call that is to be settled without the usage of its provider."""
        if self._record is None and self.answer is not None and self.answer.progress.usage is None:
            await self.prompt.count()

    # ---- before the answer ----------------------------------------------------------------------------

    async def _admit_to_run(self) -> None:
        try:
            await self.admit()
        except (LimitReached, BudgetExhausted, BadRequest) as error:
            self._release()
            raise refused(error) from error
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        """Give everything back: no provider was asked."""
        if self._reservation is not None:
            self._reservation.settle(None, answered=False)
        if self._shared is not None:
            self._shared.release()
        if self._admission is not None:
            self._admission.release()

    async def _start(self) -> UpstreamAnswer[T]:
        """Return the answer that has started, after as many attempts as the policy allows."""
        attempt = 0
        while True:
            try:
                return await self._try_routes()
            except ProviderError as error:
                delay = self._retry.delay(attempt, error, random=random.random)
                if delay is None:
                    await self._suggest_models(error)
                    raise
                log.info("retrying the model in %.1f s: %s", delay, error.message)
                await pause(asyncio.sleep(delay), error)
            attempt += 1

    async def _suggest_models(self, error: ProviderError) -> None:
        """Name the provider's models in its refusal of one that it does not have."""
        if self.route is not None:
            patterns = self._payment.origin.identity.models
            await self._routes.suggest_models(error, self.route, patterns=patterns)

    async def _try_routes(self) -> UpstreamAnswer[T]:
        """Return the answer of the first route that has one."""
        routes = self._routes.routes
        for route, following in zip(routes, [*routes[1:], None], strict=True):
            self.route, self.answer, self._is_refused = route, None, False
            attempt = self._attempt = self._routes.start_attempt(route)
            try:
                self.answer = self._open_answer(route)
                answer = await self.answer.span.propagate(self.answer.start())
                if attempt is not None:
                    attempt.mark_answered()
                return answer
            except (ProviderError, BadRequest) as raised:
                error, self._is_refused = self._failed_attempt(raised), True
                if following is None or not self._routes.allows_fallback(error):
                    raise error from None
                log.warning("%s failed (%s), falling back to %s", route.name, error.message, following.name)
                self._routes.on_fallback(route.name, following.name)
                await self._drop_answer(error)
                await self._reserve_more(following)
        raise Unavailable("no provider is left to ask")

    def _failed_attempt(self, raised: ProviderError | BadRequest) -> ProviderError | BadRequest:
        """End the span of an attempt that failed; return its error without the provider's keys."""
        error = self._redact(raised) if isinstance(raised, ProviderError) else raised
        self._routes.fail_attempt(self._attempt, error)
        if self.answer is not None:
            with self.answer.span as span:
                span.fail(error)
        return error

    async def _reserve_more(self, route: Route) -> None:
        """Reserve what the next route may cost above what the last one might. BudgetExhausted, BadRequest."""
        meter, admission = self._payment.meter, self._admission
        if meter is not None and admission is not None and admission.charges:
            await meter.reserve_more(
                admission,
                self._payment.price_to_reserve(route, self._answer_bounds),
                input_tokens=self.prompt.to_reserve(),
                answer=self._answer_bounds,
                model=route.name,
            )

    async def _drop_answer(self, error: ProviderError | BadRequest) -> None:
        """Close the answer of a route that failed, and pay for what it had written."""
        answer = self.answer
        if answer is None:
            return
        await answer.close(abandoned=True)
        self.answer = None
        if not answer.progress.started and usage_of_error(error) is None:
            return
        record = self._usage_record(answer.progress, "failed", error=error)
        price = self._route_price(record)
        reported = error.cost if isinstance(error, ProviderError) else answer.progress.cost
        if self._admission is None:
            record = with_cost(record, price, provider_cost=reported)
        else:
            shared = () if self._shared is None else self._shared.charges
            record = self._admission.charge(record, price=price, provider_cost=reported, shared=shared)
        self._payment.add(record.cost)
        if self._reservation is not None:
            self._reservation.budget.settle(0.0, record.cost or 0.0)

    def _redact(self, error: ProviderError) -> ProviderError:
        """Return the error without the provider's keys."""
        provider = self.route.provider if self.route is not None else None
        return provider.redact_error(error) if isinstance(provider, RemoteProvider) else error

    # ---- settlement -----------------------------------------------------------------------------------

    def _settle(self, status: Status, error: DragomanError | None = None) -> UsageRecord:
        """Write the record, release the reservations, end the span; only the first time counts."""
        if self._record is not None:
            return self._record
        lost = AnswerProgress(text_length=self._lost_length or 0)
        progress = self.answer.progress if self.answer is not None else lost
        record = self._usage_record(progress, status, error=error)
        self._provider_cost = error.cost if isinstance(error, ProviderError) else progress.cost
        if self._admission is not None:
            shares = () if self._shared is None else self._shared.take()
            self._record = self._admission.settle(
                record, price=self._route_price(record), provider_cost=self._provider_cost, shares=shares
            )
        else:
            self._record, self._needs_price = record, True
        if self._reservation is not None and (self._payment.is_limited or self._payment.prices_loaded):
            self._reservation.settle(self.cost, answered=self._first_byte is not None)
        if self._needs_price:
            self._payment.add_later(lambda: self.cost)
        else:  # not the call itself: a cycle waits for the garbage collector
            self._payment.add(self._record.cost)
        self._end_span(progress, status, error=error)
        return self._record

    def _usage_record(
        self, progress: AnswerProgress, status: Status, *, error: DragomanError | None
    ) -> UsageRecord:
        origin, route = self._payment.origin, self.route
        tokens = (None if error is None else usage_of_error(error)) or settled_usage(
            progress,
            is_finished=status == "finished",
            was_read=status == "aborted" and route is not None and not self._is_refused,
            prompt=lambda: self.prompt.tokens,
        )
        return UsageRecord(
            id=sortable_id("use" if self._lost_length is None else LOST_PREFIX),
            owner=origin.identity.owner,
            status=status,
            started_at=self._started_at,
            run_id=origin.run_id,
            session_id=origin.session_id,
            key_id=origin.identity.key_id,
            step=self._step if origin.request_id is None else None,
            provider=None if route is None else route.provider.name,
            model_asked=self._routes.model,
            model_served=progress.model or (None if route is None else route.model),
            tokens=tokens,
            duration=time.perf_counter() - self._clock_start,
            finish_reason=progress.finish_reason,
            request_id=origin.request_id,
            door=origin.endpoint,
            key_name=progress.key,
            first_byte=self._first_byte,
            upstream_status=error.upstream_status if isinstance(error, ProviderError) else None,
            error=None if error is None else error.code,
            call_id=origin.call_id,
        )

    def _route_price(self, record: UsageRecord) -> Price | None:
        admission = self._admission if self.route is self._routes.routes[0] else None
        return self._payment.price_of(self.route, record.tokens, price=admission.price if admission else None)

    def _end_span(self, progress: AnswerProgress, status: Status, *, error: DragomanError | None) -> None:
        if self.answer is None or not self.answer.span.is_recording:
            return
        with self.answer.span as span:  # without a finish or a failure it counts as cancelled
            if error is not None:
                span.fail(error)
            elif status == "finished":
                finish = progress.finish or e.FinishStep(model=progress.model)
                span.finish(replace(finish, usage=self.usage))
