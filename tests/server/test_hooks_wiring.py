"""Hooks that a configuration names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.agent.hooks.hooks import Hooks
from dragoman.errors import ConfigError
from dragoman.http.transport import Transport
from dragoman.operations.call_hooks import CallEnd, HookedCall
from dragoman.server.app.hooks import BUILTIN_HOOKS, build_hooks

MODULE = """
from dragoman.agent.hooks.events import Block
from dragoman.agent.hooks.hooks import Hooks

def no_bob(event):
    return Block("no bob") if event.input.get("to") == "bob" else None

def no(name):
    return lambda event: Block("no " + name) if event.input.get("to") == name else None

ours = Hooks().on("pre_tool_use", no_bob).on("run_end", print)
nothing = 3
"""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, as the configuration has it."""

    event: Any = None
    use: str | None = None
    url: str | None = None
    secret_env: str | None = None
    match: str | tuple[str, ...] = ()
    timeout: float = 10.0
    on_error: Any = None
    options: Mapping[str, Any] = {}
    name: str | None = None
    watches: bool = False


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport()
    yield transport
    await transport.close()


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MODULE)
    return str(tmp_path / "mine.py")


def made(*saids: Said, transport: Transport, environ: Mapping[str, str] | None = None) -> Hooks:
    return build_hooks(saids, environ=environ or {}, transport=transport)


async def block(hooks: Hooks, operation: str = "mail.send", **input: Any) -> str | None:
    call = HookedCall(operation=operation, input=input, effect="once", owner="ann")
    return (await hooks.calls.before(call)).block


async def test_a_function_of_a_file_is_a_hook(place: str, transport: Transport) -> None:
    reply = Said(event="pre_tool_use", use=f"{place}:no_bob", match="mail.*", timeout=300, name="mine")
    hooks = made(reply, transport=transport)
    [hook] = hooks
    assert (hook.name, hook.match, hook.timeout, hook.on_error) == ("mine", ("mail.*",), 300, "block")
    assert [await block(hooks, to="bob"), await block(hooks, to="eve")] == ["no bob", None]
    assert await block(hooks, "files.read", to="bob") is None


async def test_with_options_the_function_makes_the_hook(place: str, transport: Transport) -> None:
    reply = Said(event="pre_tool_use", use=f"{place}:no", options={"name": "eve"})
    assert await block(made(reply, transport=transport), to="eve") == "no eve"


async def test_hooks_of_a_module_are_taken_as_they_are(place: str, transport: Transport) -> None:
    hooks = made(Said(use=f"{place}:ours", match="mail.*"), transport=transport)
    assert [(hook.event, hook.match) for hook in hooks] == [("pre_tool_use", ("mail.*",)), ("run_end", ())]


async def test_ready_made_hooks_go_by_their_names(tmp_path: Path, transport: Transport) -> None:
    options: dict[str, Any] = {
        "path_guard": {"roots": [str(tmp_path)]},
        "rate_limit": {"rate": "1/minute"},
        "audit_log": {"path": str(tmp_path / "audit.jsonl")},
        "redact": {"names": ["email"]},
    }
    saids = [Said(use=name, options=options.get(name, {})) for name in BUILTIN_HOOKS]
    hooks = made(*saids, transport=transport)
    assert {hook.name for hook in hooks} == {*BUILTIN_HOOKS, "redaction"} - {"redact"}
    assert "outside the allowed folders" in (await block(hooks, path="/etc/passwd") or "")
    end = CallEnd(status="done", result="ann@example.org")
    call = HookedCall(operation="mail.send", input={}, effect="once", owner="ann")
    revision = await hooks.calls.after(call, end)
    assert revision is not None
    assert revision.result == "[email]"
    assert (tmp_path / "audit.jsonl").exists()


async def test_an_address_is_asked_with_a_secret_of_the_environment(transport: Transport) -> None:
    reply = Said(event="pre_tool_use", url="https://hooks.example.org/x", secret_env="HOOK_SECRET")
    [hook] = made(reply, transport=transport, environ={"HOOK_SECRET": "whsec_c2VjcmV0"})
    assert (hook.name, hook.on_error) == ("hooks.example.org", "block")


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        (Said(event="pre_tool_use"), "takes either `use`, a function, or `url`"),
        (Said(event="pre_tool_use", use="a:b", url="https://x.org"), "takes either"),
        (Said(use="nothing_like_it"), "is not a hook"),
        (Said(event="run_end", use="no_such_module_here:x"), "no module 'no_such_module_here'"),
        (Said(event="run_end", use="json:nothing"), "json has no function or Hooks 'nothing'"),
        (Said(use="json:dumps"), "does not name an `event`"),
        (Said(event="pre_tool_use", url="https://x.org", secret_env="GONE"), "variable GONE is not set"),
        (Said(use="rate_limit"), "rate_limit needs the option 'rate'"),
        (Said(use="rate_limit", options={"rate": "often"}), "is not a valid rate"),
        (Said(use="secret_scan", options={"color": "red"}), "color"),
        (Said(event="run_end", use="json:dumps", match="a.*"), "cannot match operations"),
        (Said(event="run_end", use="rate_limit", options={"rate": "1/s"}), "rate_limit is for pre_tool_use"),
    ],
)
async def test_an_entry_that_cannot_be_is_named(reply: Said, wrong: str, transport: Transport) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        made(Said(event="run_end", use="json:dumps"), reply, transport=transport)
    assert caught.value.message.startswith("hooks[1]: ")
