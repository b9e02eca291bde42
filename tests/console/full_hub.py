"""Hubs for the screens of administrators: empty, with a little of everything, or with 10,000 rows."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dragoman.events import Usage
from dragoman.store.store import Store
from dragoman.usage_limits import Limits
from dragoman.usage_record import UsageRecord
from tests.clients import hub as hubs
from tests.clients.hub import Hub

SCOPES = ("gateway", "chat", "operations", "admin")
OPERATIONS = '''
from typing import Literal

from dragoman import operation


@operation("shop", effect="read")
async def price(item: str, currency: Literal["EUR", "USD"] = "EUR", quantity: int = 1) -> dict[str, object]:
    """Look up the price of an item.

    item: what to look up, such as "tea"
    currency: the currency of the price
    """
    return {"item": item, "currency": currency, "price": {"tea": 3.5}[item] * quantity}


@operation("shop", approval=True)
async def order(item: str, gift: bool = False, notes: list[str] | None = None) -> str:
    """Order an item. It is paid for at once."""
    return f"ordered {item}"


@operation("shop")
async def burn(item: str) -> str:
    """Burn an item."""
    return item


@operation("draw", effect="read")
async def dot() -> dict[str, str]:
    """Draw a red dot."""
    red = (
        "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4//8/"
        "w38GIAXDIBKE0DHxgljNBAAO9TXL0Y4OHwAAAABJRU5ErkJggg=="
    )
    return {"type": "image", "mimeType": "image/png", "data": red}
'''
MODELS = ("anthropic/claude-sonnet-5", "openai/gpt-5-mini", "ollama/qwen3")


def usage_records(count: int, now: float) -> Iterable[UsageRecord]:
    """Requests of the last days, busier at noon, with a few failures and a model without a price."""
    for number in range(count):
        at = now - (number / count) * 6 * 86_400
        model = MODELS[number % 7 % 3]
        wave = 1 + math.sin(at / 86_400 * 2 * math.pi)
        priced = model != "ollama/qwen3"
        yield UsageRecord(
            id=f"use_{number}",
            owner="ann" if number % 5 else "bob",
            status="finished",
            started_at=at,
            key_id=f"key_{number % 9}",
            session_id=f"s{number % 40}",
            provider=model.partition("/")[0],
            model_asked=model,
            model_served=model,
            tokens=Usage(int(800 * wave) + 40, int(120 * wave) + 9),
            cost=(0.004 + 0.01 * wave) if priced else None,
            duration=0.9 + wave,
            first_byte=0.2 + wave / 5,
            error="timeout" if number % 97 == 0 else None,
        )


async def fill(data: Path, *, requests: int, keys: int) -> None:
    """Write usage and keys beside the hub that runs there."""
    async with await Store.open(data, exclusive=False) as store:
        records = list(usage_records(requests, time.time()))
        for start in range(0, len(records), 500):
            await store.write(store.usage.insert_missing_job(records[start : start + 500]))
        labels = ["laptop", "CI", "support bot", "nightly", "mobile app"]
        for number in range(keys):
            budget = Limits(usd_per_month=20.0 + number, requests_per_minute=60) if number % 3 == 0 else None
            await store.keys.create(
                ("ann", "bob", "carol")[number % 3],
                name=f"{labels[number % 5]} {number}" if number >= 5 else labels[number],
                scopes=("gateway", "chat") if number % 2 else (),
                limits=budget,
                expires_at=time.time() + 86_400 * 3 if number % 4 == 1 else None,
            )


def start_empty(folder: Path, upstream: str) -> Hub:
    """A hub that nobody has used yet."""
    key = hubs.create_key(folder / "data", "ann", scopes=SCOPES)
    config = {"providers": {"up": provider(upstream)}, "model": "up/any-model"}
    return hubs.start(folder, config, key=key)


def start_full(folder: Path, upstream: str, *, requests: int = 600, keys: int = 7, **more: Any) -> Hub:
    """A hub with operations, an MCP server that asks for approval, teams, usage and keys."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shop.py").write_text(OPERATIONS, encoding="utf-8")
    for name, parent in (("main", None), ("research", "main"), ("press", "main")):
        place = folder / "teams" / name
        (place / "rules/team").mkdir(parents=True)
        fields = [f"parent: {parent}"] if parent else []
        fields += [f"description: The team {name}.", "allowed_tools: [shop.price]"]
        (place / "team.yaml").write_text("\n".join(fields) + "\n", encoding="utf-8")
        (place / "rules/team/team.md").write_text("Be brief.\n", encoding="utf-8")
    server = Path(__file__).parents[1] / "mcp/client/raw_server.py"
    config = {
        "providers": {"up": provider(upstream)},
        "model": "up/any-model",
        "operations": [str(folder / "shop.py")],
        "teams": str(folder / "teams"),
        "agents": {"clerk": {"model": "up/any-model", "description": "Sells tea."}},
        "policy": [
            {"deny": "shop.burn", "agent": "clerk", "reason": "fire is dangerous"},
            {"ask": "shop.*", "agent": "clerk"},
        ],
        "limits": {"owners": {"ann": {"usd_per_month": 30.0}, "bob": {"usd_per_day": 5.0}}},
        "mcp_servers": {
            "docs": {
                "command": [hubs.COMMAND[0], "-S", "-E", str(server), str(folder / "raw.txt")],
                "trust": "ask",
                "env": {"API_TOKEN": "quite-secret-value"},
            }
        },
        **more,
    }
    key = hubs.create_key(folder / "data", "ann", scopes=SCOPES)
    hub = hubs.start(folder, config, key=key)
    with ThreadPoolExecutor(1) as thread:  # Playwright has a loop in this one
        thread.submit(asyncio.run, fill(folder / "data", requests=requests, keys=keys)).result()
    return hub


def provider(url: str) -> dict[str, Any]:
    return {"type": "openai", "base_url": url, "api_key_env": "UP_KEY"}
