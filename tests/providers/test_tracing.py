"""Tracing: spans, their attributes, and what is never recorded."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman import events as e
from dragoman import identity
from dragoman.errors import CallDenied, ConfigError, ProviderError
from dragoman.http.transport import Transport
from dragoman.messages import FilePart, Message, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.call_dispatcher import CallSettings
from dragoman.operations.ledger import MemoryLedger
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.scripted import Failure, ScriptedCall, ScriptedProvider, Step
from dragoman.tracing.interface import NO_TRACING, TelemetrySettings
from dragoman.tracing.model_endpoint import ModelEndpoint, endpoint_of
from dragoman.tracing.otlp_setup import open_spans, open_tracing, traces_url
from dragoman.tracing.spans import OpenTelemetryTracing
from tests.model_calls import ask_model

USAGE = e.Usage(input_tokens=90, output_tokens=7, reasoning_tokens=3, cached_input_tokens=60)
MAIN = ScriptedProvider([], name="main")
KEY = "sk-proj-AAAABBBBCCCCDDDDEEEE"
INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Listening(ScriptedProvider):
    """Plays a script, and hears what a request sent meanwhile would carry."""

    heard: Sequence[str | None] = ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        self.heard = [*self.heard, identity.traceparent.get()]
        async with aclosing(super().stream(request)) as batches:
            async for batch in batches:
                yield batch


class Seen:
    """Tracing whose spans stay here."""

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        secrets = settings.pop("secrets", ())
        processor = SimpleSpanProcessor(self.exporter)
        self.tracing: OpenTelemetryTracing = open_spans(
            TelemetrySettings(**settings), processor, secrets=secrets
        )

    def spans(self) -> dict[str, ReadableSpan]:
        """The finished spans by name, each name once."""
        finished = self.exporter.get_finished_spans()
        named = {span.name: span for span in finished}
        assert len(named) == len(finished)
        return named

    def only(self) -> ReadableSpan:
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.fixture
def request_id() -> Iterator[str]:
    token = identity.request_id.set("req_1")
    yield "req_1"
    identity.request_id.reset(token)


def facts(span: ReadableSpan) -> dict[str, Any]:
    """The span's attributes, but for those that a clock makes."""
    fields = dict(span.attributes or {})
    assert isinstance(fields.pop("gen_ai.response.time_to_first_chunk", 0.0), float)
    return fields


def request(text: str = "hi", **options: Any) -> ModelRequest:
    message = Message("m", "user", (TextPart(text),))
    return ModelRequest(model="gpt-x", messages=[message], options=options)


async def play(tracing: OpenTelemetryTracing, *steps: Step, ask: ModelRequest | None = None) -> list[e.Event]:
    model_request = ask or request()
    batches = ask_model(model_request, ScriptedProvider(steps, name="main"), tracing=tracing)
    return [event async for batch in batches for event in batch]


async def test_a_model_request_is_a_client_span_with_what_was_asked_and_what_came(request_id: str) -> None:
    seen = Seen()
    ask = request(temperature=0.5, max_tokens=100, stop="END", n=2, seed=7, thinking={"type": "on"})
    events = await play(seen.tracing, Step(text="Hello.", usage=USAGE), ask=ask)
    assert isinstance(events[-1], e.FinishStep)
    span = seen.only()
    assert (span.name, span.kind.name, span.status.status_code.name) == ("chat gpt-x", "CLIENT", "UNSET")
    assert [event.name for event in span.events] == ["gen_ai.first_chunk"]
    assert facts(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "main",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.response.model": "gpt-x",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 90,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "dragoman.provider": "main",
        "dragoman.request_id": request_id,
    }


async def test_a_failed_request_names_its_category_and_hides_what_looks_like_a_key() -> None:
    seen = Seen(secrets={"odd secret"})
    words = f"the key {KEY} and odd secret are wrong"
    with pytest.raises(ProviderError):
        await play(seen.tracing, Step(error=Failure(message=words, category="auth")))
    span = seen.only()
    assert (span.status.status_code.name, facts(span)["error.type"]) == ("ERROR", "auth")
    assert span.status.description == "the key *** and *** are wrong"
    assert not span.events


