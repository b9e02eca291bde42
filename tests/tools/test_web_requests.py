"""`web.fetch` with requests of other kinds: POST, headers, rates, articles and PDF."""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from dragoman.errors import BadRequest, ConfigError
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.approval import MemoryApprovalStore
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule
from dragoman.tools.web import document_text
from dragoman.tools.web.host_policy import WebSettings
from dragoman.tools.web.operations import operations
from dragoman.tools.web.rate_buckets import RateBuckets
from dragoman.tools.web.request import REFUSED_HEADERS, WebRequest, check_headers
from tests.providers.servers import Peer, Received, ok, serving

from .internet import home

JSON = "content-type: application/json"
HTML = "content-type: text/html"
PDF = "content-type: application/pdf"


class Answers:
    """A server's answers, one for each connection, and the requests that it got."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = answers
        self.requests: list[Received] = []

    async def __call__(self, peer: Peer) -> None:
        self.requests.append(await peer.request())
        await peer.send(self._answers[peer.number - 1])
        await peer.gone()


async def call(
    answers: Answers, name: str = "web.fetch", *, rules: Sequence[Rule] = (), **input: Any
) -> dict[str, Any]:
    """What an operation gives for a page of a server with these answers."""
    async with serving(answers) as server:
        made = operations(home(server.port))
        access = AccessControl(Policy(rules), MemoryApprovalStore(time.time), clock=time.time)
        async with Calls(Registry(*made), MemoryLedger(), access_control=access) as calls:
            outcome = await calls.call(
                name, {"url": f"http://127.0.0.1:{server.port}/a", **input}, context=Context()
            )
        return outcome.to_json()


async def test_a_post_is_a_call_of_web_post_below_the_fetch() -> None:
    answers = Answers(ok(b'{"id": 1}', JSON))
    request = {"method": "POST", "body": '{"a": "Ž"}', "headers": {"Content-Type": "application/json"}}
    result = (await call(answers, request=request))["result"]
    assert (result["status"], result["text"]) == (200, '{"id": 1}')
    [received] = answers.requests
    assert received.line == "POST /a HTTP/1.1"
    assert (received["content-type"], received["content-length"]) == ("application/json", "11")
    assert received.body == '{"a": "Ž"}'.encode()


async def test_a_policy_that_denies_posts_denies_them_through_a_fetch_too() -> None:
    answers = Answers(ok(b"{}", JSON))
    deny = Rule(decision="deny", operations=("web.post",))
    for name in ("web.fetch", "web.post"):
        refused = await call(answers, name, rules=[deny], request={"method": "POST"})
        assert refused["error"]["code"] == "call_denied"
    assert not answers.requests


@pytest.mark.parametrize(
    "name", ["Host", "cookie", "Content-Length", "a b", "x\r\ny", "", *sorted(REFUSED_HEADERS)]
)
def test_headers_that_would_change_the_request_itself_are_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        check_headers({name: "x"})


@pytest.mark.parametrize("value", ["a\r\nhost: evil", "\0", "Ž", "x" * 5_000])
def test_header_values_that_would_end_the_header_are_refused(value: str) -> None:
    with pytest.raises(BadRequest):
        check_headers({"authorization": value})


@pytest.mark.parametrize(
    ("status", "same_origin", "expected"),
    [
        (302, True, WebRequest("GET", {"authorization": "t"})),
        (303, False, WebRequest("GET", {})),
        (307, True, WebRequest("POST", {"authorization": "t", "content-type": "c"}, b"x")),
        (308, False, None),
    ],
)
def test_a_redirect_takes_neither_headers_nor_bodies_to_another_origin(
    status: int, same_origin: bool, expected: WebRequest | None
) -> None:
    request = WebRequest("POST", {"authorization": "t", "content-type": "c"}, b"x")
    if expected is None:
        with pytest.raises(BadRequest):
            request.after_redirect(status, same_origin=same_origin)
        return
    assert request.after_redirect(status, same_origin=same_origin) == expected


async def test_a_get_has_no_body() -> None:
    refused = await call(Answers(), request={"body": "x"})
    assert "A GET request has no body" in refused["error"]["message"]


async def test_the_rates_of_one_team_are_not_those_of_another() -> None:
    def rates(context: Context) -> tuple[str, Mapping[str, str]]:
        return context.agent or "", {"api": "2/minute"}

    buckets = RateBuckets(rates)
    for agent in ("one", "two"):
        for _ in range(2):
            await buckets.take("api", Context(agent=agent))
        with pytest.raises(Exception, match="rate key 'api' is limited to 2 calls"):
            await buckets.take("api", Context(agent=agent))
    with pytest.raises(BadRequest, match="no rate 'other'"):
        await buckets.take("other", Context(agent="one"))
    await buckets.take(None, Context(agent="one"))


def test_a_rate_that_cannot_be_read_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError):
        operations(WebSettings(rates={"api": "often"}))


SENTENCES = "".join(f"<p>Sentence {n} tells how the moon pulls the water of the sea.</p>" for n in range(12))
ARTICLE = f"""<html><head><title>Tides</title></head>
<body><nav><a href="/">Home</a><a href="/shop">Shop</a></nav>
<article><h1>Tides</h1>{SENTENCES}</article>
<footer>Subscribe to our newsletter. Cookies.</footer></body></html>""".encode()


async def test_an_article_is_returned_without_what_stands_around_it() -> None:
    result = (await call(Answers(ok(ARTICLE, HTML)), format="article"))["result"]
    assert "Sentence 11 tells how the moon pulls" in result["text"]
    assert "Shop" not in result["text"]
    assert "newsletter" not in result["text"]
    assert result["title"] == "Tides"
    empty = (await call(Answers(ok(b"<p>x</p>", HTML)), format="article"))["result"]
    assert empty["text"] == "x"


FONT = b"/Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>"


def make_pdf(text: str) -> bytes:
    """A PDF of one page, with one line."""
    content = zlib.compress(f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode())
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << %s >> >>" % FONT,
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(content), content),
    ]
    out = io.BytesIO(b"%PDF-1.4\n")
    out.seek(0, io.SEEK_END)
    places = []
    for number, each in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, each))
    start = out.tell()
    rows = b"".join(b"%010d 00000 n \n" % place for place in places)
    out.write(b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Size 5 /Root 1 0 R >>\n" % rows)
    out.write(b"startxref\n%d\n%%%%EOF" % start)
    return out.getvalue()


def endless_pdf(_: str) -> bytes:
    """A PDF whose one page is its own parent."""
    return (
        make_pdf("x").replace(b"/Parent 2 0 R", b"/Parent 3 0 R").replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]")
    )


def bomb_pdf(_: str) -> bytes:
    """A PDF of a few kilobytes whose text has 20 MB."""
    whole = make_pdf("x" * 20_000_000)
    assert len(whole) < 1_000_000
    return whole


async def test_the_text_of_a_pdf_is_returned() -> None:
    result = (await call(Answers(ok(make_pdf("Hello tides"), PDF))))["result"]
    assert (result["text"], result["media_type"]) == ("Hello tides", "application/pdf")


@pytest.mark.parametrize("make", [endless_pdf, bomb_pdf, lambda _: b"%PDF-1.7 junk", lambda _: b"\xff" * 99])
async def test_a_poisoned_pdf_is_an_error_of_the_call_alone(
    make: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_text, "LIMITS", {**document_text.LIMITS, "RLIMIT_CPU": 1})
    answer = await call(Answers(ok(make(""), PDF)))
    if "result" in answer:
        assert len(answer["result"]["text"]) <= 16_000
    else:
        assert "cannot be read" in answer["error"]["message"]


async def test_a_poisoned_web_page_takes_neither_memory_nor_time_of_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document_text, "LIMITS", {**document_text.LIMITS, "RLIMIT_CPU": 1})
    for page in (b"<b><i><a href=x>" * 60_000, b"<table><tr><td>" * 60_000):
        answer = await call(Answers(ok(page, HTML)), format="article")
        assert "result" in answer or "cannot be read" in answer["error"]["message"]
