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
from dragoman.agent.agent_tools import AgentTools, CallServices, ToolSelection
from dragoman.agent.borrowed_tools import with_borrowed_tools
from dragoman.agent.external_inputs import ExternalInputs
from dragoman.agent.input_messages import InputMessages, parse_conversation, split_open_answer
from dragoman.agent.loop import Loop
from dragoman.agent.mcp_servers import McpServer
from dragoman.agent.model_prices import ModelPrices
from dragoman.agent.result import Result
from dragoman.agent.run import Run
from dragoman.agent.settings import (
    DEFAULT_LIMITS,
    DEFAULT_SETTINGS,
    AgentArguments,
    AgentOptions,
    AgentSettings,
    RunLimits,
    SpawnOptions,
    SpawnSettings,
)
from dragoman.agent.spec import AgentSpec
from dragoman.agent.stop_conditions import combined_condition
from dragoman.agent.structured_output import Output
from dragoman.agent.subagent import NAMESPACE, Assignment, Subagent
from dragoman.agent.toolbox import Overhead, measure_overhead
from dragoman.agent.turn import StepPreparer, TurnSpec
from dragoman.errors import BadRequest, ConfigError, Conflict
from dragoman.fold import Fold
from dragoman.ids import new_id
from dragoman.mcp.server_spec import ServerStatus
from dragoman.model_request import ModelRequest
from dragoman.operations.budget import Budget
from dragoman.operations.call_hooks import stack_hooks
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.registry import OperationSource
from dragoman.providers.model import Model
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import RetryPolicy

