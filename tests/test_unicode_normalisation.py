"""Normal forms are those of Unicode, but for runs of combining characters that nobody writes."""

from __future__ import annotations

import sys
import unicodedata
from typing import Literal, get_args

from hypothesis import given
from hypothesis import strategies as st

from dragoman.unicode_normalisation import JOINER, LONG_RUN, MAX_COMBINING, is_combining, normalise_text

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
TEXTS = st.text(st.sampled_from("aÅé\u0300\u0315\u0344\uff9e\uff76한ᄒ ﬁ-😀中"), max_size=MAX_COMBINING)


@given(text=TEXTS, form=st.sampled_from(get_args(Form)))
def test_a_text_of_people_has_the_normal_form_of_unicode(text: str, form: Form) -> None:
    assert normalise_text(form, text) == unicodedata.normalize(form, text)


def test_a_longer_run_is_split_after_as_many_characters_as_unicode_says() -> None:
    whole = "e" + "\u0301" * MAX_COMBINING
    assert normalise_text("NFC", whole + "\u0301") == unicodedata.normalize("NFC", whole) + JOINER + "\u0301"
    symbols = "- \N{BULLET} " * MAX_COMBINING
    assert normalise_text("NFKC", symbols) == symbols


def test_a_run_of_any_combining_characters_is_found() -> None:
    marks = [chr(each) for each in range(sys.maxunicode + 1) if unicodedata.combining(chr(each))]
    assert [each for each in marks if not LONG_RUN.fullmatch(each * (MAX_COMBINING + 1))] == []
    assert all(map(is_combining, [*marks, "\u0f73", "\u0f75", "\u0f81", "\uff9e", "\uff9f"]))
