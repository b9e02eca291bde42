"""Text that is spilled to a file reads as if it were in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman import spilled_text
from dragoman.event_splitting import DeltaOnDisk, split_events
from dragoman.events import StartStep, TextDelta, TextEnd, TextStart
from dragoman.fold import Fold
from dragoman.messages import TextPart
from dragoman.part_builders import BlockBuilder
from dragoman.spilled_text import write_text
from dragoman.store.sessions.spill_file import SpillFile
from dragoman.unfold import START_POSITION, compact_events_since, events_since

LETTERS = st.text("aé€😀\ud800", max_size=40)
FROM_HYPOTHESIS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@FROM_HYPOTHESIS
@given(
    st.lists(st.tuples(LETTERS, st.none() | st.integers(0, 50)), max_size=12),
    st.integers(0, 100),
    st.booleans(),
)
def test_a_block_reads_the_same_wherever_its_text_is(
    tmp_path: Path, steps: list[tuple[str, int | None]], start: int, ended: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilled_text, "PIECE", 7)
        patch.setattr("dragoman.part_builders.MAX_DELTA", 10)
        file, fold, whole = SpillFile(tmp_path), Fold(), ""
        fold.phase = "open"
        fold.add([StartStep(), TextStart("t")])
        block = fold.builders[1]
        assert isinstance(block, BlockBuilder)
        for text, keep in steps:
            fold.add([TextDelta("t", text)])
            whole += text
            if keep is not None:
                block.spill(file, write_text(file, block.older_text(keep=keep)))
                assert block.size_in_memory <= max(keep, len(text)) + 65_536
        fold.add([TextEnd("t")] if ended else [])
        start = min(start, len(whole))
        assert block.length == len(whole)
        assert block.text_from(start) == whole[start:]
        for end in (0, start, len(whole)):
            part = block.part_until(end)
            assert isinstance(part, TextPart)
            assert part.text == whole[:end]
        for events in (
            events_since(fold),
            [
                event
                for batch in split_events(compact_events_since(fold, START_POSITION), 5)
                for event in [each.read() if isinstance(each, DeltaOnDisk) else each for each in batch]
            ],
        ):
            assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == whole
        assert block.text() == whole
        assert not list(tmp_path.iterdir())
