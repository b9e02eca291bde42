"""The agent as a library: a model with operations, MCP servers, a budget and hooks, in any program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Self, Unpack, overload

from msgspec.structs import replace
from typing_extensions import TypeVar

from dragoman.accounts.payment import SELF_BUDGETED
from dragoman.agent.argument_checks import AGENT_ARGUMENTS, RUN_ARGUMENTS, check_arguments
from dragoman.agent.event_loop_resources import ResourcesByLoop
from dragoman.agent.external_inputs import ExternalInputs
from dragoman.agent.input_messages import InputMessages, parse_conversation, split_open_answer
from dragoman.agent.loop import Loop
from dragoman.agent.mcp_server_specs import McpServer
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
from dragoman.agent.subagent import NAMESPACE, Assignment, Subagent, check_depth
from dragoman.agent.tools.agent_tools import AgentTools, CallServices, ToolSelection
from dragoman.agent.tools.run_mcp_server import with_agent_tools
from dragoman.agent.tools.toolbox import Overhead, measure_overhead
from dragoman.agent.turn_spec import StepPreparer, TurnSpec
from dragoman.errors import BadRequest, ConfigError, Conflict
from dragoman.fold import Fold
from dragoman.ids import new_id
from dragoman.mcp.server_spec import ServerStatus
from dragoman.model_request import ModelRequest
from dragoman.operations.budget import Budget, CostTotal
from dragoman.operations.call_hooks import stack_hooks
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.registry import OperationSource
from dragoman.operations.worker_threads import running_loop
from dragoman.providers.model import Model
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import RetryPolicy
from dragoman.providers.routing import ModelRoutes

T = TypeVar("T", default=Any)
U = TypeVar("U")
BUDGET_NOT_ENFORCED = "this provider manages its own budget: max_budget_usd is not enforced between its steps"


class Agent(Generic[T]):
    """A model with tools. `run` answers, `spawn` starts a run to follow.

    `model` is a Model (`OpenAIProvider(...).model("gpt-5.1")`) or a name such as `openai/gpt-5.1`, whose key
    is read from the environment. `operations` are functions marked with `@operation`, built tools, or modules
    that contain some. `mcp` are servers: a path or a command, a URL, a ServerSpec; `async with agent:`
    connects them. With `output=City` it is an `Agent[City]`, whose runs end with a City in `result.output`;
    without, `output` is None.

    Options: `hooks` are called before and after what it does. `stop_when` ends a run after a step,
    `on_prepare_step` changes a step. `context` keeps the conversation within the context of the model.
    `retries` is the number of retries of a transient failure of a model request, or a RetryPolicy; 0 by
    default, since the caller of the agent often retries already. `options` are sent with each request.
    `client_tools` run outside of the agent; with `manual` all tools do. `meta_tools` shows the four
    meta-tools instead of all tools; None: above 64 tools. `prices` are by pattern of `provider/model`.
    `policy`, `approvals` and `ledger` apply to calls, `identity` is their owner, `name` that of the agent,
    `tracing` the destination of its spans.

    An agent can be used by any number of tasks, threads and event loops at once. `async with` is counted:
    the last block to be left in an event loop ends the runs and connections of that loop.

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
        check_arguments(
            {"instructions": instructions, "operations": operations, "mcp": mcp, "limits": limits, **options},
            AGENT_ARGUMENTS,
        )
        self.instructions = instructions
        self.limits = limits
        self.settings = settings = AgentSettings(**options) if options else DEFAULT_SETTINGS
        self._model_or_name = model
        services = CallServices(policy=settings.policy, approvals=settings.approvals, ledger=settings.ledger)
        self._resources = ResourcesByLoop(partial(AgentTools, operations, mcp, services=services))
        self._stop_condition = combined_condition(settings.stop_when)
        self._output = output if isinstance(output, Output | None) else Output(output)
        self._prices = ModelPrices(settings.prices)
        self._check_tool_names(self._resources.peek())

    def __repr__(self) -> str:
        return f"Agent({self._model_or_name!r}, name={self.settings.name!r})"

    async def __aenter__(self) -> Self:
        resources = self._resources.here()
        resources.users += 1
        try:
            await self.connect()
        except BaseException:
            resources.users -= 1
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        resources = self._resources.here()
        resources.users -= 1
        if resources.users <= 0:
            await self.cleanup()

    async def connect(self) -> None:
        """Connect the MCP servers and wait for their tool lists, as `async with` does.

        Raises Unavailable for a server that does not connect, ConfigError for a stop condition that names a
        tool that the agent does not have.
        """
        resources = self._resources.here()
        async with resources.open_lock:
            if not resources.tools.is_open:
                await self._open_tools(resources.tools)
        if self.limits.max_budget_usd is not None:
            await self._prices.load()

    async def cleanup(self) -> None:
        """End what the agent does in this event loop: abort its runs, disconnect MCP servers, close models.

        The agent may be used again. Other event loops, in other threads, are not affected.
        """
        resources = self._resources.here()
        async with resources.open_lock:
            try:
                await resources.close("the agent is closed")
            finally:
                if self.settings.hooks is not None:
                    await self.settings.hooks.aclose()
        if resources.users <= 0:
            self._resources.release()

    @property
    def model(self) -> Model:
        """The model of the agent. Raises ConfigError for a name that cannot be resolved."""
        return self._find_model(self._model_or_name)

    @property
    def servers(self) -> Sequence[ServerStatus]:
        """The status of each MCP server."""
        return self._resources.peek().servers()

    def overhead(self) -> Overhead:
        """Return the tools that the model is shown, with the tokens that each adds to every request."""
        return measure_overhead(
            self._resources.peek().toolbox(self._tool_selection(SpawnSettings())).tools, self.instructions
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
        """Start a run and return its handle at once.

        `messages` is a text or a conversation; `system` replaces the instructions. Tools are named as the
        model sees them (`math_add`), by id or by pattern; with `allowed_tools` only these are shown, whatever
        is disallowed. `session_id` names the conversation; `limits`, `manual` and `client_tools` replace
        those of the agent; `context` is that of the call which this run is a part of.

        The run ends when its last waiter is cancelled (`asyncio.wait_for`, a client that has gone), or when
        its `async with` block is left; a `detached` run continues without anybody. Raises BadRequest for
        invalid messages, ConfigError for a budget on a model without a price.

            run = agent.spawn("What is 2 + 2?", allowed_tools=["math.*"], limits=RunLimits(timeout=60))
            first = await run.result
            async with agent.spawn([*first.messages, {"role": "user", "content": "And 3 + 3?"}]) as run:
                async for event in run.events(): ...
        """
        check_arguments(details, RUN_ARGUMENTS)
        spawn_settings = SpawnSettings(**details)
        selection = with_tool_names(
            self._tool_selection(spawn_settings), allowed_tools, disallowed=disallowed_tools
        )
        turn = self._make_turn(messages, spawn_settings, selection=selection, system=system)
        external_inputs = ExternalInputs()
        return self._start_run(
            turn, external_inputs, selection=selection, is_detached=spawn_settings.detached
        )

    async def run(
        self,
        messages: InputMessages,
        *,
        system: str | None = None,
        allowed_tools: Sequence[str] | None = None,
        disallowed_tools: Sequence[str] | None = None,
        **details: Unpack[SpawnOptions],
    ) -> Result[T]:
        """Run to the end and return the result; the arguments are those of `spawn`.

        Connects the MCP servers if the agent is not open. Cancelling the caller stops the run: the provider
        connection is closed and calls are cancelled.

            result = await asyncio.wait_for(agent.run("What is 2 + 2?"), timeout=30)
        """
        async with self:
            run = self.spawn(
                messages,
                system=system,
                allowed_tools=allowed_tools,
                disallowed_tools=disallowed_tools,
                **details,
            )
            return await run.result

    def as_operation(
        self, description: str, *, name: str | None = None, namespace: str = NAMESPACE
    ) -> Operation:
        """Return this agent as an operation: `Agent(..., operations=[helper.as_operation("Does ...")])`.

        It receives a `prompt` and sees nothing else of the caller's conversation. Its progress is shown as
        preliminary output; the caller gets its final text, or its value if it has an `output`. It spends from
        the caller's budget, ends at its deadline and with its abort, and may do what both of them may.
        """
        return Subagent(name or self.settings.name, self._subagent_turn).operation(
            description, namespace=namespace, timeout=self.limits.timeout
        )

    async def _subagent_turn(self, assignment: Assignment) -> TurnSpec:
        """Return the turn for an assignment from another agent."""
        context_of_call = assignment.context
        spawn_settings = SpawnSettings(context=context_of_call, session_id=context_of_call.session_id)
        messages = [message for message in (assignment.prompt, assignment.answer) if message is not None]
        turn = self._make_turn(
            messages, spawn_settings, selection=self._tool_selection(spawn_settings), system=None
        )
        context = replace(turn.context, run_id=context_of_call.run_id, agent=context_of_call.agent)
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
        """Connect, run, wait, close, and return the result; for scripts and for threads of a web server.

            print(Agent("openai/gpt-5.1").run_sync("What is 2 + 2?").text)

        Any number of threads may call it at once; each call has its own connections. Raises Conflict inside
        an event loop.

        Nobody can answer an approval here, so a run that needs one ends as `unknown`.
        """
        if running_loop() is not None:
            raise Conflict("run_sync cannot wait inside an event loop", hint="await agent.spawn(...).result")
        check_arguments(details, RUN_ARGUMENTS)
        spawn_settings = SpawnSettings(**details)
        selection = with_tool_names(
            self._tool_selection(spawn_settings), allowed_tools, disallowed=disallowed_tools
        )
        return asyncio.run(self._run_once(messages, spawn_settings, selection=selection, system=system))

    async def _run_once(
        self,
        messages: InputMessages,
        spawn_settings: SpawnSettings,
        *,
        selection: ToolSelection,
        system: str | None,
    ) -> Result[T]:
        try:
            async with self:
                turn = self._make_turn(messages, spawn_settings, selection=selection, system=system)
                return await self._start_run(turn, None, selection=selection).result
        finally:
            model = self._model_or_name
            if isinstance(model, Model) and isinstance(model.provider, RemoteProvider):
                await model.provider.close()  # what this call's event loop has opened

    def _make_turn(
        self,
        messages: InputMessages,
        spawn_settings: SpawnSettings,
        *,
        selection: ToolSelection,
        system: str | None,
    ) -> TurnSpec:
        """Return the turn of a run. Raises at once if it cannot start."""
        history, answer = split_open_answer(parse_conversation(messages))
        tools = self._resources.here().tools
        if not tools.is_open:
            raise Conflict("the MCP servers are not connected", hint="use the agent in `async with agent:`")
        model, options, limits = self.model, self.settings, spawn_settings.limits or self.limits
        context = self._run_context(spawn_settings, limits)
        payment = self._prices.payment(model, context)
        toolbox = tools.toolbox(selection)

        def find(name: Model | str) -> tuple[ModelRoutes, Mapping[str, Any]]:
            model = with_agent_tools(self._find_model(name), toolbox, context=context)
            return ModelRoutes.single(model.provider, model.name), model.options

        return TurnSpec(
            agent=AgentSpec(
                name=options.name,
                model=model.id,
                instructions=self.instructions if system is None else system,
                max_steps=limits.max_steps,
                options={**model.options, **options.options},
            ),
            routes=find(model)[0],
            history=history,
            fold=Fold(answer),
            toolbox=toolbox,
            context=context,
            tracing=options.tracing,
            stop_condition=self._stop_condition,
            prepare_step=StepPreparer(options.on_prepare_step, find) if options.on_prepare_step else None,
            hooks=options.hooks.loop if options.hooks is not None else None,
            context_window=self._prices.context_fitter(model, options.context, payment=payment),
            payment=payment,
            output=self._output,
            retry_policy=RetryPolicy.of(options.retries),
            adds_notices=False,
        )

    def _start_run(
        self,
        turn: TurnSpec,
        external_inputs: ExternalInputs | None,
        *,
        selection: ToolSelection,
        is_detached: bool = False,
    ) -> Run[T]:
        """Start the run. Raises Conflict without a running event loop."""
        resources = self._resources.here()
        notices = (*resources.tools.unknown_names(selection), *initial_notices(turn))
        run: Run[T] = Run(
            Loop(replace(turn, external_inputs=external_inputs)),
            external_inputs,
            on_end=lambda run: resources.runs.pop(run, None),
            notices=notices,
            is_detached=is_detached,
        )
        resources.runs[run] = None
        return run

    async def _open_tools(self, tools: AgentTools) -> None:
        await tools.open()
        try:
            self._check_tool_names(tools)
        except ConfigError:
            await tools.close()
            raise

    def _check_tool_names(self, tools: AgentTools) -> None:
        """Raise ConfigError if a stop condition names a tool that the agent does not have."""
        condition, model = self._stop_condition, self._model_or_name
        family = model.provider.family if isinstance(model, Model) else str(model).partition("/")[0]
        if condition is not None and family not in SELF_BUDGETED:  # these have tools of their own
            tools.require_names(condition.tools, self.settings.client_tools, argument="stop_when")

    def _tool_selection(self, spawn_settings: SpawnSettings) -> ToolSelection:
        """Return the tools of this run."""
        settings = self.settings
        client = settings.client_tools if spawn_settings.client_tools is None else spawn_settings.client_tools
        manual = settings.manual if spawn_settings.manual is None else spawn_settings.manual
        return ToolSelection(client_tools=tuple(client), manual=manual, meta_tools=settings.meta_tools)

    def _run_context(self, spawn_settings: SpawnSettings, limits: RunLimits) -> Context:
        """Return the context of all calls of the run, within that of the call which it is a part of."""
        outer = spawn_settings.context
        now = asyncio.get_running_loop().time() if limits.timeout is not None else 0.0
        deadlines = [outer.deadline] if outer is not None and outer.deadline is not None else []
        deadlines += [now + limits.timeout] if limits.timeout is not None else []
        hooks = self.settings.hooks
        base = outer or Context(identity=self.settings.identity)
        check_depth(base.cost_total, self.settings.name)
        return replace(
            base,
            run_id=new_id("run"),
            session_id=spawn_settings.session_id or new_id("ses"),
            agent=self.settings.name,
            deadline=min(deadlines) if deadlines else None,
            budget=run_budget(limits, base.budget),
            cost_total=CostTotal(base.cost_total),
            for_model=True,
            hooks=stack_hooks(base.hooks, hooks.calls if hooks is not None else None),
            tool_call_id=None,
            on_progress=None,
        )

    def _find_model(self, model: Model | str) -> Model:
        """Return the model of this name. The agent closes the models that it resolved itself."""
        if isinstance(model, Model):
            return model
        if not isinstance(model, str):
            raise ConfigError(f"a model must be a Model or a name like 'openai/gpt-5.1', not {model!r:.100}")
        models = self._resources.here().models if running_loop() is not None else {}
        resolved = models.get(model)
        if resolved is None:
            from dragoman.providers.resolve import resolve  # late: it imports every provider

            resolved = models[model] = resolve(model, os.environ)
        return resolved


def with_tool_names(
    selection: ToolSelection, allowed: Sequence[str] | None, *, disallowed: Sequence[str] | None
) -> ToolSelection:
    """Return the selection with the tool names of one run; a single name may be a plain string."""
    return replace(
        selection,
        allowed=[allowed] if isinstance(allowed, str) else allowed,
        disallowed=[disallowed] if isinstance(disallowed, str) else disallowed,
    )


def initial_notices(turn: TurnSpec) -> list[str]:
    """Return notices on a budget or options that will have no effect."""
    route, budget = turn.routes.first, turn.context.budget
    has_own_budget = route.provider.family in SELF_BUDGETED
    notices = [BUDGET_NOT_ENFORCED] if has_own_budget and budget is not None and budget.is_limited else []
    if not (has_own_budget or turn.agent.options):
        return notices
    request = ModelRequest(
        model=route.model,
        messages=turn.history[-1:],
        tools=turn.toolbox.tools if has_own_budget else (),
        options=turn.agent.options,
    )
    with suppress(BadRequest):  # the run itself reports it
        unsupported = route.provider.check(request)
        notices += [f"{turn.agent.model} does not support {name!r}; it is not sent" for name in unsupported]
    return notices


def run_budget(limits: RunLimits, outer: Budget | None) -> Budget | None:
    """Return the budget of a run: its own within the outer one, the outer one, or None."""
    if limits.max_budget_usd is None and limits.max_calls is None:
        return outer
    return Budget(usd=limits.max_budget_usd, calls=limits.max_calls, parent=outer)
