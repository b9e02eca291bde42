"""Vectorised arithmetic of the index equals the scalar one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.operations.search.bit_slices import (
    at_least_mask,
    mask_slots,
    pack_slices,
    read_numbers,
    sum_slices,
    to_mask,
    top_mask,
)

numbers = st.dictionaries(st.integers(0, 300), st.integers(1, 5000), max_size=40)


@given(numbers)
def test_what_was_packed_is_read(values: dict[int, int]) -> None:
    assert read_numbers(pack_slices(values), range(310)) == {
        place: values.get(place, 0) for place in range(310)
    }
    assert list(mask_slots(to_mask(values))) == sorted(values)


@given(st.lists(st.tuples(numbers, st.integers(1, 90)), max_size=5))
def test_products_are_added_place_by_place(parts: list[tuple[dict[int, int], int]]) -> None:
    total = sum_slices((pack_slices(values), factor) for values, factor in parts)
    wanted = {place: sum(values.get(place, 0) * factor for values, factor in parts) for place in range(301)}
    assert read_numbers(total, range(301)) == wanted


@given(numbers, st.sets(st.integers(0, 300)), st.integers(1, 20))
def test_the_greatest_are_found_with_all_that_equal_the_least_of_them(
    values: dict[int, int], among: set[int], count: int
) -> None:
    ranked = sorted((values[place] for place in values.keys() & among), reverse=True)
    least = ranked[min(count, len(ranked)) - 1] if ranked else 0
    wanted = {place for place in values.keys() & among if values[place] >= least}
    assert (
        set(mask_slots(top_mask(pack_slices(values), to_mask(values.keys() & among), count=count))) == wanted
    )


@given(numbers, st.integers(1, 6000))
def test_those_at_or_above_a_floor_are_found(values: dict[int, int], floor: int) -> None:
    wanted = {place for place, number in values.items() if number >= floor}
    assert set(mask_slots(at_least_mask(pack_slices(values), to_mask(values), floor=floor))) == wanted