async def test_a_reader_who_leaves_is_no_error() -> None:
    seen = Seen()
    provider = ScriptedProvider([Step(text=["one", "two"])], name="main")
    async with aclosing(ask_model(request(), provider, tracing=seen.tracing)) as batches:
        await anext(batches)
    span = seen.only()
    assert (span.status.status_code.name, facts(span)["dragoman.cancelled"]) == ("UNSET", True)
    assert "error.type" not in facts(span)


async def test_what_was_said_is_on_no_span_unless_content_is_on() -> None:
    for content in (False, True):
        seen = Seen(content=content)
        await play(seen.tracing, Step(text="the answer"), ask=request("the question"))
        exported = msgspec.json.encode(facts(seen.only())).decode()
        assert ("the question" in exported, "the answer" in exported) == (content, content)


async def test_content_has_the_shapes_of_the_conventions_and_no_keys() -> None:
    seen = Seen(content=True)
    call = ToolPart("tool-look", "c1", "output-available", input={"at": f'"Bearer {KEY}"'}, output=[1])
    picture = FilePart("image/png", "data:image/png;base64,AAAA")
    ask = ModelRequest(
        model="gpt-x",
        messages=[Message("u", "user", (TextPart("see"), picture)), Message("a", "assistant", (call,))],
        instructions="Be kind.",
    )
    await play(seen.tracing, Step(text="Done.", tools=[ScriptedCall("look", {"at": 2}, "c2")]), ask=ask)
    fields = facts(seen.only())
    assert msgspec.json.decode(fields["gen_ai.system_instructions"]) == [
        {"type": "text", "content": "Be kind."}
    ]
    blob = {"type": "blob", "mime_type": "image/png", "modality": "image", "content": ""}
    question = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": '"Bearer ***"'}}
    assert msgspec.json.decode(fields["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "see"}, blob]},
        {"role": "assistant", "parts": [question]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": [1]}]},
    ]
    second_call = {"type": "tool_call", "id": "c2", "name": "look", "arguments": {"at": 2}}
    assert msgspec.json.decode(fields["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Done."}, second_call]}
    ]


async def test_the_clients_trace_goes_on_through_the_hub_to_the_provider() -> None:
    seen = Seen()
    provider = Listening([Step(text="Hello.")], name="main")
    with seen.tracing.request("POST", "/v1/messages", headers={"traceparent": INCOMING}) as door:
        async for _ in ask_model(request(), provider, tracing=seen.tracing):
            assert identity.traceparent.get() is None
        door.set_status(200)
    spans = seen.spans()
    outer, inner = spans["POST /v1/messages"], spans["chat gpt-x"]
    assert outer.parent is not None
    assert inner.parent is not None
    assert inner.context is not None
    assert (outer.kind.name, f"{outer.parent.span_id:x}") == ("SERVER", "b7ad6b7169203331")
    assert inner.parent == outer.context
    assert provider.heard == [f"00-0af7651916cd43dd8448eb211c80319c-{inner.context.span_id:016x}-01"]
    assert facts(outer) == {
        "http.request.method": "POST",
        "http.route": "/v1/messages",
        "http.response.status_code": 200,
    }


async def carried() -> str | None:
    """What a request that is sent here would carry."""
    return identity.traceparent.get()


async def test_a_relay_marks_its_span_by_hand() -> None:
    seen = Seen()
    with seen.tracing.model_call("gpt-x", MAIN, kind="embeddings") as span:
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]", span.headers["traceparent"])
        assert await span.propagate(carried()) == span.headers["traceparent"]
        span.first_byte()
        span.finish(e.FinishStep(None, usage=e.Usage(input_tokens=4, estimated=True), model="served"))
    fields = facts(seen.only())
    assert (seen.only().name, fields["gen_ai.response.model"]) == ("embeddings gpt-x", "served")
    assert (fields["gen_ai.usage.input_tokens"], fields["dragoman.usage.estimated"]) == (4, True)


