"""Metrics: format, values, bounded series."""

from __future__ import annotations

import platform
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from dragoman.events import Usage
from dragoman.http.asgi_exchange import Exchange
from dragoman.server.metrics.metrics import Metrics, MetricSources
from dragoman.usage_record import UsageRecord
from dragoman.version import version

TOKENS = Usage(input_tokens=90, output_tokens=7, reasoning_tokens=3, cached_input_tokens=60)
BUCKETS = 16


def record(**fields: Any) -> UsageRecord:
    attributes: dict[str, Any] = {
        "id": "use_1",
        "owner": "ann",
        "status": "finished",
        "started_at": 1.0,
        "door": "openai",
        "provider": "main",
        "model_asked": "fast",
        "model_served": "gpt-x-1",
        "tokens": TOKENS,
        "cost": 0.25,
        "duration": 1.5,
        "first_byte": 0.2,
    }
    return UsageRecord(**{**attributes, **fields})


async def scrape(metrics: Metrics, accept: str = "") -> tuple[str, str]:
    """The content type and the text of a scrape."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a scrape has no body")

    headers = [(b"accept", accept.encode())] if accept else []
    scope = {"method": "GET", "path": "/metrics", "headers": headers}
    await metrics.get(Exchange(scope, receive, send))
    head, body = sent
    assert head["status"] == 200
    return dict(head["headers"])[b"content-type"].decode(), body["body"].decode()


async def samples(metrics: Metrics) -> dict[str, float]:
    """The hub's own samples, spelled `name{label=value}`; buckets are left out."""
    _, text = await scrape(metrics)
    found: dict[str, float] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            if sample.name.startswith("dragoman_") and not sample.name.endswith("_bucket"):
                found[f"{sample.name}{{{labels}}}"] = sample.value
    found.pop(f"dragoman_build_info{{python={platform.python_version()},version={version()}}}")
    return found


async def test_a_request_that_ended_is_counted_with_its_time_tokens_and_money() -> None:
    metrics = Metrics(MetricSources())
    metrics.count_request(record())
    metrics.count_request(record(cost=None, tokens=Usage(), first_byte=None, duration=2.5))
    assert await samples(metrics) == {
        "dragoman_requests_total{door=openai,model=gpt-x-1,provider=main,status=finished}": 2.0,
        "dragoman_request_duration_seconds_count{door=openai,provider=main}": 2.0,
        "dragoman_request_duration_seconds_sum{door=openai,provider=main}": 4.0,
        "dragoman_time_to_first_byte_seconds_count{door=openai,provider=main}": 1.0,
        "dragoman_time_to_first_byte_seconds_sum{door=openai,provider=main}": 0.2,
        "dragoman_tokens_total{kind=input,model=gpt-x-1,provider=main}": 90.0,
        "dragoman_tokens_total{kind=output,model=gpt-x-1,provider=main}": 7.0,
        "dragoman_tokens_total{kind=reasoning,model=gpt-x-1,provider=main}": 3.0,
        "dragoman_tokens_total{kind=cache_read,model=gpt-x-1,provider=main}": 60.0,
        "dragoman_cost_usd_total{model=gpt-x-1,provider=main}": 0.25,
    }


async def test_samples_of_a_host_among_several_have_its_id() -> None:
    metrics = Metrics(MetricSources(host="a-1"))
    metrics.count_request(record())
    for accept in ("", "application/openmetrics-text"):
        _, text = await scrape(metrics, accept)
        families = list((parse_open if accept else parse)(text))
        labels = {sample.labels.get("host") for family in families for sample in family.samples}
        assert labels == {"a-1"}
        assert {"process_cpu_seconds", "dragoman_requests"} <= {
            family.name.removesuffix("_total") for family in families
        }


