"""The path of a chat through the package stays short: one text chunk, and one request."""

from __future__ import annotations

from benchmarks.path import files, measure, returns

MAX_CALLS, MAX_FILES, MAX_COROUTINES = 25, 16, 8
MAX_STOPS, MAX_RETURNS = 10, 1


async def test_a_text_chunk_and_a_request_take_few_calls_on_their_way() -> None:
    measured = await measure()
    assert len(measured.chunk) <= MAX_CALLS, measured.chunk
    assert files(measured.chunk) <= MAX_FILES, sorted({file for file, _ in measured.chunk})
    assert measured.nesting <= MAX_COROUTINES
    assert len(measured.request) <= MAX_STOPS, measured.request
    assert returns(measured.request) <= MAX_RETURNS, measured.request