async def test_a_relay_that_fails_or_is_cancelled_ends_its_span() -> None:
    seen = Seen()
    with pytest.raises(ProviderError), seen.tracing.model_call("a", MAIN):
        raise ProviderError("it hangs", category="timeout")
    with pytest.raises(asyncio.CancelledError), seen.tracing.model_call("b", MAIN):
        raise asyncio.CancelledError
    with pytest.raises(ZeroDivisionError), seen.tracing.model_call("c", MAIN):
        raise ZeroDivisionError(KEY)
    ends = {name: facts(span).get("error.type") for name, span in seen.spans().items()}
    assert ends == {"chat a": "timeout", "chat b": None, "chat c": "ZeroDivisionError"}
    assert not any(KEY in span.to_json() for span in seen.spans().values())


async def test_a_run_has_its_model_requests_and_calls_below_it_and_counts_no_tokens_itself() -> None:
    @operation("t", effect="read")
    async def inner() -> int:
        """Give one."""
        return 1

    @operation("t", effect="read")
    async def outer(context: Context) -> int:
        """Ask the other."""
        result: int = await context.call("t.inner")
        return result + 1

    seen = Seen()
    calls = Calls(Registry(inner, outer), MemoryLedger(), settings=CallSettings(tracer=seen.tracing))
    with seen.tracing.run("helper", run_id="run_1", session_id="s", model="main/gpt-x"):
        await play(seen.tracing, Step(text="Hello.", usage=USAGE))
        async with calls:
            outcome = await calls.call("t.outer", context=Context(run_id="run_1", tool_call_id="tc"))
    assert outcome.result == 2
    spans = seen.spans()
    parents = {
        name: next((n for n, other in spans.items() if span.parent and other.context == span.parent), None)
        for name, span in spans.items()
    }
    assert parents == {
        "invoke_agent helper": None,
        "chat gpt-x": "invoke_agent helper",
        "execute_tool t.outer": "invoke_agent helper",
        "execute_tool t.inner": "execute_tool t.outer",
    }
    assert facts(spans["invoke_agent helper"]) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "gen_ai.conversation.id": "s",
        "gen_ai.request.model": "main/gpt-x",
        "dragoman.run_id": "run_1",
    }
    called = facts(spans["execute_tool t.outer"])
    assert called.pop("dragoman.call_id") == outcome.call_id
    assert called == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "t.outer",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "tc",
    }
    counted = [name for name, span in spans.items() if "gen_ai.usage.input_tokens" in facts(span)]
    assert counted == ["chat gpt-x"]


async def test_a_failed_call_says_so_and_content_holds_what_went_in_and_out() -> None:
    @operation("t", effect="read")
    async def echo(text: str) -> str:
        """Say it again, or refuse."""
        if text == "no":
            raise CallDenied(f"not with {KEY}")
        return text

    seen = Seen(content=True)
    async with Calls(Registry(echo), MemoryLedger(), settings=CallSettings(tracer=seen.tracing)) as calls:
        await calls.call("t.echo", {"text": f"a {KEY}"}, context=Context())
        await calls.call("t.echo", {"text": "no"}, context=Context())
    good, bad = seen.exporter.get_finished_spans()
    assert facts(good)["gen_ai.tool.call.arguments"] == '{"text":"a ***"}'
    assert facts(good)["gen_ai.tool.call.result"] == '"a ***"'
    assert (facts(bad)["error.type"], bad.status.description) == ("call_denied", "not with ***")


