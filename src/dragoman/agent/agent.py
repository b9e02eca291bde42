"""The agent as a library: a model with operations, MCP servers, a budget and hooks, in any program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, Self, Unpack, overload

from msgspec.structs import replace
from typing_extensions import TypeVar

from dragoman.accounts.payment import UNGATED
from dragoman.agent.conversation import Messages, divided, read
from dragoman.agent.lending import lending
from dragoman.agent.loop import Loop
from dragoman.agent.manual import ManualDesk
from dragoman.agent.profile import Profile
from dragoman.agent.result import Result
from dragoman.agent.servers import McpServer
from dragoman.agent.settings import (
    USUAL_LIMITS,
    USUAL_SETTINGS,
    AgentOptions,
    AllOptions,
    Details,
    RunLimits,
    Settings,
    SpawnOptions,
)
from dragoman.agent.spawn import Run
from dragoman.agent.stops import one_of
from dragoman.agent.structured import Output
from dragoman.agent.subagent import NAMESPACE, Assignment, Subagent
from dragoman.agent.tariff import Tariff
from dragoman.agent.toolbox import Overhead, overhead_of
from dragoman.agent.turn import Preparing, Turn
from dragoman.agent.workshop import Choice, Rulings, Workshop
from dragoman.errors import BadRequest, ConfigError, Conflict
from dragoman.fold import Fold
from dragoman.ids import new_id
from dragoman.mcp.spec import ServerStatus
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.operations.hook import stacked
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Addable
from dragoman.providers.model import Model
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import RetryPolicy
from dragoman.request import ModelRequest

T = TypeVar("T", default=Any)
U = TypeVar("U")
UNGATED_NOTICE = "the provider sees to its budget itself: max_budget_usd is not enforced between its steps"


class Agent(Generic[T]):
    """A model with tools. `spawn` asks it; what that needs is made when it is first asked.

    `model` is a Model (`OpenAIProvider(...).model("gpt-5.1")`) or a name, `openai/gpt-5.1`, for which the
    environment has the key. `operations` are functions marked with `@operation`, tools that were built,
    modules that hold some. `mcp` are servers: a path or a command, a URL, a ServerSpec; `async with agent:`
    connects them. With `output=City` it is an `Agent[City]`, whose runs end with a City in `result.output`;
    without, `output` is None.

    Of the options, `hooks` are asked before and after what it does. `stop_when` ends a run after a step,
    `on_prepare_step` changes a step. `context` keeps the conversation within the model's limit. `retries` is
    how often a transient failure of a model request is tried again, or a RetryPolicy that also says after how
    long; 0, since whoever runs the agent often does that already. `options` go along with each request.
    `client_tools` are run outside, with `manual` all tools are. `meta_tools` shows the four meta-tools
    instead of all tools; None: when there are many. `prices` are by pattern of `provider/model`. `policy`,
    `approvals` and `ledger` are those of calls, `identity` is whom they are for, `name` what it is called,
    `tracing` where its spans go.

        agent = Agent("openai/gpt-5.1", operations=[add], limits=RunLimits(max_budget_usd=0.10))
        async with agent:
            run = agent.spawn("What is 2 + 2?")
            async for event in run.events():
                if event.type == "text-delta":
                    print(event.delta, end="")
            result = await run.result
        if result.exit_reason == "crashed":
            print(result.error.message)
    """

    @overload
    def __init__(
        self: Agent[None], model: Model | str, *, output: None = None, **options: Unpack[AllOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[U], model: Model | str, *, output: type[U] | Output[U], **options: Unpack[AllOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[Any], model: Model | str, *, output: Any, **options: Unpack[AllOptions]
    ) -> None: ...

    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str | None = None,
        operations: Sequence[Addable] = (),
        mcp: Sequence[McpServer] = (),
        limits: RunLimits = USUAL_LIMITS,
        output: Any = None,
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
        self._output = output if isinstance(output, Output | None) else Output(output)
        self._tariff = Tariff(said.prices)
        self._resolved: dict[str, Model] | None = None  # those that a name was given for
        self._runs: dict[Run[T], None] = {}  # while it is empty, a quarter of what a set takes

    def __repr__(self) -> str:
        return f"Agent({self._given!r}, name={self.settings.name!r})"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    async def connect(self) -> None:
        """Connect the MCP servers and wait for what each offers, as `async with` does first. Unavailable."""
        await self._workshop.open()
        if self.limits.max_budget_usd is not None:
            await self._tariff.load()

    async def cleanup(self) -> None:
        """Abort what runs, let MCP servers go, close what was opened. It may be used again afterwards."""
        runs = list(self._runs)
        for run in runs:
            run.abort("the agent is closed")
        await asyncio.gather(*(run.closed() for run in runs))
        models, self._resolved = list((self._resolved or {}).values()), None
        if self.settings.hooks is not None:
            await self.settings.hooks.aclose()
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
    ) -> Run[T]:
        """Begin to answer, and give back at once a handle on the run.

        `messages` are a text or a conversation; `system` takes the place of the instructions. Tools are named
        as the model sees them (`math_add`), by id or by pattern; where tools are allowed, only these are,
        whatever is disallowed. `session_id` names the conversation; `limits`, `manual` and `client_tools`
        take the place of the agent's own; `context` is that of a call which this run is a part of. BadRequest
        for messages that cannot be sent, ConfigError for a budget on a model without a price.

            run = agent.spawn("What is 2 + 2?", allowed_tools=["math.*"], limits=RunLimits(timeout=60))
            first = await run.result
            run = agent.spawn([*first.messages, {"role": "user", "content": "And 3 + 3?"}])
        """
        said = details_of(details)
        choice = chosen(self._choice(said), allowed_tools, disallowed=disallowed_tools)
        turn = self._turn(messages, said, choice=choice, system=system)
        return self._begin(turn, ManualDesk(), choice=choice)

    def as_operation(
        self, description: str, *, name: str | None = None, namespace: str = NAMESPACE
    ) -> Operation:
        """This agent as an operation for others: `Agent(..., operations=[helper.as_operation("Does ...")])`.

        It is told a `prompt`, and sees nothing else of their conversation. They are shown what it does as
        preliminary output, and get its final text only, or its value where it has an `output`. It spends from
        their budget, ends by their deadline and with their abort, and may do what they may do, if it may.
        """
        return Subagent(name or self.settings.name, self._assigned).operation(
            description, namespace=namespace, timeout=self.limits.timeout
        )

    async def _assigned(self, assignment: Assignment) -> Turn:
        """The turn of an assignment of another agent's."""
        inside = assignment.context
        said = Details(context=inside, session_id=inside.session_id)
        messages = [message for message in (assignment.prompt, assignment.answer) if message is not None]
        turn = self._turn(messages, said, choice=self._choice(said), system=None)
        context = replace(turn.context, run_id=inside.run_id, agent=inside.agent)
        return replace(turn, context=context, given=assignment.given, task=assignment.task)

    def run_sync(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        allowed_tools: Sequence[str] | None = None,
        disallowed_tools: Sequence[str] | None = None,
        **details: Unpack[SpawnOptions],
    ) -> Result[T]:
        """The result, in a script: connects, asks, waits and closes. Conflict where an event loop runs.

            print(Agent("openai/gpt-5.1").run_sync("What is 2 + 2?").text)

        Nobody can answer an approval meanwhile, so the run ends there: `unknown`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            said = details_of(details)
            choice = chosen(self._choice(said), allowed_tools, disallowed=disallowed_tools)
            return asyncio.run(self._alone(messages, said, choice=choice, system=system))
        raise Conflict("run_sync cannot wait inside an event loop", hint="await agent.spawn(...).result")

    async def _alone(
        self, messages: Messages, said: Details, *, choice: Choice, system: str | None
    ) -> Result[T]:
        model = self.model
        try:
            async with self:
                turn = self._turn(messages, said, choice=choice, system=system)
                return await self._begin(turn, None, choice=choice).result
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
        spending = self._tariff.spending(model, context.budget)
        toolbox = self._workshop.toolbox(choice)
        find = lending(self._find, toolbox, context=context)
        return Turn(
            agent=Profile(
                name=options.name,
                model=model.id,
                instructions=self.instructions if system is None else system,
                max_steps=limits.max_steps,
                options={**model.options, **options.options},
            ),
            provider=find(model).provider,
            model=model.name,
            history=history,
            fold=Fold(answer),
            toolbox=toolbox,
            context=context,
            tracing=options.tracing,
            stops=self._stops,
            prepare=Preparing(options.on_prepare_step, find) if options.on_prepare_step else None,
            hooks=options.hooks.loop if options.hooks is not None else None,
            window=self._tariff.window(model, options.context, spending=spending),
            spending=spending,
            output=self._output,
            retry=RetryPolicy.of(options.retries),
            notices=False,
        )

    def _begin(self, turn: Turn, desk: ManualDesk | None, *, choice: Choice) -> Run[T]:
        """The run. Conflict where no event loop is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise Conflict("there is no event loop to run in", hint="in a script use run_sync") from None
        notices = (*self._workshop.unknown(choice), *notices_of(turn))
        run: Run[T] = Run(Loop(replace(turn, desk=desk)), desk, on_end=self._ended, notices=notices)
        self._runs[run] = None
        return run

    def _ended(self, run: Run[T]) -> None:
        self._runs.pop(run, None)

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
            hooks=stacked(inside.hooks, hooks.calls if hooks is not None else None),
            tool_call_id=None,
            report=None,
        )

    def _find(self, model: Model | str) -> Model:
        """The model of this name; one that it made itself is its own to close."""
        if isinstance(model, Model):
            return model
        if not isinstance(model, str):
            raise ConfigError(f"a model is a Model or a name like 'openai/gpt-5.1', got {model!r:.100}")
        if self._resolved is None:
            self._resolved = {}
        found = self._resolved.get(model)
        if found is None:
            from dragoman.providers.models import resolve  # late: it loads every provider that there is

            found = self._resolved[model] = resolve(model, os.environ)
        return found


