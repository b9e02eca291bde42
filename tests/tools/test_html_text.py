"""HTML as text: order, content, bounded time and size."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.tools.web.html_text import parse_page
from tests.effort import rounds

BASE = "https://site.example.com/dir/"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>one<p>two", "one\n\ntwo"),
        ("a <b>bold</b>\n  word", "a bold word"),
        ("one<br>two<br/>three", "one\ntwo\nthree"),
        ("<h2>Head <em>line</em></h2>text", "## Head line\n\ntext"),
        ("<ul><li>a<li>b<ul><li>c</ul></ul>d", "- a\n- b\n  - c\n\nd"),
        ("<ol><li>a</li><li>b</li></ol>", "1. a\n2. b"),
        ("<table><tr><th>a<th>b<tr><td>1<td>2</table>", "a | b\n1 | 2"),
        ("<pre>def f():\n    return 1\n</pre>x", "```\ndef f():\n    return 1\n```\n\nx"),
        ("use <code>x = 1</code>", "use `x = 1`"),
        ("<a href=x?y=1&amp;z>here</a> .", "[here](https://site.example.com/dir/x?y=1&z) ."),
        ("<a href='//e.example.com/(a)'>e</a>", "[e](https://e.example.com/%28a%29)"),
        ("<a href=/x><div>block</div></a>", "[block](https://site.example.com/x)"),
        ("<a href=#top>up</a> <a href=javascript:alert(1)>js</a> <a href=/e></a>", "up js"),
        ("<a href='http://['>odd</a> <a href=data:,x>data</a>", "odd data"),
        ("<base href=https://b.example.com/><a href=x>x</a>", "[x](https://b.example.com/x)"),
        ("<img src=x alt='A cat'> <img src=y>", "[image: A cat]"),
        ("1 < 2 &lt; 3 & 4 &copy; &#8364; &unknown;", "1 < 2 < 3 & 4 \u00a9 \u20ac &unknown;"),
        ("<script>if (1 </ 2) '<p>no</p>'</script>yes<style>p {}</style>", "yes"),
        ("a<!-- <p>no -- > -->b<!doctype x><?php no ?>c<![CDATA[<p>no]]>d", "abcd"),
        ("<div hidden>no <div>no</div></div>yes", "yes"),
        ("<span style='display: none'>no</span>yes<svg><text>no</text></svg>", "yes"),
        ("<p hidden>shown, for nothing says where it ends<p>yes", None),
        ("<p title='a > b' class=it's>in</p>", "in"),
        ("<textarea>&lt;p&gt;</textarea>", "<p>"),
        ("<p>never closed <a href=x", "never closed"),
        ("<blockquote>said</blockquote>x<hr>y", "> said\n\nx\n\n---\n\ny"),
    ],
)
def test_html_is_told_as_markdown(html: str, text: str | None) -> None:
    page_text = parse_page(html, url=BASE, markdown=True).text
    assert page_text == text if text is not None else "yes" in page_text


def test_plain_text_has_no_marks() -> None:
    html = "<title> A\n page </title><h1>Head</h1><a href=x>here</a> <code>y</code><img alt=z>"
    page = parse_page(html, url=BASE, markdown=False)
    assert (page.title, page.text) == ("A page", "Head\n\nhere y")


FRAGMENTS = [
    "<p>",
    "<b id=1>",
    "<a href='",
    '"',
    ">",
    "<",
    "</a>",
    "<script>",
    "</script>",
    "<!--",
    "-->",
    "&#",
    "9",
]
FRAGMENTS += [
    "&amp",
    "<td>",
    "<li>",
    "<ul>",
    "</ul>",
    "<pre>",
    "</pre>",
    "<div hidden>",
    "x",
    " ",
    "\n",
    "=",
    "/",
    "<svg",
]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=40))
def test_anything_is_read(parts: list[str]) -> None:
    parse_page("".join(parts), url=BASE, markdown=True)


SIZE = rounds(quick=250_000, thorough=1_000_000)
HEAVY = [
    "<",
    "<a ",
    "<a b='",
    "<!--",
    "<![CDATA[",
    "</",
    "<td>",
    "<td>x",
    "<ul>",
    "<li>",
    "<script>",
    "<svg>",
]
HEAVY += [
    "<div hidden>",
    "<a href=/x>",
    "<a href=/x>x",
    "&",
    "&#9",
    "<pre>",
    "<textarea>",
    "<title>",
    "<a =",
    "\n",
]


@pytest.mark.parametrize("part", HEAVY)
def test_a_page_that_repeats_itself_takes_time_in_line_with_its_size(part: str) -> None:
    begun = time.process_time()
    parse_page(part * (SIZE // len(part)) + "9" * 10_000, url=BASE, markdown=True)
    assert time.process_time() - begun < SIZE * 15e-6


def test_a_page_that_makes_trees_explode_stays_as_small_as_it_is() -> None:
    """HTML 5 tells parsers to open all these elements again in each paragraph: 9 million of them."""
    html = "".join(f"<b id={index}>" for index in range(3_000)) + "<p>x</p>" * 3_000
    assert len(parse_page(html, url=BASE, markdown=True).text) < len(html)
