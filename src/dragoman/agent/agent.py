"""The agent as a library: a model with operations, MCP servers, a budget and hooks, in any program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Self, Unpack

from msgspec.structs import replace

from dragoman.accounts.price import Price
from dragoman.accounts.prices import Prices
from dragoman.agent.context import ContextPolicy, Fitting
from dragoman.agent.conversation import Messages, divided, read
from dragoman.agent.loop import Loop
from dragoman.agent.manual import ManualDesk
from dragoman.agent.overhead import Overhead, overhead_of
from dragoman.agent.preparing import Preparing
from dragoman.agent.profile import Profile
from dragoman.agent.result import Result
from dragoman.agent.servers import McpServer
from dragoman.agent.settings import (
    USUAL_LIMITS,
    AgentOptions,
    Details,
    RunLimits,
    Settings,
    SpawnOptions,
)
from dragoman.agent.spawn import Run
from dragoman.agent.spending import UNGATED, Spending, unpriced
from dragoman.agent.stops import one_of
from dragoman.agent.structured import Output
from dragoman.agent.summary import Summariser
from dragoman.agent.turn import Turn
from dragoman.agent.workshop import Choice, Rulings, Workshop
from dragoman.errors import ConfigError, Conflict
from dragoman.fold import Fold
from dragoman.ids import new_id
from dragoman.mcp.spec import ServerStatus
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.operations.registry import Addable
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import RetryPolicy

UNGATED_NOTICE = "the provider sees to its budget itself: max_budget_usd is not enforced between its steps"


class Agent:
    """A model with tools. `spawn` asks it; what that needs is made when it is first asked.

    `model` is a Model (`OpenAIProvider(...).model("gpt-5.1")`) or a name, `openai/gpt-5.1`, for which the
    environment has the key. `operations` are functions marked with `@operation`, tools that were built,
    modules that hold some. `mcp` are servers: a path or a command, a URL, a ServerSpec; `async with agent:`
    connects them. The options are told at `Settings`.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str | None = None,
        operations: Sequence[Addable] = (),
        mcp: Sequence[McpServer] = (),
        limits: RunLimits = USUAL_LIMITS,
        **options: Unpack[AgentOptions],
    ) -> None:
        self.instructions = instructions
        self.limits = limits
        self.settings = said = settings_of(options)
        self._given = model
        self._workshop = Workshop(
            operations,
            mcp,
            rulings=Rulings(policy=said.policy, approvals=said.approvals, ledger=said.ledger),
        )
        self._stops = one_of(said.stop_when)
        self._output = said.output if isinstance(said.output, Output | None) else Output(said.output)
        self._prices: Prices | None = None
        self._loading: asyncio.Future[None] | None = None
        self._resolved: dict[str, Model] = {}
        self._runs: set[Run] = set()

    def __repr__(self) -> str:
        return f"Agent({self._given!r}, name={self.settings.name!r})"

    async def __aenter__(self) -> Self:
        await self._workshop.open()
        if self.limits.max_budget_usd is not None:
            await self._load()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    async def cleanup(self) -> None:
        """Abort what runs, let MCP servers go, close what was opened. It may be used again afterwards."""
        runs = list(self._runs)
        for run in runs:
            run.abort("the agent is closed")
        await asyncio.gather(*(run.closed() for run in runs))
        models, self._resolved = list(self._resolved.values()), {}
        if self.settings.hooks is not None:
            self.settings.hooks.close()
        try:
            await self._workshop.close()
        finally:
            for model in models:
                await model.provider.close()

    @property
    def model(self) -> Model:
        """The model that it thinks with. ConfigError for a name that cannot be resolved."""
        return self._find(self._given)

    @property
    def servers(self) -> Sequence[ServerStatus]:
        """How its MCP servers stand."""
        return self._workshop.servers()

    def overhead(self) -> Overhead:
        """The tools that the model is shown, with about how many tokens each takes of every request."""
        return overhead_of(self._workshop.toolbox(self._choice(Details())).tools, self.instructions)

    def spawn(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        allowed_tools: Sequence[str] | None = None,
        disallowed_tools: Sequence[str] | None = None,
        **details: Unpack[SpawnOptions],
    ) -> Run:
        """Begin to answer, and give back at once a handle on the run.

        `system` takes the place of the instructions. Tools are named as the model sees them (`math_add`), by
        id or by pattern; where tools are allowed, only these are, whatever is disallowed. BadRequest for
        messages that cannot be sent, ConfigError for a budget on a model without a price.
        """
        said = details_of(details)
        choice = replace(self._choice(said), allowed=allowed_tools, disallowed=disallowed_tools)
        return self._begin(self._turn(messages, said, choice=choice, system=system), ManualDesk())

    def run_sync(
        self, messages: Messages, *, system: str | None = None, **details: Unpack[SpawnOptions]
    ) -> Result:
        """The result, in a script: connects, asks, waits and closes. Conflict where an event loop runs.

        Nobody can answer an approval meanwhile, so the run ends there: `unknown`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._alone(messages, details_of(details), system=system))
        raise Conflict("run_sync cannot wait inside an event loop", hint="await agent.spawn(...).result")

    async def _alone(self, messages: Messages, said: Details, *, system: str | None) -> Result:
        model = self.model
        try:
            async with self:
                turn = self._turn(messages, said, choice=self._choice(said), system=system)
                return await self._begin(turn, None).result
        finally:
            if isinstance(model.provider, RemoteProvider):
                await model.provider.close()

    def _turn(self, messages: Messages, said: Details, *, choice: Choice, system: str | None) -> Turn:
        """All that the run needs. Refuses at once what cannot begin."""
        history, answer = divided(read(messages))
        if not self._workshop.is_open:
            raise Conflict("the MCP servers are not connected", hint="use the agent in `async with agent:`")
        model, options, limits = self.model, self.settings, said.limits or self.limits
        context = self._context(said, limits)
        return Turn(
            agent=Profile(
                name=options.name,
                model=model.id,
                instructions=self.instructions if system is None else system,
                max_steps=limits.max_steps,
                options={**model.options, **options.options},
            ),
            provider=model.provider,
            model=model.name,
            history=history,
            fold=Fold(answer),
            toolbox=self._workshop.toolbox(choice),
            context=context,
            tracing=options.tracing,
            stops=self._stops,
            prepare=Preparing(options.on_prepare_step, self._find) if options.on_prepare_step else None,
            hooks=options.hooks.loop if options.hooks is not None else None,
            window=self._window(model) if options.context is not None else None,
            spending=self._spending(model, context.budget),
            output=self._output,
            retry=RetryPolicy(retries=options.retries),
            notices=False,
        )

    def _begin(self, turn: Turn, desk: ManualDesk | None) -> Run:
        """The run. Conflict where no event loop is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise Conflict("there is no event loop to run in", hint="in a script use run_sync") from None
        budget = turn.context.budget
        skipped = budget is not None and budget.is_limited and turn.provider.family in UNGATED
        run = Run(
            Loop(replace(turn, desk=desk)),
            desk,
            on_end=self._runs.discard,
            notices=(UNGATED_NOTICE,) if skipped else (),
        )
        self._runs.add(run)
        return run

    def _choice(self, said: Details) -> Choice:
        """The tools that it has for this run."""
        own = self.settings
        client = own.client_tools if said.client_tools is None else said.client_tools
        manual = own.manual if said.manual is None else said.manual
        return Choice(client=tuple(client), manual=manual, meta=own.meta_tools)

    def _context(self, said: Details, limits: RunLimits) -> Context:
        """What all calls of the run stand under: what is above it, if it is part of a call."""
        above = said.context
        now = asyncio.get_running_loop().time() if limits.timeout is not None else 0.0
        ends = [above.deadline] if above is not None and above.deadline is not None else []
        ends += [now + limits.timeout] if limits.timeout is not None else []
        hooks = self.settings.hooks
        inside = above or Context(identity=self.settings.identity)
        return replace(
            inside,
            run_id=new_id("run"),
            session_id=said.session_id or new_id("ses"),
            agent=self.settings.name,
            deadline=min(ends) if ends else None,
            budget=budget_of(limits, inside.budget),
            told=True,
            hooks=hooks.calls if hooks is not None else inside.hooks,
            tool_call_id=None,
            report=None,
        )

    def _spending(self, model: Model, budget: Budget | None) -> Spending:
        """What counts the money. ConfigError where a budget is to be kept without a price."""
        limited = budget is not None and budget.is_limited and model.provider.family not in UNGATED
        if limited and self._price(model.provider, model.name) is None:
            raise unpriced(model.id)
        loading = self._loading is None or not self._loading.done()
        needed = loading and not limited and self._is_priced(model.provider)
        return Spending(self._price, budget, loaded=self._load if needed else None)

    def _price(self, provider: Provider, model: str) -> Price | None:
        base_url = provider.server.base_url if isinstance(provider, RemoteProvider) else None
        return self._known().find(provider.name, model, base_url=base_url, type=provider.family)

    def _known(self) -> Prices:
        if self._prices is None:
            self._prices = Prices(self.settings.prices)
        return self._prices

    async def _load(self) -> None:
        """Load the prices in a thread, once: else the first run that needs them would wait for them."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._known().warm())
        await asyncio.shield(self._loading)

    def _is_priced(self, provider: Provider) -> bool:
        """Whether the price list may know its models."""
        return isinstance(provider, RemoteProvider) and provider.family != "ollama"

    def _window(self, model: Model) -> Fitting:
        policy = self.settings.context or ContextPolicy()
        if policy.kind == "summarise" and policy.summarise is None:
            policy = replace(policy, summarise=Summariser(model.provider, model.name))
        return Fitting(policy)

    def _find(self, model: Model | str) -> Model:
        """The model of this name; one that it made itself is its own to close."""
        if isinstance(model, Model):
            return model
        if not isinstance(model, str):
            raise ConfigError(f"a model is a Model or a name like 'openai/gpt-5.1', got {model!r:.100}")
        found = self._resolved.get(model)
        if found is None:
            from dragoman.providers.models import resolve  # late: it loads every provider that there is

            found = self._resolved[model] = resolve(model, os.environ)
        return found


def settings_of(options: AgentOptions) -> Settings:
    """The options, checked. TypeError for one that there is not."""
    return Settings(**options)


def details_of(details: SpawnOptions) -> Details:
    """The same for those of one run."""
    return Details(**details)


def budget_of(limits: RunLimits, above: Budget | None) -> Budget | None:
    """The budget of a run: its own within the one above, the one above, or none."""
    if limits.max_budget_usd is None and limits.max_calls is None:
        return above
    return Budget(usd=limits.max_budget_usd, calls=limits.max_calls, above=above)