async def test_a_key_that_is_the_name_of_a_field_is_on_no_span() -> None:
    @operation("t", effect="read")
    async def echo(value: dict[str, int]) -> dict[str, int]:
        """Say it again."""
        return value

    seen = Seen(content=True)
    async with Calls(Registry(echo), MemoryLedger(), settings=CallSettings(tracer=seen.tracing)) as calls:
        await calls.call("t.echo", {"value": {KEY: 1}}, context=Context())
    fields = facts(seen.only())
    assert fields["gen_ai.tool.call.arguments"] == '{"value":{"***":1}}'
    assert fields["gen_ai.tool.call.result"] == '{"***":1}'


async def test_a_run_that_failed_is_marked() -> None:
    seen = Seen()
    with seen.tracing.run("helper", run_id="run_1", session_id="s") as run:
        run.set_error("overloaded", "too busy")
    span = seen.only()
    assert (facts(span)["error.type"], span.status.description) == ("overloaded", "too busy")


async def test_a_trace_that_its_caller_does_not_keep_is_not_kept_but_goes_on() -> None:
    seen = Seen(sample=1.0)
    headers = {"traceparent": f"{INCOMING[:-2]}00"}
    with seen.tracing.request("POST", "/v1/messages", headers=headers):
        with seen.tracing.model_call("gpt-x", MAIN) as span:
            span.finish(e.FinishStep("stop"))
        assert span.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
        assert span.headers["traceparent"].endswith("-00")
    none = Seen(sample=0.0)
    await play(none.tracing, Step(text="Hello."))
    assert not seen.exporter.get_finished_spans()
    assert not none.exporter.get_finished_spans()


async def test_tracing_that_is_off_records_nothing() -> None:
    assert open_tracing(TelemetrySettings()) is NO_TRACING
    with (
        NO_TRACING.request("GET", "/v1/models", headers={}) as door,
        NO_TRACING.model_call("m", MAIN) as span,
    ):
        door.set_status(200)
        assert await span.propagate(asyncio.sleep(0, "done")) == "done"
        span.first_byte()
        span.add([e.TextDelta("t", "Hello.")])
        span.fail(ProviderError("no"))
    with NO_TRACING.run("a", run_id="r", session_id="s") as run:
        run.set_error("x", "y")
    assert span.headers == {}
    await NO_TRACING.close()


def test_configured_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError) as caught:
        open_tracing(TelemetrySettings(endpoint="http://127.0.0.1:4318"))
    assert caught.value.hint == "pip install 'dragoman[otel]'"


def remote(name: str, base_url: str) -> OpenAIProvider:
    return OpenAIProvider.for_server(name, UpstreamServer(base_url=base_url), transport=Transport())


def test_a_place_is_named_as_the_conventions_name_it() -> None:
    fields = {
        "https://models.example/v1": ModelEndpoint("x", "openai", "models.example", 443),
        "https://api.deepseek.com/v1": ModelEndpoint("x", "deepseek", "api.deepseek.com", 443),
        "https://mine.openai.azure.com/v1": ModelEndpoint(
            "x", "azure.ai.openai", "mine.openai.azure.com", 443
        ),
        "http://user:pass@127.0.0.1:8080/v1": ModelEndpoint("x", "openai", "127.0.0.1", 8080),
    }
    assert {url: endpoint_of(remote("x", url)) for url in fields} == fields
    assert endpoint_of(MAIN) == ModelEndpoint("main", "main")


async def test_where_a_request_went_is_on_its_span() -> None:
    seen = Seen()
    with seen.tracing.model_call("gpt-x", remote("up", "https://models.example/v1")) as span:
        span.finish(e.FinishStep("stop"))
    assert facts(seen.only()) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.response.finish_reasons": ("stop",),
        "server.address": "models.example",
        "server.port": 443,
        "dragoman.provider": "up",
    }


def test_a_collector_is_named_by_its_base_url() -> None:
    assert traces_url("http://collector:4318/") == "http://collector:4318/v1/traces"
    assert traces_url("http://collector:4318/v1/traces") == "http://collector:4318/v1/traces"