async def test_what_happens_on_the_way_is_counted_too() -> None:
    cooldowns = {"main": 2}
    watched = MetricSources(
        cooldowns=lambda: cooldowns, runs=lambda: 3, spool=lambda: 4, database=lambda: bool(cooldowns)
    )
    metrics = Metrics(watched)
    metrics.request_started("openai")
    metrics.request_started("openai")
    metrics.request_ended("openai")
    metrics.attempt_failed("main", "rate_limit")
    metrics.attempt_retried("main")
    metrics.provider_fell_back("main", "other")
    expected = {
        "dragoman_requests_in_progress{door=openai}": 1.0,
        "dragoman_provider_errors_total{category=rate_limit,provider=main}": 1.0,
        "dragoman_provider_retries_total{provider=main}": 1.0,
        "dragoman_fallbacks_total{from=main,to=other}": 1.0,
        "dragoman_cooldowns{provider=main}": 2.0,
        "dragoman_runs_active{}": 3.0,
        "dragoman_spool_rows{}": 4.0,
        "dragoman_database_up{}": 1.0,
    }
    assert await samples(metrics) == expected
    cooldowns.clear()
    expected["dragoman_database_up{}"] = 0.0
    del expected["dragoman_cooldowns{provider=main}"]
    assert await samples(metrics) == expected


async def test_durations_fall_into_buckets_that_add_up() -> None:
    metrics = Metrics(MetricSources())
    for duration in (0.005, 0.01, 0.3, 1e6):
        metrics.count_request(record(duration=duration))
    _, text = await scrape(metrics)
    (family,) = [found for found in parse(text) if found.name == "dragoman_request_duration_seconds"]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert len(buckets) == BUCKETS
    assert (buckets["0.01"], buckets["0.25"], buckets["0.5"], buckets["600.0"]) == (2.0, 2.0, 3.0, 3.0)
    assert buckets["+Inf"] == 4.0


async def test_the_scraper_chooses_the_format() -> None:
    metrics = Metrics(MetricSources())
    metrics.count_request(record(status='a "b"\nc\\'))
    plain, text = await scrape(metrics)
    assert plain == "text/plain; version=0.0.4; charset=utf-8"
    assert (await scrape(metrics, "text/html"))[0] == plain
    (requests,) = [found for found in parse(text) if found.name == "dragoman_requests"]
    assert requests.samples[0].labels["status"] == 'a "b"\nc\\'
    assert not [line for line in text.splitlines() if "_created" in line]
    kind, text = await scrape(metrics, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert "dragoman_requests" in {found.name for found in parse_open(text)}  # type: ignore[no-untyped-call]  # it has no types


async def test_what_the_process_uses_is_there() -> None:
    _, text = await scrape(Metrics(MetricSources()))
    names = {sample.name for family in parse(text) for sample in family.samples}
    if platform.system() == "Linux":
        assert {"process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"} <= names


async def test_two_hubs_in_one_process_count_apart() -> None:
    one, other = Metrics(MetricSources()), Metrics(MetricSources())
    one.attempt_retried("main")
    assert await samples(one) == {"dragoman_provider_retries_total{provider=main}": 1.0}
    assert await samples(other) == {}


def models(metrics: Metrics) -> set[str]:
    (requests,) = [reading for reading in metrics.read() if reading.name == "dragoman_requests_total"]
    return {labels[2] for labels in requests.rows}


def test_a_model_that_nobody_serves_gets_no_series() -> None:
    metrics = Metrics(MetricSources(), models={"fast"})
    for number in range(1000):
        name = f"made-up-{number}"
        metrics.count_request(record(status="failed", model_asked=f"main/{name}", model_served=name))
    assert models(metrics) == {"other"}
    metrics.count_request(record(status="failed", model_served=None))
    assert models(metrics) == {"other", "fast"}
    metrics.count_request(record(status="refused", model_asked=None, model_served=None, provider=None))
    assert models(metrics) == {"other", "fast", ""}


def test_a_failure_counts_for_the_model_that_served_the_same_wish_before() -> None:
    metrics = Metrics(MetricSources())
    metrics.count_request(record())
    metrics.count_request(record(status="failed", model_served=None))
    metrics.count_request(record(status="aborted", model_served="gpt-x"))
    assert models(metrics) == {"gpt-x-1"}


def test_the_number_of_models_is_bounded_whatever_servers_echo() -> None:
    metrics = Metrics(MetricSources(), limit=20)
    for number in range(1000):
        metrics.count_request(record(model_asked=f"main/m{number}", model_served=f"m{number}" * 100))
        metrics.count_request(record(status="failed", model_asked=f"main/m{number}", model_served=None))
    assert len(models(metrics)) == 21
    assert max(len(name) for name in models(metrics)) == 120
