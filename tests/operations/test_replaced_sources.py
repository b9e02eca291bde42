"""Operations of MCP servers and of other hosts stay in the registry while their definitions are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import offload
from dragoman.mcp.client.definitions import DefinitionList, ToolDefinition
from dragoman.mcp.client.tool_catalog import OfferedTools
from dragoman.mcp.server_spec import ServerSpec
from dragoman.operations import Registry
from dragoman.spokes.hub.host_operations import HostOperations
from dragoman.store.mcp_servers import MemoryPinStore
from tests.hosts.test_garbage import answering_host, budgets_of
from tests.operations.watched_registry import never_without
from tests.providers.servers import ok

NAMES = [f"tool{number}" for number in range(5)]


@pytest.fixture(autouse=True)
def _yields_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SLICE_SECONDS", 0.0)


def definitions(description: str) -> DefinitionList:
    schema = {"type": "object"}
    made = [ToolDefinition(name=name, input_schema=schema, description=description) for name in NAMES]
    return DefinitionList(definitions=tuple(made))


async def never_called(*_: Any, **__: Any) -> Any:
    raise AssertionError


async def test_tools_whose_definitions_change_stay_in_the_registry() -> None:
    tools = OfferedTools(
        ServerSpec(name="files", url="http://127.0.0.1:1", trust="always"),
        registry=(registry := Registry()),
        pin_store=MemoryPinStore(),
        clock=lambda: 1.0,
        make_call=never_called,
    )
    await tools.update(definitions("before"))
    async with never_without(registry, "files", NAMES):
        await tools.update(definitions("after"))
    assert {each.description for each in registry.list("files")} == {"after"}
    changed = DefinitionList(definitions=definitions("last").definitions[1:])
    await tools.update(changed)
    assert {(each.name, each.description) for each in registry.list("files")} == {
        (name, "last") for name in NAMES[1:]
    }


def operation_list(version: str, *more: str) -> bytes:
    shared: list[dict[str, Any]] = [
        {
            "namespace": "stock",
            "name": name,
            "input_schema": {},
            "description": version,
            "output_schema": None,
            "effect": "read",
            "effect_claimed": True,
            "timeout": None,
            "approval": False,
            "source": "spoke:s",
            "owner": None,
            "private": False,
        }
        for name in (*NAMES, *more)
    ]
    return ok(msgspec.json.encode({"version": version, "operations": shared}))


async def test_operations_of_another_host_stay_in_the_registry_while_its_list_changes(tmp_path: Path) -> None:
    answers = [operation_list("1"), operation_list("2", "another")]
    async with answering_host(tmp_path, answers) as (client, store):
        operations = HostOperations(
            registry := Registry(), client, hosts=store.hosts, own_id="a", shared_budgets=budgets_of(store)
        )
        assert await operations.poll()
        operations.refresh("b")
        async with never_without(registry, "stock", NAMES):
            assert await operations.poll()
        assert {(each.name, each.description) for each in registry.list("stock")} == {
            (name, "2") for name in (*NAMES, "another")
        }