def settings_of(options: AgentOptions) -> Settings:
    """The options, checked. TypeError for one that there is not."""
    return Settings(**options) if options else USUAL_SETTINGS


def details_of(details: SpawnOptions) -> Details:
    """The same for those of one run."""
    return Details(**details)


def chosen(choice: Choice, allowed: Sequence[str] | None, *, disallowed: Sequence[str] | None) -> Choice:
    """The choice with the tools of one run; a single name may stand without a list."""
    names = [[said] if isinstance(said, str) else said for said in (allowed, disallowed)]
    return replace(choice, allowed=names[0], disallowed=names[1])


def notices_of(turn: Turn) -> list[str]:
    """What a caller should know of a run before it begins: a budget, or options, of no effect."""
    provider, budget = turn.provider, turn.context.budget
    native = provider.family in UNGATED
    notices = [UNGATED_NOTICE] if native and budget is not None and budget.is_limited else []
    if not (native or turn.agent.options):
        return notices
    request = ModelRequest(
        model=turn.model,
        messages=turn.history[-1:],
        tools=turn.toolbox.tools if native else (),
        options=turn.agent.options,
    )
    with suppress(BadRequest):  # the run itself will say so
        left = provider.check(request)
        notices += [f"{turn.agent.model} has no word for {name!r}: it is not told" for name in left]
    return notices


def budget_of(limits: RunLimits, above: Budget | None) -> Budget | None:
    """The budget of a run: its own within the one above, the one above, or none."""
    if limits.max_budget_usd is None and limits.max_calls is None:
        return above
    return Budget(usd=limits.max_budget_usd, calls=limits.max_calls, above=above)