T = TypeVar("T", default=Any)
U = TypeVar("U")
BUDGET_NOT_ENFORCED = (
    "the provider sees to its budget itself: max_budget_usd is not enforced between its steps"
)


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
        self: Agent[None], model: Model | str, *, output: None = None, **options: Unpack[AgentArguments]
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[U], model: Model | str, *, output: type[U] | Output[U], **options: Unpack[AgentArguments]
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[Any], model: Model | str, *, output: Any, **options: Unpack[AgentArguments]
    ) -> None: ...

    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str | None = None,
        operations: Sequence[OperationSource] = (),
        mcp: Sequence[McpServer] = (),
        limits: RunLimits = DEFAULT_LIMITS,
        output: Any = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        self.instructions = instructions
        self.limits = limits
        self.settings = said = make_settings(options)
        self._model_or_name = model
        self._tools = AgentTools(
            operations,
            mcp,
            services=CallServices(policy=said.policy, approvals=said.approvals, ledger=said.ledger),
        )
        self._stop_condition = combined_condition(said.stop_when)
        self._output = output if isinstance(output, Output | None) else Output(output)
        self._prices = ModelPrices(said.prices)
        self._named_models: dict[str, Model] | None = None  # those that a name was given for
        self._runs: dict[Run[T], None] = {}  # while it is empty, a quarter of what a set takes

    def __repr__(self) -> str:
        return f"Agent({self._model_or_name!r}, name={self.settings.name!r})"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    async def connect(self) -> None:
        """Connect the MCP servers and wait for what each offers, as `async with` does first. Unavailable."""
        await self._tools.open()
        if self.limits.max_budget_usd is not None:
            await self._prices.load()

    async def cleanup(self) -> None:
        """Abort what runs, let MCP servers go, close what was opened. It may be used again afterwards."""
        runs = list(self._runs)
        for run in runs:
            run.abort("the agent is closed")
        await asyncio.gather(*(run.wait_closed() for run in runs))
        models, self._named_models = list((self._named_models or {}).values()), None
        if self.settings.hooks is not None:
            await self.settings.hooks.aclose()
        try:
            await self._tools.close()
        finally:
            for model in models:
                await model.provider.close()

    @property
    def model(self) -> Model:
        """The model that it thinks with. ConfigError for a name that cannot be resolved."""
        return self._find_model(self._model_or_name)

    @property
    def servers(self) -> Sequence[ServerStatus]:
        """How its MCP servers stand."""
        return self._tools.servers()

    def overhead(self) -> Overhead:
        """The tools that the model is shown, with about how many tokens each takes of every request."""
        return measure_overhead(
            self._tools.toolbox(self._tool_selection(SpawnSettings())).tools, self.instructions
        )

    def spawn(
        self,
        messages: InputMessages,
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
        said = make_spawn_settings(details)
        choice = with_tool_names(self._tool_selection(said), allowed_tools, disallowed=disallowed_tools)
        turn = self._make_turn(messages, said, selection=choice, system=system)
        return self._start_run(turn, ExternalInputs(), selection=choice)

    def as_operation(
        self, description: str, *, name: str | None = None, namespace: str = NAMESPACE
    ) -> Operation:
        """This agent as an operation for others: `Agent(..., operations=[helper.as_operation("Does ...")])`.

        It is told a `prompt`, and sees nothing else of their conversation. They are shown what it does as
        preliminary output, and get its final text only, or its value where it has an `output`. It spends from
        their budget, ends by their deadline and with their abort, and may do what they may do, if it may.
        """
        return Subagent(name or self.settings.name, self._subagent_turn).operation(
            description, namespace=namespace, timeout=self.limits.timeout
        )

    async def _subagent_turn(self, assignment: Assignment) -> TurnSpec:
        """The turn of an assignment of another agent's."""
        inside = assignment.context
        said = SpawnSettings(context=inside, session_id=inside.session_id)
        messages = [message for message in (assignment.prompt, assignment.answer) if message is not None]
        turn = self._make_turn(messages, said, selection=self._tool_selection(said), system=None)
        context = replace(turn.context, run_id=inside.run_id, agent=inside.agent)
        return replace(
            turn,
            context=context,
            input_events=assignment.input_events,
            nested_approvals=assignment.nested_approvals,
        )

    def run_sync(
        self,
        messages: InputMessages,
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
            said = make_spawn_settings(details)
            choice = with_tool_names(self._tool_selection(said), allowed_tools, disallowed=disallowed_tools)
            return asyncio.run(self._run_once(messages, said, selection=choice, system=system))
        raise Conflict("run_sync cannot wait inside an event loop", hint="await agent.spawn(...).result")

    async def _run_once(
        self,
        messages: InputMessages,
        spawn_settings: SpawnSettings,
        *,
        selection: ToolSelection,
        system: str | None,
    ) -> Result[T]:
        model = self.model
        try:
            async with self:
                turn = self._make_turn(messages, spawn_settings, selection=selection, system=system)
                return await self._start_run(turn, None, selection=selection).result
        finally:
            if isinstance(model.provider, RemoteProvider):
                await model.provider.close()

    def _make_turn(
        self,
        messages: InputMessages,
        spawn_settings: SpawnSettings,
        *,
        selection: ToolSelection,
        system: str | None,
    ) -> TurnSpec:
        """All that the run needs. Refuses at once what cannot begin."""
        history, answer = split_open_answer(parse_conversation(messages))
        if not self._tools.is_open:
            raise Conflict("the MCP servers are not connected", hint="use the agent in `async with agent:`")
        model, options, limits = self.model, self.settings, spawn_settings.limits or self.limits
        context = self._run_context(spawn_settings, limits)
        spending = self._prices.spending(model, context.budget)
        toolbox = self._tools.toolbox(selection)
        find = with_borrowed_tools(self._find_model, toolbox, context=context)
        return TurnSpec(
            agent=AgentSpec(
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
            stop_condition=self._stop_condition,
            prepare_step=StepPreparer(options.on_prepare_step, find) if options.on_prepare_step else None,
            hooks=options.hooks.loop if options.hooks is not None else None,
            context_window=self._prices.context_fitter(model, options.context, spending=spending),
            spending=spending,
            output=self._output,
            retry_policy=RetryPolicy.of(options.retries),
            adds_notices=False,
        )

    def _start_run(
        self, turn: TurnSpec, external_inputs: ExternalInputs | None, *, selection: ToolSelection
    ) -> Run[T]:
        """The run. Conflict where no event loop is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise Conflict("there is no event loop to run in", hint="in a script use run_sync") from None
        notices = (*self._tools.unknown_names(selection), *initial_notices(turn))
        run: Run[T] = Run(
            Loop(replace(turn, external_inputs=external_inputs)),
            external_inputs,
            on_end=self._remove_run,
            notices=notices,
        )
        self._runs[run] = None
        return run

    def _remove_run(self, run: Run[T]) -> None:
        self._runs.pop(run, None)

    def _tool_selection(self, spawn_settings: SpawnSettings) -> ToolSelection:
        """The tools that it has for this run."""
        own = self.settings
        client = own.client_tools if spawn_settings.client_tools is None else spawn_settings.client_tools
        manual = own.manual if spawn_settings.manual is None else spawn_settings.manual
        return ToolSelection(client_tools=tuple(client), manual=manual, meta_tools=own.meta_tools)

    def _run_context(self, spawn_settings: SpawnSettings, limits: RunLimits) -> Context:
        """What all calls of the run stand under: what is above it, if it is part of a call."""
        above = spawn_settings.context
        now = asyncio.get_running_loop().time() if limits.timeout is not None else 0.0
        ends = [above.deadline] if above is not None and above.deadline is not None else []
        ends += [now + limits.timeout] if limits.timeout is not None else []
        hooks = self.settings.hooks
        inside = above or Context(identity=self.settings.identity)
        return replace(
            inside,
            run_id=new_id("run"),
            session_id=spawn_settings.session_id or new_id("ses"),
            agent=self.settings.name,
            deadline=min(ends) if ends else None,
            budget=run_budget(limits, inside.budget),
            for_model=True,
            hooks=stack_hooks(inside.hooks, hooks.calls if hooks is not None else None),
            tool_call_id=None,
            on_progress=None,
        )

    def _find_model(self, model: Model | str) -> Model:
        """The model of this name; one that it made itself is its own to close."""
        if isinstance(model, Model):
            return model
        if not isinstance(model, str):
            raise ConfigError(f"a model is a Model or a name like 'openai/gpt-5.1', got {model!r:.100}")
        if self._named_models is None:
            self._named_models = {}
        found = self._named_models.get(model)
        if found is None:
            from dragoman.providers.resolve import resolve  # late: it loads every provider that there is

            found = self._named_models[model] = resolve(model, os.environ)
        return found


def make_settings(options: AgentOptions) -> AgentSettings:
    """The options, checked. TypeError for one that there is not."""
    return AgentSettings(**options) if options else DEFAULT_SETTINGS


def make_spawn_settings(details: SpawnOptions) -> SpawnSettings:
    """The same for those of one run."""
    return SpawnSettings(**details)


def with_tool_names(
    selection: ToolSelection, allowed: Sequence[str] | None, *, disallowed: Sequence[str] | None
) -> ToolSelection:
    """The choice with the tools of one run; a single name may stand without a list."""
    names = [[said] if isinstance(said, str) else said for said in (allowed, disallowed)]
    return replace(selection, allowed=names[0], disallowed=names[1])


def initial_notices(turn: TurnSpec) -> list[str]:
    """What a caller should know of a run before it begins: a budget, or options, of no effect."""
    provider, budget = turn.provider, turn.context.budget
    native = provider.family in UNGATED
    notices = [BUDGET_NOT_ENFORCED] if native and budget is not None and budget.is_limited else []
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


def run_budget(limits: RunLimits, outer: Budget | None) -> Budget | None:
    """The budget of a run: its own within the one above, the one above, or none."""
    if limits.max_budget_usd is None and limits.max_calls is None:
        return outer
    return Budget(usd=limits.max_budget_usd, calls=limits.max_calls, parent=outer)
