"""Routing over HTTP: aliases, fallbacks, key pools, timeouts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.providers.servers import ok, refusing_port
from tests.waiting import until

from .metered_hub import (
    Desk,
    Site,
    completion,
    configured,
    desk,
    holding,
    message,
    placed,
    refusal,
    served,
    silent,
    tokens,
)

IMAGE = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "what is it?"},
            {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
        ],
    }
]


def served_by(response: Any) -> str:
    assert response.status_code == 200, response.text
    name: str = response.headers["x-dragoman-model"]
    return name


async def metrics_of(at: Desk) -> str:
    """The metrics of a hub, without the label that names it among several."""
    text = (await at.http.get("/metrics")).text
    return re.sub(r'host="[^"]*",|,host="[^"]*"', "", text)


async def test_an_alias_leads_to_its_model_under_the_providers_own_name(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion()), aliases={"fast": "quick", "quick": ["up/small"]}) as at:
        assert served_by(await at.chat("fast")) == "up/small"
        assert served_by(await at.chat("up/org/big:free")) == "up/org/big:free"
        assert [body["model"] for body in at.sites["up"].bodies] == ["small", "org/big:free"]
        rows = await at.rows(2)
        assert [(row.model_asked, row.model_served, row.provider) for row in rows] == [
            ("fast", "served-1", "up"),
            ("up/org/big:free", "served-1", "up"),
        ]


BEFORE: dict[str, bytes] = {
    "429": refusal(429, "slow down"),
    "500": refusal(500),
    "503": refusal(503),
    "529": refusal(529, "overloaded"),
    "401": refusal(401, "bad key"),
    "404": refusal(404, "there is no such model"),
    "nothing": ok(b""),
    "a page": ok(b"<html>not here</html>", "content-type: text/html"),
    "garbage": b"garbage\r\n\r\n",
}


async def test_a_failure_before_the_first_byte_goes_on_to_the_next(tmp_path: Path) -> None:
    first, second = Site(cooldown={"failures": 1000, "seconds": 1e-6}), Site()
    async with desk(tmp_path, one=first, two=second, aliases={"any": ["one/a", "two/b"]}) as at:
        for case, reply in BEFORE.items():
            for stream in (False, True):
                first.replies(reply)
                second.replies(tokens("hel", "lo") if stream else completion("hello"))
                response = await at.chat("any", stream=stream)
                name = served_by(response)
                assert (case, name, "lo" in response.text) == (case, "two/b", True)
        rows = await at.rows(2 * len(BEFORE))
        assert {(row.status, row.provider, row.model_asked, row.error) for row in rows} == {
            ("finished", "two", "any", None)
        }
        fallbacks = f'from="one/a",to="two/b"}} {len(rows)}'
        assert fallbacks in await metrics_of(at)


async def test_what_another_provider_would_not_do_better_is_reported(tmp_path: Path) -> None:
    first, second = Site(), Site(completion())
    async with desk(tmp_path, one=first, two=second, aliases={"any": ["one/a", "two/b"]}) as at:
        for reply in (refusal(400, "bad temperature"), refusal(400, "context length exceeded")):
            first.replies(reply)
            response = await at.chat("any")
            assert (response.status_code, second.requests) == (400, [])
        assert [row.status for row in await at.rows()] == ["failed", "failed"]


async def test_the_classes_of_errors_to_fall_back_on_are_configured(tmp_path: Path) -> None:
    long, second = Site(refusal(400, "maximum context length is 10"), refusal(500)), Site(completion())
    rules: dict[str, Any] = {"fallbacks": {"one/a": ["two/b"]}, "fallback_on": ["context_limit"]}
    async with desk(tmp_path, one=long, two=second, **rules) as at:
        assert served_by(await at.chat("one/a")) == "two/b"
        assert (await at.chat("one/a")).status_code == 500 or len(second.requests) == 1
        assert len(second.requests) == 1


async def test_a_failure_after_the_first_byte_is_reported_in_the_stream_without_a_fallback(
    tmp_path: Path,
) -> None:
    second = Site(tokens("other"))
    broken = tokens("hel", over=False) + b"0\r\n\r\n"
    async with desk(tmp_path, one=Site(broken), two=second, fallbacks={"*": ["two/b"]}) as at:
        response = await at.chat("one/a", stream=True)
        assert served_by(response) == "one/a"
        assert "hel" in response.text
        assert '"error"' in response.text
        assert "[DONE]" not in response.text
        assert second.requests == []
        row = await at.row()
        assert (row.status, row.error, row.tokens.estimated) == ("failed", "network", True)


async def test_what_a_provider_cannot_be_told_goes_on_to_the_next(tmp_path: Path) -> None:
    local, second = Site(completion(), type="ollama"), Site(completion("a cat"))
    async with desk(tmp_path, local=local, two=second, aliases={"any": ["local/a", "two/b"]}) as at:
        assert served_by(await at.chat("any", messages=IMAGE)) == "two/b"
        assert local.requests == []
        alone = await at.chat("local/a", messages=IMAGE)
        assert (alone.status_code, alone.json()["error"]["param"]) == (400, "messages[0]")


async def test_both_endpoints_take_the_same_fallbacks(tmp_path: Path) -> None:
    claude = Site(message("from claude"), type="anthropic")
    async with desk(tmp_path, one=Site(refusal(503)), ant=claude, fallbacks={"*": ["ant/c"]}) as at:
        assert served_by(await at.message("one/a")) == "ant/c"
        answer = await at.chat("one/a")
        assert served_by(answer) == "ant/c"
        assert answer.json()["choices"][0]["message"]["content"] == "from claude"


async def test_a_provider_that_fails_repeatedly_rests_and_the_next_is_asked_first(tmp_path: Path) -> None:
    first, second = Site(refusal(500), cooldown={"failures": 3}), Site(completion())
    async with desk(tmp_path, one=first, two=second, aliases={"any": ["one/a", "two/b"]}) as at:
        for _ in range(6):
            assert served_by(await at.chat("any")) == "two/b"
        assert (len(first.requests), len(second.requests)) == (3, 6)
        metrics = await metrics_of(at)
        assert 'dragoman_cooldowns{provider="one"} 1' in metrics
        first.replies(completion())
        assert served_by(await at.chat("one/a")) == "one/a"  # by its own name it is still asked


async def test_errors_at_the_beginning_of_streams_make_a_key_rest_as_well(tmp_path: Path) -> None:
    busy = tokens(over=False).split(b"\r\n\r\n", 1)[0] + b"\r\n\r\n"
    event = b'data: {"error": {"message": "Overloaded", "type": "overloaded_error"}}\n\n'
    first = Site(busy + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event), cooldown={"failures": 2})
    async with desk(tmp_path, one=first, two=Site(tokens("ok")), aliases={"any": ["one/a", "two/b"]}) as at:
        for _ in range(4):
            assert served_by(await at.chat("any", stream=True)) == "two/b"
        assert len(first.requests) == 2


KEYS: dict[str, Any] = {
    "keys": [{"name": name, "api_key_env": f"KEY_{name.upper()}"} for name in ("a", "b", "c")],
}
ENVIRON = {f"KEY_{name}": f"sk-secret-{name}" for name in "ABC"}


async def test_several_keys_share_the_load(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def gated(peer: Any, _: Any) -> None:
        await gate.wait()
        await peer.send(completion())

    up = Site(gated, **KEYS)
    async with desk(tmp_path, environ=ENVIRON, up=up) as at:
        requests = [asyncio.ensure_future(at.chat()) for _ in range(9)]
        await until(lambda: len(up.requests) == 9)
        gate.set()
        assert [response.status_code for response in await asyncio.gather(*requests)] == [200] * 9
        assert sorted(up.secrets) == sorted(["sk-secret-A", "sk-secret-B", "sk-secret-C"] * 3)
        assert sorted(row.key_name or "" for row in await at.rows(9)) == [*"aaabbbccc"]


async def test_a_key_that_is_refused_is_replaced_by_another_within_the_request(tmp_path: Path) -> None:
    sites: dict[str, Any] = {
        f"up{status}": Site(refusal(status, "sk-secret-A is not valid"), completion(), retries=1, **KEYS)
        for status in (401, 403, 429)
    }
    async with desk(tmp_path, environ=ENVIRON, **sites) as at:
        for name, site in sites.items():
            assert (await at.chat(f"{name}/m")).status_code == 200
            assert site.secrets == ["sk-secret-A", "sk-secret-B"]
        assert [row.key_name for row in await at.rows()] == ["b", "b", "b"]


async def test_what_all_keys_are_refused_with_is_reported_without_them(tmp_path: Path) -> None:
    up = Site(refusal(401, "wrong: sk-secret-A, sk-secret-B and sk-secret-C"), retries=3, **KEYS)
    async with desk(tmp_path, environ=ENVIRON, up=up) as at:
        response = await at.chat()
        assert len(up.requests) == 3
        assert "sk-secret" not in response.text
        assert response.status_code >= 400
        assert "***" in response.json()["error"]["message"]


async def test_retries_limit_the_requests_over_all_keys_of_a_provider(tmp_path: Path) -> None:
    at_once = "retry-after-ms: 1"
    cases = {
        # status: requests by `retries`, with three keys; a refused key is not asked again
        401: {0: 1, 1: 2, 2: 3, 5: 3},
        429: {0: 1, 1: 2, 3: 4, 5: 6},
        529: {0: 1, 1: 2, 3: 4, 5: 6},
        503: {0: 1, 1: 2, 3: 4},
        500: {0: 1, 3: 4},
        400: {0: 1, 3: 1},
    }
    sites: dict[str, Any] = {
        f"s{status}r{retries}": Site(refusal(status, "no", at_once), retries=retries, **KEYS)
        for status, counts in cases.items()
        for retries in counts
    }
    async with desk(tmp_path, environ=ENVIRON, **sites) as at:
        await asyncio.gather(*(at.chat(f"{name}/m", stream=name.endswith("1")) for name in sites))
        found = {
            status: {retries: len(sites[f"s{status}r{retries}"].requests) for retries in counts}
            for status, counts in cases.items()
        }
        assert found == cases


SHORT = 0.05
TIMES: dict[str, tuple[dict[str, Any], Any, bool, str]] = {
    "first byte": ({"first_byte_timeout": SHORT}, silent, False, "did not start to respond in time"),
    "first byte of a stream": (
        {"first_byte_timeout": SHORT},
        silent,
        True,
        "did not start to respond in time",
    ),
    "idle": (
        {"idle_timeout": SHORT},
        holding(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"),
        False,
        "stopped sending in the middle of its response",
    ),
    "idle in a stream": (
        {"idle_timeout": SHORT},
        holding(tokens("hel", over=False)),
        True,
        "stopped sending in the middle of its response",
    ),
    "total": (
        {"total_timeout": SHORT},
        holding(tokens("hel", over=False)),
        True,
        "did not finish its response within the request's total timeout",
    ),
    "total before the first byte": (
        {"total_timeout": SHORT},
        silent,
        False,
        "did not finish its response within the request's total timeout",
    ),
}


async def test_each_time_that_runs_out_is_reported_by_its_name(tmp_path: Path) -> None:
    sites: dict[str, Any] = {
        f"up{number}": Site(reply, **times) for number, (times, reply, _, _) in enumerate(TIMES.values())
    }
    async with desk(tmp_path, **sites) as at:
        for name, (_, _, stream, text) in zip(sites, TIMES.values(), strict=True):
            for ask in (at.chat, at.message):
                response = await ask(f"{name}/m", stream=stream)
                while "connecting to" in response.text:  # for which the time was too short already
                    response = await ask(f"{name}/m", stream=stream)
                assert text in response.text
                row = (await at.rows())[-1]
                assert (row.provider, row.status, row.error) == (name, "failed", "timeout")
                assert response.status_code == (200 if row.first_byte else 504)


async def test_a_server_to_which_all_connections_are_busy_is_reported(tmp_path: Path) -> None:
    up = Site(silent, connections=1, connect_timeout=10 * SHORT)
    async with desk(tmp_path, up=up) as at:
        holding_it = await hold_connection(at, up)
        response = await at.chat()
        assert response.status_code == 504
        assert "stayed busy" in response.json()["error"]["message"]
        holding_it.cancel()


async def hold_connection(at: Desk, up: Site) -> asyncio.Task[Any]:
    """Begin a request that its server has received; one that could not connect in time is made again."""
    request = asyncio.create_task(at.chat())
    await until(lambda: up.requests or request.done())
    return request if up.requests else await hold_connection(at, up)


async def test_where_nobody_is_the_next_is_asked(tmp_path: Path) -> None:
    gone, up = Site(completion()), Site(completion())
    with refusing_port() as port:
        gone.url = f"http://127.0.0.1:{port}"
        async with (
            placed(up),
            served(tmp_path, configured({"gone": gone, "up": up}, fallbacks={"gone/a": ["up/b"]})) as at,
        ):
            assert served_by(await at.chat("gone/a")) == "up/b"
            alone = await at.chat("gone/z")
            assert alone.status_code == 502
            assert (await at.rows(2))[1].error == "network"


async def test_retries_are_made_before_a_fallback_and_a_success_among_them_is_one_row(tmp_path: Path) -> None:
    first = Site(refusal(503, "busy", "retry-after: 0"), completion("second try"), retries=1)
    async with desk(tmp_path, one=first, two=Site(completion()), fallbacks={"*": ["two/b"]}) as at:
        response = await at.chat("one/a")
        assert served_by(response) == "one/a"
        assert len(first.requests) == 2
        assert (await at.row()).status == "finished"


async def test_an_unknown_model_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion()), aliases={"fast": "up/m"}) as at:
        openai, anthropic = await at.chat("gpt-x"), await at.message("gpt-x")
        assert (openai.status_code, anthropic.status_code) == (404, 404)
        assert "the hub knows fast, up/..." in openai.json()["error"]["message"]
        assert openai.json()["error"]["code"] == "model_not_found"
        assert anthropic.json()["error"]["type"] == "not_found_error"
        assert await at.rows() == []


async def test_a_models_name_is_safe_in_a_header(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion())) as at:
        for model in ("up/m\r\nset-cookie: a=b", "up/模型", "up/ü"):
            response = await at.chat(model)
            assert response.status_code == 200
            assert "set-cookie" not in response.headers
            assert response.headers["x-dragoman-model"].isascii()


async def test_options_of_a_provider_fill_in_what_a_client_leaves_open(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion(), options={"temperature": 0.0, "seed": 7})) as at:
        await at.chat(seed=1)
        body = at.sites["up"].bodies[0]
        assert (body["temperature"], body["seed"]) == (0.0, 1)


def balanced(balance: str, **weights: int) -> dict[str, Any]:
    names = {f"{name}/m": weight for name, weight in weights.items()}
    alias: dict[str, Any] = {"models": ["one/m", "two/m"], "balance": balance}
    return {"any": {**alias, "weights": names} if weights else alias}


async def test_a_balanced_alias_spreads_requests_and_records_who_served_them(tmp_path: Path) -> None:
    one, two = Site(completion()), Site(completion())
    async with desk(tmp_path, one=one, two=two, aliases=balanced("weighted", one=2)) as at:
        names = [served_by(await at.chat("any")) for _ in range(6)]
        assert names == ["one/m", "two/m", "one/m"] * 2
        assert [row.provider for row in await at.rows(6)] == ["one", "two", "one"] * 2
        assert (len(one.requests), len(two.requests)) == (4, 2)


async def test_counting_tokens_takes_no_turn_of_a_balanced_alias(tmp_path: Path) -> None:
    one, two = Site(message(), type="anthropic"), Site(message(), type="anthropic")
    async with desk(tmp_path, one=one, two=two, aliases=balanced("round_robin")) as at:
        names = []
        for _ in range(4):
            await at.http.post("/v1/messages/count_tokens", json={"model": "any", "messages": []})
            names.append(served_by(await at.message("any")))
        assert names == ["one/m", "two/m"] * 2


async def test_a_server_that_fails_gets_no_more_requests_of_a_balanced_alias(tmp_path: Path) -> None:
    for balance in ("round_robin", "least_busy", "weighted", "latency"):
        # garbage is a failure of the connection: no key cools down for it
        one, two = Site(b"garbage\r\n\r\n"), Site(completion())
        async with desk(tmp_path / balance, one=one, two=two, aliases=balanced(balance)) as at:
            assert {served_by(await at.chat("any")) for _ in range(9)} == {"two/m"}
            assert len(one.requests) <= 3, balance


async def test_requests_at_once_are_spread_over_idle_servers(tmp_path: Path) -> None:
    one, two = Site(completion()), Site(completion())
    async with desk(tmp_path, one=one, two=two, aliases=balanced("least_busy")) as at:
        responses = await asyncio.gather(*(at.chat("any") for _ in range(10)))
        assert {served_by(response) for response in responses} == {"one/m", "two/m"}
        assert len(one.requests) + len(two.requests) == 10
        assert min(len(one.requests), len(two.requests)) >= 3


ALIASES = {"both": ["one/m", "two/m"], "nested": ["both", "two/x"], "single": "one/m", "other": "one/other"}


@pytest.mark.parametrize(
    ("models", "model", "status"),
    [
        (["one/*"], "both", 503),  # a client may make the first one fail: a request that it does not support
        (["one/*"], "nested", 503),
        (["both"], "both", 200),
        (["one/*", "two/*"], "both", 200),
        (None, "both", 200),
        (["one/*"], "other", 200),
        (["one/*"], "single", 200),
    ],
)
async def test_a_key_for_one_model_of_an_alias_does_not_fall_back_to_the_others(
    tmp_path: Path, models: list[str] | None, model: str, status: int
) -> None:
    """`fallbacks` are the operator's: they are for every key."""
    sites: dict[str, Any] = {"one": Site(refusal(503)), "two": Site(completion())}
    fallbacks = {"one/other": ["two/m"], "single": ["two/m"]}
    async with desk(tmp_path, keys=True, aliases=ALIASES, fallbacks=fallbacks, **sites) as at:
        response = await at.chat(model, await at.key(models=models))
        assert response.status_code == status
        assert len(at.sites["two"].requests) == (status == 200)
