"""Recordings of the terminal, as `make shots` draws them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tools.terminal_recording import draw, without_pauses

SVG = "{http://www.w3.org/2000/svg}"


def test_each_version_of_a_line_is_seen_in_its_time_and_the_last_one_without_motion() -> None:
    pieces = without_pauses([(0.0, b"one\r\n"), (0.5, b"\x1b[1;32mtwo"), (60.0, b"\x1b[0m <&>")])
    assert [at for at, _ in pieces] == [0.0, 0.5, 1.7]
    drawn = draw(pieces, columns=20, rows=4, title="a & b")
    tree = ET.fromstring(drawn)
    texts = {"".join(text.itertext()): text.get("class") for text in tree.iter(f"{SVG}text")}
    assert texts == {"a & b": None, "one": "l z", "two": "l", "two <&>": "l z"}
    assert drawn.count("@keyframes") == 3
    assert 'fill="#3fb950" font-weight="bold">two<' in drawn
    assert "<script" not in drawn
