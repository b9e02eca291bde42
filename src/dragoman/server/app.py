"""The wiring of one hub: the only place that knows every room. Two hubs can live in one process."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router
from starlette.types import ASGIApp

from dragoman.agent.agent import Agent
from dragoman.agent.roster import Roster
from dragoman.agent.toolbox import Toolbox
from dragoman.config import AgentConfig, Config, ProviderConfig, secret
from dragoman.errors import ConfigError, NotFound
from dragoman.operations.call import Calls
from dragoman.operations.loading import load
from dragoman.operations.meta import Meta
from dragoman.operations.registry import Registry
from dragoman.providers.address import proxies_from
from dragoman.providers.connection import Timeouts
from dragoman.providers.http import Transport
from dragoman.providers.local import LocalProvider
from dragoman.providers.openai import OpenAIProvider, Server
from dragoman.providers.provider import Provider
from dragoman.providers.retry import RetryPolicy
from dragoman.providers.scripted import ScriptedProvider, read_script
from dragoman.request import Tool
from dragoman.runs.board import Board, Toolboxes
from dragoman.runs.recovery import recover
from dragoman.runs.run import RunSettings
from dragoman.server.auth import Auth
from dragoman.server.chat import Chat, ChatSettings
from dragoman.server.doors import Rooms, make_router
from dragoman.server.health import Health
from dragoman.server.operations import Operations
from dragoman.server.reference import Reference
from dragoman.server.sessions import Sessions
from dragoman.store.store import Store
from dragoman.tools.builtin import builtin
from dragoman.wire.chat import client_tools

log = logging.getLogger(__name__)


class Hub:
    """A hub's parts while it is open. `async with Hub.open(...) as hub`, then serve `hub.app`."""

    def __init__(self, store: Store, runs: Board, *, app: ASGIApp) -> None:
        self.store = store
        self.runs = runs
        self.app = app

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: Config, data: Path, *, keys: bool = True, environ: Mapping[str, str] | None = None
    ) -> AsyncIterator[Hub]:
        """A hub with its data in `data`; `keys` False lets everybody in as the owner `local`."""
        registry = _registry(config)
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(await Store.open(data, synchronous=config.synchronous))
            recovered = await recover(store)
            if recovered:
                log.warning("%d runs were cut off by a crash; their messages are closed", recovered)
            calls = await stack.enter_async_context(
                Calls(registry, store.calls, threads=config.limits.threads)
            )
            providers = _providers(config, environ or {}, stack=stack)
            meta = Meta(registry, calls)

            def toolbox(pinned: Sequence[str], client: Sequence[Tool]) -> Toolbox:
                return Toolbox(calls, meta, registry=registry, pinned=pinned, client=client)

            board = _board(config, store, providers=providers, toolbox=toolbox)
            stack.push_async_callback(board.close)
            operations = Operations(registry, calls, meta=meta)
            auth = Auth(store.keys, required=keys)
            yield cls(store, board, app=_app(config, store, runs=board, operations=operations, auth=auth))


def build_app(
    config: Config, data: Path, *, keys: bool = True, environ: Mapping[str, str] | None = None
) -> ASGIApp:
    """An ASGI app that opens its hub at start-up: for `uvicorn --factory` and other servers."""
    held: list[ASGIApp] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with Hub.open(config, data, keys=keys, environ=environ) as hub:
            held.append(hub.app)
            yield
            held.clear()

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await held[0](scope, receive, send)

    return Router(lifespan=lifespan, default=inside)


def _registry(config: Config) -> Registry:
    root = Path(config.files_root) if config.files_root else None
    registry = Registry()
    for operation in builtin(root):
        registry.add(operation)
    for place in config.operations:
        for operation in load(place):
            registry.add(operation)
    return registry


def _board(config: Config, store: Store, *, providers: Mapping[str, Provider], toolbox: Toolboxes) -> Board:
    agents = _agents(config)
    for name, agent in agents.items():
        _check_pins(name, agent, toolbox=toolbox)
    options = {name: provider.options for name, provider in config.providers.items()}
    roster = Roster(agents, providers, options=options)
    return Board(store, roster, toolbox=toolbox, settings=RunSettings(grace=config.grace))


def _check_pins(name: str, agent: Agent, *, toolbox: Toolboxes) -> None:
    try:
        toolbox(agent.operations, agent.client_tools)
    except NotFound as error:
        raise ConfigError(f"the agent {name!r} pins an operation: {error.message}", hint=error.hint) from None


def _agents(config: Config) -> dict[str, Agent]:
    default = AgentConfig(instructions=config.instructions, operations=config.pinned)
    named = {"default": default, **config.agents}
    return {name: _agent(name, agent, config=config) for name, agent in named.items()}


def _agent(name: str, agent: AgentConfig, *, config: Config) -> Agent:
    return Agent(
        name=name,
        model=agent.model or config.model or "",
        instructions=agent.instructions,
        operations=tuple(agent.operations),
        client_tools=client_tools(agent.client_tools),
        max_steps=agent.max_steps or config.max_steps,
        options=agent.options,
    )


def _providers(config: Config, environ: Mapping[str, str], *, stack: AsyncExitStack) -> dict[str, Provider]:
    """The providers of the configuration; the stack closes them, and then what they send through."""
    made: dict[str, Provider] = {}
    for name, provider in config.providers.items():
        transport = _transport(provider, environ)
        stack.push_async_callback(transport.close)
        key = secret(provider, name=name, environ=environ)
        answering = _provider(name, provider, key=key, transport=transport)
        if answering is None:
            log.warning("providers.%s: this version has no provider of type %r", name, provider.type)
            continue
        made[name] = answering
        stack.push_async_callback(answering.close)
    return made


def _provider(
    name: str, provider: ProviderConfig, *, key: str | None, transport: Transport
) -> Provider | None:
    match provider.type:
        case "scripted":
            return ScriptedProvider(read_script(Path(provider.script or "")), name=name)
        case "openai":
            return _openai(name, provider, key=key, transport=transport)
        case "local":
            return LocalProvider(name, transport=transport, model_path=provider.model_path)
        case "anthropic" | "ollama":
            return None


def _openai(name: str, provider: ProviderConfig, *, key: str | None, transport: Transport) -> OpenAIProvider:
    server = Server(base_url=provider.base_url or "", api_key=key, headers=provider.headers)
    quirks = {
        word: value
        for word in ("reasoning_field", "lenient_finish", "thinking", "call_ids")
        if (value := getattr(provider, word)) is not None
    }
    return OpenAIProvider(
        name,
        server,
        transport=transport,
        policy=RetryPolicy(retries=provider.retries),
        quirks=replace(server.quirks, **quirks),
    )


def _transport(provider: ProviderConfig, environ: Mapping[str, str]) -> Transport:
    timeouts = Timeouts(
        connect=provider.connect_timeout,
        first_byte=provider.first_byte_timeout,
        idle=provider.idle_timeout,
        total=provider.total_timeout,
    )
    return Transport(
        timeouts=timeouts, max_connections_per_host=provider.connections, proxies=proxies_from(environ)
    )


def _app(config: Config, store: Store, *, runs: Board, operations: Operations, auth: Auth) -> ASGIApp:
    settings = ChatSettings(body=config.limits.body, part=config.limits.part, keep_alive=config.keep_alive)
    rooms = Rooms(
        chat=Chat(runs, store, settings=settings),
        sessions=Sessions(runs, store),
        operations=operations,
        health=Health(store),
        reference=Reference(),
    )
    app = make_router(rooms, auth)
    if not config.cors.origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=config.cors.origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-dragoman-session", "x-dragoman-run"],
    )
